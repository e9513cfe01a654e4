"""The console as a program sees it: pages, files, errors, the live stream, and answers without NATS."""

from contextlib import AsyncExitStack

import anyio
import pytest

from rebaser.console import server as console_server
from rebaser.console import stream
from rebaser.console.access.rules import ProxyAccess, read_networks
from rebaser.console.app import RESOURCES
from rebaser.console.live.hub import Hub
from rebaser.embedded.nats import EmbeddedNats
from rebaser.testing import LocalRebaser
from rebaser_client import RebaserClient, Set
from tests.support.web_console import WebConsole, web_console

pytestmark = pytest.mark.anyio


async def test_pages_are_the_shell_and_files_are_revalidated(console: WebConsole) -> None:
    shell = await console.ask("/")
    assert shell.headers["content-type"] == "text/html; charset=utf-8"
    assert (await console.ask("/change-sets/shop/main")).body == shell.body
    script = await console.ask("/static/js/app.js")
    assert (script.status, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    again = await console.ask("/static/js/app.js", headers={"if-none-match": script.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert (await console.ask("/livez")).body == b"ok\n"


async def test_what_is_wrong_with_a_request_is_told(console: WebConsole) -> None:
    assert (await console.get("/nothing", 404))["error"]["code"] == "not_found"
    for query in ("state=some", "sort=x", "limit=501", "limit=0", "offset=-1", "offset=1e3", f"q={'x' * 201}"):
        assert (await console.get(f"/change-sets?{query}", 400))["error"]["code"] == "invalid_argument"
    assert (await console.get("/live?of=/nothing", 404))["error"]["code"] == "not_found"


async def test_an_answer_that_fails_tells_no_more_than_that(
    console: WebConsole, monkeypatch: pytest.MonkeyPatch, events: "object"
) -> None:
    def broken(_: Hub) -> None:
        raise ValueError("a secret")

    monkeypatch.setattr(Hub, "seen", broken)
    reply = await console.ask("/api/v1/overview")
    assert reply.status == 500
    assert reply.json()["error"]["code"] == "failed"
    assert b"secret" not in reply.body


async def test_a_page_hears_of_a_change(console: WebConsole, client: RebaserClient, ws: str) -> None:
    async with console.live(f"/change-sets?q={ws}") as live:
        name, answer = await live.next()
        assert (name, answer["matching"]) == ("state", 0)
        await client.enqueue_updates_with_reply(ws, "main", [Set("a", 1)])
        while not answer["matching"]:
            name, answer = await live.next()
        assert name == "state"
        [row] = answer["rows"]
        assert (row["workspaceId"], row["changeSetId"], row["status"]) == (ws, "main", "open")


async def test_streams_are_bounded_in_number(console: WebConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_STREAMS", 1)
    async with console.live("/overview") as live:
        await live.next()
        assert (await console.ask("/api/v1/live?of=/overview")).status == 503
    with anyio.fail_after(60):
        while True:
            async with console.live("/overview") as live:
                try:
                    await live.next()
                    break
                except (anyio.EndOfStream, anyio.IncompleteRead):  # the first stream has not ended yet
                    continue


async def test_one_viewer_leaves_room_for_others(installation: LocalRebaser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_OWN", 2)
    by_proxy = ProxyAccess("X-User", read_networks(["127.0.0.0/8"]))
    async with web_console(installation.url, access=by_proxy) as console, AsyncExitStack() as stack:

        async def opened(user: str) -> bool:
            """Open a stream. It stays open until the end of the test; the connection of a refused one is closed."""
            async with AsyncExitStack() as own:
                live = await own.enter_async_context(console.live("/overview", {"x-user": user}))
                if await live.status() != 200:
                    return False
                stack.push_async_callback(own.pop_all().aclose)
                return True

        async with console.live("/overview", {"x-user": "ada"}) as live:
            assert await live.status() == 200
            assert [await opened("ada"), await opened("ada"), await opened("bob")] == [True, False, True]
            reply = await console.ask("/api/v1/live?of=/overview", headers={"x-user": "ada"})
            message = reply.json()["error"]["message"]
            assert "you have 2 live pages open" in message
            assert "becomes live by itself" in message, "a page tries again, so to load it again would not help"
        with anyio.fail_after(60):
            while not await opened("ada"):  # noqa: ASYNC110 - only a try tells that the console noticed the end of a stream
                await anyio.sleep(0.02)
        assert not await opened("ada")


async def test_viewers_behind_a_tunnel_share_no_limit(console: WebConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_OWN", 1)
    async with console.live("/overview") as one, console.live("/overview") as other:
        assert [await one.status(), await other.status()] == [200, 200]


async def test_a_console_without_nats_serves_pages_that_say_so(
    own_nats: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console starts without NATS, connects, loses the connection, and connects again."""
    monkeypatch.setattr("rebaser.console.live.hub.RECONNECT", 0.1)
    await own_nats.kill()
    async with web_console(own_nats.url) as console:
        assert (await console.ask("/")).status == 200
        async with console.live("/overview") as live:
            name, answer = await live.next()
            assert (name, answer["error"]["code"]) == ("trouble", "not_connected")
            await own_nats.start()
            while name != "state":
                name, answer = await live.next()
            assert (answer["problem"], answer["total"]) == ("", 0)
            await own_nats.kill()
            while not answer.get("problem"):
                name, answer = await live.next()
            assert name == "state", "what was seen before stays on the page"
            await own_nats.start()
            while answer["problem"]:
                name, answer = await live.next()


async def test_nobody_looks_nothing_is_asked(console: WebConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebaser.console.live.hub.IDLE", 0.5)
    monkeypatch.setattr("rebaser.console.live.hub.STEP", 0.1)
    ended = anyio.Event()
    watch = Hub._watch

    async def watched(hub: Hub, client: RebaserClient) -> None:
        await watch(hub, client)
        ended.set()

    monkeypatch.setattr(Hub, "_watch", watched)
    assert (await console.get("/overview"))["problem"] == ""
    with anyio.fail_after(60):
        await ended.wait()
    assert (await console.get("/overview"))["problem"] == "", "the next viewer begins a new watch"


async def test_a_slow_head_and_too_many_connections_are_cut_off(
    monkeypatch: pytest.MonkeyPatch, console: WebConsole
) -> None:
    monkeypatch.setattr(console_server, "HEAD", 0.05)
    async with await anyio.connect_tcp("127.0.0.1", console.port) as slow:
        await slow.send(b"GET / HTTP/1.1\r\n")
        with anyio.fail_after(60), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await slow.receive()
    monkeypatch.setattr(console_server, "MAX_CONNECTIONS", 0)
    async with await anyio.connect_tcp("127.0.0.1", console.port) as one:
        with anyio.fail_after(60), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await one.receive()


def test_what_is_live_needs_no_body_and_each_path_is_there_once() -> None:
    paths = [resource.path for resource in RESOURCES]
    assert len(paths) == len(set(paths))
    assert all(path.startswith("/") and not path.endswith("/") for path in paths)

"""What clients and installations that behave badly cannot do to a console: hold connections, pile up work, hide an
action from the log, or end the process."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn, cast

import anyio
import pytest
from starlette.requests import Request

from rebaser.console import app, server
from rebaser.console.access.guard import VIEWER
from rebaser.console.access.rules import Viewer
from rebaser.console.live.hub import Hub
from rebaser.console.resources import Action, Answer, Console, Given, Resource
from rebaser_client import RebaserClient
from tests.conftest import Events
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio
NOBODY = cast("Console", None)


def asked(method: str, messages: list[dict[str, Any]]) -> Request:
    """Return a request whose client sends `messages`, and is gone afterwards."""

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": method,
        "path": "/x\nforged",
        "path_params": {},
        "query_string": b"",
        VIEWER: Viewer("ann"),
    }
    return Request({**scope, "headers": []}, receive)


async def test_a_read_ends_when_its_client_has_gone() -> None:
    ended = False

    async def read(_: Console, __: Given) -> Answer:
        nonlocal ended
        try:
            await anyio.sleep_forever()
        finally:
            ended = True
        return {}

    with anyio.fail_after(60):
        await app._reading(NOBODY, Resource("/x", read))(asked("GET", [{"type": "http.request", "body": b""}]))
    assert ended


async def test_an_action_that_may_have_been_done_is_in_the_log(events: Events) -> None:
    async def broken(_: Console, __: Given, ___: Any) -> NoReturn:
        raise ValueError("after the change")

    body = {"type": "http.request", "body": json.dumps({"author": "ann"}).encode(), "more_body": False}
    with pytest.raises(ValueError, match="after"):
        await app._acting(NOBODY, Action("/x", broken))(asked("POST", [body]))
    [event] = events.named("console_action")
    assert (event["outcome"], event["author"], event["path"]) == ("unknown", "ann", "/x\nforged")
    assert event["user"] == "ann"


async def test_what_no_server_could_read_is_not_sent(acting: WebConsole, ws: str, events: Events) -> None:
    path, edit = f"/change-sets/{ws}/main/edit", {"id": "a", "value": "1", "at": 1}
    for at in (0, 2**63, 2**70, True, "1"):
        assert (await acting.act(path, edit | {"at": at}, 400))["error"]["code"] == "invalid_argument"
    assert (await acting.act(path, edit | {"author": "\ud800"}, 400))["error"]["code"] == "not_json"
    assert events.named("http_failed") == []


async def test_a_client_that_takes_nothing_is_cut_off(console: WebConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, end = anyio.Event(), server.BoundedProtocol.connection_lost

    def connection_lost(self: server.BoundedProtocol, exc: Exception | None) -> None:
        end(self, exc)
        lost.set()

    monkeypatch.setattr(server.BoundedProtocol, "connection_lost", connection_lost)
    monkeypatch.setattr(server, "TAKING", 0.2)
    one = f"GET /static/js/app.js HTTP/1.1\r\nhost: 127.0.0.1:{console.port}\r\n\r\n".encode()
    async with await anyio.connect_tcp("127.0.0.1", console.port) as stream, anyio.create_task_group() as group:
        group.start_soon(stream.send, one * 2000)  # 24 MB of answers, more than the system keeps for a connection
        with anyio.fail_after(60):
            await lost.wait()
        group.cancel_scope.cancel()


@pytest.mark.parametrize("of", ["//[", f"/overview?{'%26'.join('abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP')}"])
async def test_what_is_no_path_is_not_followed(console: WebConsole, of: str, events: Events) -> None:
    answer = await console.get(f"/live?of={of}", 400)
    assert answer["error"]["code"] == "invalid_argument"
    assert events.named("http_failed") == []


async def test_a_stream_that_fails_says_so(
    console: WebConsole, monkeypatch: pytest.MonkeyPatch, events: Events
) -> None:
    def broken(_: Hub) -> NoReturn:
        raise ValueError("a secret")

    monkeypatch.setattr(Hub, "seen", broken)
    async with console.live("/overview") as live:
        name, answer = await live.next()
    assert (name, answer["error"]["code"]) == ("trouble", "failed")
    assert "secret" not in str(answer)
    assert events.named("http_failed")


async def test_a_failure_that_nobody_expected_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, events: Events
) -> None:
    monkeypatch.setattr("rebaser.console.live.hub.RECONNECT", 0)
    tries, connected = 0, anyio.Event()

    @asynccontextmanager
    async def connect() -> AsyncIterator[RebaserClient]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("a secret")
        connected.set()
        yield cast("RebaserClient", object())

    hub = Hub(connect)
    async with anyio.create_task_group() as group:
        group.start_soon(hub.run)
        with anyio.fail_after(60):
            await connected.wait()
        group.cancel_scope.cancel()
    assert len(events.named("console_failed")) == 1


async def test_what_a_watch_saw_is_forgotten_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    watches, ends = 0, [anyio.Event(), anyio.Event()]

    async def watch(self: Hub, _: RebaserClient) -> None:
        nonlocal watches
        watches += 1
        self._seen = cast("Any", watches)
        self.tell()
        await ends[watches - 1].wait()

    monkeypatch.setattr(Hub, "_watch", watch)

    @asynccontextmanager
    async def connect() -> AsyncIterator[RebaserClient]:
        yield cast("RebaserClient", object())

    hub = Hub(connect)
    async with anyio.create_task_group() as group:
        group.start_soon(hub.run)
        with anyio.fail_after(60):
            first: object = await hub.seen()
            ends[0].set()
            await anyio.wait_all_tasks_blocked()
            second: object = await hub.seen()
        group.cancel_scope.cancel()
    assert [first, second] == [1, 2]

"""The login of a console over HTTP: what is open without it, what ends with it, and what other sites cannot do."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from rebaser.console.access.guard import MAX_LOGIN
from rebaser.console.access.rules import MAX_TOKEN, TRIES, ProxyAccess, TokenAccess, read_networks
from rebaser.console.app import ACTIONS, API, RESOURCES
from rebaser.testing import LocalRebaser
from tests.conftest import Events
from tests.support.commands import rebaser
from tests.support.web_console import ACTING, Reply, WebConsole, end_sessions, web_console

pytestmark = pytest.mark.anyio
TOKEN = "the-token-of-this-console"
NO_USER_HEADERS = ("Host", "X-Forwarded-For", "Cookie", "a b", "")


@pytest.fixture
def access() -> TokenAccess:
    return TokenAccess(TOKEN)


@pytest.fixture
async def locked(anyio_backend: str, installation: LocalRebaser, access: TokenAccess) -> AsyncIterator[WebConsole]:
    """A console with a login that allows actions."""
    async with web_console(installation.url, actions=True, access=access) as running:
        yield running


async def post(console: WebConsole, path: str, body: object, **headers: str) -> Reply:
    given = {**ACTING, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await console.ask(f"{API}{path}", method="POST", headers=given, body=json.dumps(body).encode())


async def login(console: WebConsole) -> dict[str, str]:
    """Log in; return the header that carries the session."""
    reply = await post(console, "/login", {"token": TOKEN})
    assert reply.status == 200, reply.body
    return {"cookie": reply.headers["set-cookie"].partition(";")[0]}


async def test_nothing_is_told_without_a_login(locked: WebConsole) -> None:
    names = {"workspace": "shop", "changeSet": "main"}
    for template in [resource.path for resource in RESOURCES] + [action.path for action in ACTIONS]:
        path = API + template.format(**names)
        reply = await locked.ask(path)
        assert (reply.status, reply.json()["error"]["code"]) == (401, "login_needed"), path
    for action in ACTIONS:
        reply = await post(locked, action.path.format(**names), {})
        assert (reply.status, reply.json()["error"]["code"]) == (401, "login_needed"), action.path
    for path in ("/api/v1/live?of=/overview", "/api/v1/session", "/api/v1/none", "/static/../api/v1/overview"):
        assert (await locked.ask(path)).status in (401, 404)
    for path in ("/livez", "/readyz", "/login", "/static/style.css"):
        assert (await locked.ask(path)).status == 200


@pytest.mark.parametrize(
    ("path", "goal"),
    [
        ("/", "/"),
        ("/change-sets/shop/main?q=a%20b", "/change-sets/shop/main%3Fq%3Da%2520b"),
        ("//evil.example.com", "//evil.example.com"),
        ("/x%0d%0aset-cookie:a=b", "/x%0D%0Aset-cookie%3Aa%3Db"),
    ],
)
async def test_a_page_leads_to_the_login_on_this_console(locked: WebConsole, path: str, goal: str) -> None:
    reply = await locked.ask(path)
    assert (reply.status, reply.headers["location"]) == (303, f"/login?next={goal}")
    assert "set-cookie" not in reply.headers


async def test_a_session_opens_all_and_its_streams_end_with_it(locked: WebConsole, events: Events) -> None:
    cookie = await login(locked)
    assert (await locked.ask("/api/v1/overview", headers=cookie)).status == 200
    assert (await locked.ask("/", headers=cookie)).status == 200
    [event] = events.named("console_login")
    assert (event["address"], event["user"], len(event["session"])) == ("127.0.0.1", "token", 8)
    async with await anyio.connect_tcp("127.0.0.1", locked.port) as stream:
        head = f"host: localhost:{locked.port}\r\ncookie: {cookie['cookie']}\r\n"
        await stream.send(f"GET /api/v1/live?of=/overview HTTP/1.1\r\n{head}\r\n".encode())
        with anyio.fail_after(60):
            while b"event: state" not in await stream.receive():
                pass
            assert (await post(locked, "/logout", {}, **cookie)).status == 200
            rest = b""
            while not rest.endswith(b"0\r\n\r\n"):
                rest += await stream.receive()
    assert (await locked.ask("/api/v1/overview", headers=cookie)).status == 401


async def test_a_stream_ends_when_its_session_does(locked: WebConsole, access: TokenAccess) -> None:
    cookie = await login(locked)
    async with await anyio.connect_tcp("127.0.0.1", locked.port) as stream:
        head = f"host: localhost:{locked.port}\r\ncookie: {cookie['cookie']}\r\n"
        await stream.send(f"GET /api/v1/live?of=/overview HTTP/1.1\r\n{head}\r\n".encode())
        told = b""
        with anyio.fail_after(60):
            while b"event: state" not in told:
                told += await stream.receive()
            end_sessions(access)
            while not told.endswith(b"0\r\n\r\n"):
                told += await stream.receive()


async def test_an_action_tells_in_the_log_who_did_it(locked: WebConsole, events: Events) -> None:
    cookie = await login(locked)
    await post(locked, "/change-sets/no%20name/main/close", {"author": "eve"}, **cookie)
    [event], [begun] = events.named("console_action"), events.named("console_login")
    assert (event["user"], event["session"], event["author"]) == ("token", begun["session"], "eve")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example.com"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"x_rebaser_action": ""},
        {"content_type": "application/x-www-form-urlencoded"},
        {"content_type": "text/plain"},
    ],
)
async def test_another_site_cannot_log_a_browser_in_or_out(locked: WebConsole, headers: dict[str, str]) -> None:
    for path in ("/login", "/logout"):
        reply = await post(locked, path, {"token": TOKEN}, **headers, **(await login(locked)))
        assert reply.status in (403, 415)
        assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("body", [{}, [], {"token": 1}, {"token": None}, {"token": "x" * 1025}, "token"])
async def test_what_is_no_token_is_refused(locked: WebConsole, body: object) -> None:
    assert (await post(locked, "/login", body)).status == 400


async def test_wrong_tokens_are_refused_and_never_logged(locked: WebConsole, events: Events) -> None:
    found = [(await post(locked, "/login", {"token": f"a-guess-{number}"})).status for number in range(6)]
    assert found == [403] * 5 + [429]
    assert (await post(locked, "/login", {"token": TOKEN})).status == 429
    assert len(events.named("console_login_failed")) == 5
    assert "a-guess" not in str(events.entries)
    assert TOKEN not in str(events.entries)


async def test_no_large_body_is_read_without_a_login_and_none_after_too_many_tries(locked: WebConsole) -> None:
    large = await post(locked, "/login", {"token": "x" * MAX_LOGIN})
    assert (large.status, large.json()["error"]["code"]) == (413, "too_large")
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in TOKEN.ljust(MAX_TOKEN))
    for status in [403] * TRIES + [429]:
        body = f'{{"token":"{escaped}"}}'.encode()
        reply = await locked.ask(f"{API}/login", method="POST", headers=ACTING, body=body)
        assert reply.status == status
    assert (await post(locked, "/login", [])).status == 429, "the body does not matter any more"


async def test_a_reader_can_log_in(installation: LocalRebaser) -> None:
    async with web_console(installation.url, access=TokenAccess(TOKEN)) as console:
        cookie = await login(console)
        assert (await post(console, "/change-sets/a/b/close", {}, **cookie)).json()["error"]["code"] == "read_only"
        assert (await post(console, "/logout", {}, **cookie)).status == 200


async def test_a_proxy_names_the_user(installation: LocalRebaser, events: Events) -> None:
    trusted = ProxyAccess("X-Forwarded-User", read_networks(["127.0.0.0/8"]))
    async with web_console(installation.url, actions=True, access=trusted) as console:
        assert (await console.ask("/api/v1/overview")).json()["error"]["code"] == "no_user"
        assert (await console.ask("/")).status == 403
        assert (await console.ask("/api/v1/overview", headers={"x-forwarded-user": "ann"})).status == 200
        await post(console, "/change-sets/no%20name/main/close", {}, x_forwarded_user="ann")
        assert [event["user"] for event in events.named("console_action")] == ["ann"]
        assert (await console.ask("/login")).headers["location"] == "/"
    other = ProxyAccess("X-Forwarded-User", read_networks(["10.0.0.0/8"]))
    async with web_console(installation.url, access=other) as console:
        reply = await console.ask("/api/v1/overview", headers={"x-forwarded-user": "ann"})
        assert reply.json()["error"]["code"] == "not_from_proxy"


async def test_which_options_belong_together(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("short")
    for options, code in (
        (("--auth", "token"), 2),
        (("--token-file", str(file)), 2),
        (("--auth", "proxy"), 2),
        (("--trust-proxy", "10.0.0.0/8"), 2),
        (("--auth", "proxy", "--trust-proxy", "0.0.0.0/0"), 2),
        (("--user-header", "X-User"), 2),
        *((("--auth", "proxy", "--trust-proxy", "10.0.0.1", "--user-header", name), 2) for name in NO_USER_HEADERS),
        (("--auth", "token", "--token-file", str(file)), 1),
    ):
        done = await rebaser("console", "--http", ":0", *options)
        assert (done.returncode, done.stdout) == (code, ""), options
        assert "short" not in done.stderr

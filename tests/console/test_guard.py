"""Tests the safety rules of the console: which requests are answered, and with which headers."""

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from rebaser.console.access.guard import HEADERS, MAX_BODY, check, check_direct
from rebaser.console.access.options import ConsoleOptions, accepted_hosts, check_exposure, is_host, other_names
from rebaser.console.access.rules import OpenAccess, ProxyAccess, Refused, TokenAccess, read_networks
from rebaser.testing import LocalRebaser
from rebaser_core.errors import ConfigError
from tests.support.web_console import ACTING, WebConsole, web_console

READING = ConsoleOptions(accepted_hosts("127.0.0.1", 8420, ["console.example.com"]))
DOING = ConsoleOptions(READING.hosts, actions=True)
HOST = {"host": "127.0.0.1:8420"}
ACTION = {**HOST, **ACTING, "content-length": "2", "sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8420"}


def refusal(options: ConsoleOptions, method: str, headers: dict[str, str], path: str = "/api/v1/x") -> str:
    try:
        check(method, path, headers, options)
    except Refused as refused:
        return refused.code
    return ""


@pytest.mark.parametrize("host", ["127.0.0.1:8420", "LOCALHOST:8420", "[::1]:8420", "console.example.com"])
def test_names_of_this_console_are_answered(host: str) -> None:
    assert refusal(READING, "GET", {"host": host}) == ""


@pytest.mark.parametrize("host", ["", "evil.example.com", "127.0.0.1:8421", "127.0.0.1", "localhost:8420.evil.com"])
def test_no_other_name_is(host: str) -> None:
    assert refusal(READING, "GET", {"host": host}) == "unknown_host"
    assert refusal(READING, "GET", {"host": host}, "/readyz") == ""


def test_a_console_only_reads_unless_it_was_started_with_actions() -> None:
    assert refusal(READING, "POST", ACTION) == "read_only"
    assert refusal(DOING, "POST", ACTION) == ""
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT"):
        assert refusal(DOING, method, ACTION) == "method"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"x-rebaser-action": ""}, "not_from_console"),
        ({"sec-fetch-site": "cross-site"}, "not_from_console"),
        ({"sec-fetch-site": "same-site"}, "not_from_console"),
        ({"origin": "http://evil.example.com"}, "not_from_console"),
        ({"origin": "null"}, "not_from_console"),
        ({"origin": "https://127.0.0.1:8420.evil.com"}, "not_from_console"),
        ({"content-type": "text/plain"}, "not_json"),
        ({"content-length": str(MAX_BODY + 1)}, "too_large"),
        ({"content-length": ""}, "too_large"),
        ({"content-length": "9" * 400}, "too_large"),
    ],
)
def test_an_action_of_another_site_is_refused(changes: dict[str, str], code: str) -> None:
    assert refusal(DOING, "POST", ACTION | changes) == code


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_page_of_another_site_cannot_make_the_console_work(method: str) -> None:
    for site in ("cross-site", "same-site"):
        given = HOST | {"sec-fetch-site": site}
        assert refusal(READING, method, given) == "not_from_console"
        assert refusal(READING, method, given, "/change-sets/shop/main") == "", "links to pages work from everywhere"
    for site in ("same-origin", "none"):
        assert refusal(READING, method, HOST | {"sec-fetch-site": site}) == ""


def test_an_address_that_others_can_reach_needs_a_word() -> None:
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        check_exposure(host, OpenAccess(), insecure=False)
    for host in ("0.0.0.0", "::", "10.0.0.7", "console.example.com"):
        with pytest.raises(ConfigError, match=r"change them.*--auth token.*--insecure"):
            check_exposure(host, OpenAccess(), insecure=False)
        check_exposure(host, OpenAccess(), insecure=True)
        check_exposure(host, TokenAccess("x" * 20), insecure=False)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "path", ["/", "/nowhere", "/static/style.css", "/static/none", "/api/v1/overview", "/api/v1/x"]
)
async def test_each_answer_has_the_headers(console: WebConsole, path: str) -> None:
    reply = await console.ask(path)
    assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS
    assert ("no-store" in reply.headers.get("cache-control", "")) != path.startswith("/static/")
    assert "server" not in reply.headers


@pytest.mark.parametrize(
    "name", ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-User", "X-Real-IP"]
)
@pytest.mark.anyio
async def test_without_a_login_a_proxy_does_not_open_the_console_to_everybody(console: WebConsole, name: str) -> None:
    for path in ("/", "/api/v1/overview", "/static/style.css"):
        reply = await console.ask(path, headers={name: "203.0.113.9"})
        assert (reply.status, reply.json()["error"]["code"]) == (403, "forwarded"), path
    assert (await console.ask("/livez", headers={name: "203.0.113.9"})).status == 200, "a probe tells nothing"


@pytest.mark.anyio
async def test_a_proxy_that_only_speaks_an_old_http_is_noticed_too(console: WebConsole) -> None:
    for version, status in (("1.0", b"403"), ("1.1", b"200")):
        async with await anyio.connect_tcp("127.0.0.1", console.port) as stream:
            head = f"GET / HTTP/{version}\r\nHost: 127.0.0.1:{console.port}\r\nConnection: close\r\n\r\n"
            await stream.send(head.encode())
            with anyio.fail_after(60):
                assert (await BufferedByteReceiveStream(stream).receive_until(b"\r\n", 1000)).split(b" ")[1] == status


@pytest.mark.anyio
async def test_proxies_are_welcome_with_a_login_or_if_somebody_said_so(installation: LocalRebaser) -> None:
    forwarded = {"X-Forwarded-For": "203.0.113.9", "X-User": "ada"}
    by_proxy = ProxyAccess("X-User", read_networks(["127.0.0.0/8"]))
    for options in ({"access": by_proxy}, {"insecure": True}):
        async with web_console(installation.url, **options) as console:
            assert (await console.ask("/", headers=forwarded)).status == 200
            assert b"data-hosts" not in (await console.ask("/", headers=forwarded)).body


@pytest.mark.parametrize(
    ("headers", "version", "dev", "begins", "advice"),
    [
        ({"via": "x"}, "1.1", False, "a proxy forwarded", "use it: start the console with --auth"),
        ({"via": "x"}, "1.0", True, "a proxy forwarded", "use it: run `rebaser console` beside `rebaser dev`, with"),
        ({}, "1.0", False, "a proxy probably forwarded", "to allow this; for health checks, use /livez"),
    ],
)
def test_a_refusal_says_what_to_do(headers: dict[str, str], version: str, dev: bool, begins: str, advice: str) -> None:
    with pytest.raises(Refused) as refused:
        check_direct(headers, version, dev=dev)
    assert refused.value.message.startswith(begins)
    assert advice in refused.value.message


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("console.example.com", True),
        ("Console:8420", True),
        ("127.0.0.1", True),
        ("[::1]:80", True),
        ("[x", False),
        ("[x]", False),
        ("", False),
        (":80", False),
        ("name:port", False),
        ("name:99999", False),
        ("http://name", False),
        ("name/path", False),
        ("ann@name", False),
    ],
)
def test_a_name_that_no_host_header_can_contain_is_told_apart(name: str, accepted: bool) -> None:
    assert is_host(name) == accepted


def test_names_of_other_machines_are_told_apart() -> None:
    assert other_names(accepted_hosts("127.0.0.1", 8420, ["localhost:9000", "127.0.0.1:9000"])) == []
    named = accepted_hosts("127.0.0.1", 8420, ["console.example.com"])
    assert other_names(named) == ["console.example.com", "console.example.com:8420"]


@pytest.mark.anyio
async def test_a_refusal_has_them_too(console: WebConsole) -> None:
    reply = await console.ask("/", headers={"host": "evil.example.com"})
    assert (reply.status, reply.json()["error"]["code"]) == (421, "unknown_host")
    assert reply.headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert (await console.ask("/api/v1/overview", method="POST", headers=ACTING, body=b"{}")).status == 403


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/static/../guard.py", "/static/%2e%2e/guard.py", "/static//etc/passwd", "/static/"])
async def test_no_path_leads_out_of_the_static_files(console: WebConsole, path: str) -> None:
    assert (await console.ask(path)).status == 404

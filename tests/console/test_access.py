"""Who may use a console: sessions of a token, tries, what a proxy says, and which file holds a good token."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from rebaser.console.access import rules
from rebaser.console.access.rules import (
    ALL_TRIES,
    SESSION,
    TRIES,
    OpenAccess,
    ProxyAccess,
    Refused,
    TokenAccess,
    read_networks,
    read_token,
)
from rebaser_core.errors import ConfigError

TOKEN = "a-token-of-this-test"
HOST = (b"host", b"localhost:8420")
OURS = (b"origin", b"http://localhost:8420")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(rules, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def headers_with(cookie: str, *others: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [HOST, *others, (b"cookie", f"theme=dark; {cookie.partition(';')[0]}".encode())]


def refusal(gate: TokenAccess, token: str, peer: str = "10.0.0.1", *more: tuple[bytes, bytes]) -> str:
    try:
        gate.login(token, [HOST, *more], peer)
    except Refused as refused:
        return refused.code
    return ""


def seen(gate: TokenAccess | ProxyAccess, headers: list[tuple[bytes, bytes]], peer: str = "10.0.0.1") -> str:
    try:
        return gate.viewer(headers, peer).user
    except Refused as refused:
        return refused.code


def test_a_session_lasts_twelve_hours_or_until_the_logout(clock: SimpleNamespace) -> None:
    gate = TokenAccess(TOKEN)
    assert seen(gate, [HOST]) == "login_needed"
    viewer, cookie = gate.login(TOKEN, [HOST, OURS], "10.0.0.1")
    assert cookie.startswith("__Host-rebaser-8420=")
    assert cookie.partition("; ")[2] == "Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=43200"
    clock.now += SESSION - 1
    assert seen(gate, headers_with(cookie)) == "token"
    clock.now += 1
    assert seen(gate, headers_with(cookie)) == "login_needed"
    viewer, cookie = gate.login(TOKEN, [HOST], "10.0.0.1")
    assert gate.logout(headers_with(cookie)).startswith("__Host-rebaser-8420=; Path=/; Secure")
    assert seen(gate, headers_with(cookie)) == "login_needed"
    assert viewer.left <= 0, "its live streams end"


def test_nobody_chooses_the_secret_of_a_session() -> None:
    gate = TokenAccess(TOKEN)
    planted = headers_with("__Host-rebaser-8420=planted")
    _, cookie = gate.login(TOKEN, planted, "10.0.0.1")
    assert seen(gate, planted) == "login_needed"
    first, again = headers_with(cookie), gate.login(TOKEN, headers_with(cookie), "10.0.0.1")[1]
    assert (seen(gate, first), seen(gate, headers_with(again))) == ("login_needed", "token"), (
        "a login ends the one before"
    )
    assert seen(TokenAccess(TOKEN), headers_with(again)) == "login_needed", "another process knows nothing of it"
    assert seen(gate, [(b"host", b"localhost:9000"), *headers_with(again)[1:]]) == "login_needed"


def test_sessions_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_SESSIONS", 2)
    gate = TokenAccess(TOKEN)
    (oldest, first), *others = [gate.login(TOKEN, [HOST], "10.0.0.1") for _ in range(3)]
    assert (seen(gate, headers_with(first)), oldest.left <= 0) == ("login_needed", True)
    assert [seen(gate, headers_with(cookie)) for _, cookie in others] == ["token", "token"]


def test_wrong_tokens_are_few_a_minute(clock: SimpleNamespace) -> None:
    gate = TokenAccess(TOKEN)
    assert [refusal(gate, wrong) for wrong in ("", TOKEN[:-1], f"{TOKEN}x", "\udc00", "é")] == ["wrong_token"] * TRIES
    assert refusal(gate, TOKEN) == "too_many_tries", "else the answer would tell which one was right"
    assert refusal(gate, TOKEN, "10.0.0.2") == ""
    clock.now += 59
    assert refusal(gate, TOKEN) == "too_many_tries"
    clock.now += 1
    assert refusal(gate, TOKEN) == ""


def test_many_addresses_do_not_help(clock: SimpleNamespace) -> None:
    gate = TokenAccess(TOKEN)
    found = [refusal(gate, "wrong", f"10.0.{number}.1") for number in range(ALL_TRIES + 1)]
    assert found == ["wrong_token"] * ALL_TRIES + ["too_many_tries"]
    clock.now += 61
    same = [refusal(gate, "wrong", f"2001:db8::{number:x}") for number in range(TRIES + 1)]
    assert same[-1] == "too_many_tries", "one customer has many addresses"


def test_addresses_that_tried_are_bounded_in_number(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_ADDRESSES", 3)
    gate = TokenAccess(TOKEN)
    for number in range(20):
        clock.now += 10
        refusal(gate, "wrong", f"10.0.{number}.1")
    assert len(gate._tries.by_address) == 3


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        (b"http://console.example.com", "not_https"),
        (b"http://10.0.0.7:8420", "not_https"),
        (b"https://console.example.com", ""),
        (b"http://localhost:8420", ""),
        (b"http://127.0.0.1:8420", ""),
        (b"http://[::1]:8420", ""),
    ],
)
def test_a_session_is_not_begun_where_others_could_read_it(origin: bytes, code: str) -> None:
    assert refusal(TokenAccess(TOKEN), TOKEN, "10.0.0.1", (b"origin", origin)) == code


def test_a_user_counts_only_from_the_proxy() -> None:
    gate = ProxyAccess("X-Forwarded-User", read_networks(["10.1.0.0/16", "fd00::/8"]))
    ann = (b"x-forwarded-user", b"ann")
    assert [seen(gate, [ann], peer) for peer in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::7")] == ["ann"] * 3
    for peer in ("10.2.0.1", "127.0.0.1", "::1", "", "unix", "2001:db8::1"):
        assert seen(gate, [ann], peer) == "not_from_proxy"
    assert gate.viewer([ann], "10.1.2.3").left < math.inf, "a live stream asks the proxy again"


def test_the_token_tells_sessions_apart() -> None:
    gate = TokenAccess(TOKEN)
    logins = [gate.login(TOKEN, [HOST], "127.0.0.1") for _ in range(2)]
    names = [gate.viewer(headers_with(cookie), "127.0.0.1").name for _, cookie in logins]
    assert names == [viewer.session for viewer, _ in logins]
    assert len(set(names)) == 2


def test_the_proxy_tells_users_apart() -> None:
    gate = ProxyAccess("X-User", read_networks(["127.0.0.0/8"]))
    assert [gate.viewer([(b"x-user", user)], "127.0.0.1").name for user in (b"ann", b"bob")] == ["ann", "bob"]


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8::7", "2001:db8::/64"),
        ("127.0.0.1", ""),
        ("127.0.0.2", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        ("", ""),
    ],
)
def test_without_a_login_an_address_tells_viewers_apart_unless_it_is_the_end_of_a_tunnel(peer: str, name: str) -> None:
    assert OpenAccess().viewer([], peer).name == name


@pytest.mark.parametrize("users", [[], [b""], [b"  "], [b"ann", b"eve"], [b"a\nb"], [b"x" * 129], [b"\xff\x00"]])
def test_a_user_has_one_name(users: list[bytes]) -> None:
    gate = ProxyAccess("X-Forwarded-User", read_networks(["10.0.0.0/8"]))
    assert seen(gate, [(b"X-Forwarded-User", user) for user in users]) == "no_user"
    assert seen(gate, [(b"X_Forwarded_User", b"ann"), (b"x-forwarded-users", b"ann")]) == "no_user"


@pytest.mark.parametrize("text", ["0.0.0.0/0", "::/0", "10.0.0.1/8", "proxy", ""])
def test_which_networks_can_be_trusted(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_networks([text])


def test_a_token_is_long_and_alone_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
    for text in ("", "short", f"{TOKEN} {TOKEN}", "é" * 30, "x" * 1025, f"{TOKEN}\n{TOKEN}"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="openssl") as caught:
            read_token(file)
        assert TOKEN not in caught.value.message
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(tmp_path / "none")

"""Who may use a console: everybody who reaches it, those who know its token, or those whom a proxy names.

Invariants: a session begins only with the token, has a secret that nobody chose, and ends after `SESSION` seconds, at a
logout, or with the process. The token and the secrets of sessions are neither kept nor logged; their digests are
compared in constant time. At most `TRIES` wrong tokens a minute are looked at for each address, and `ALL_TRIES` in all.
What a header says about the user counts only if it came from a proxy that is trusted.
"""

import hmac
import math
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from rebaser_core.errors import ConfigError

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
Network: TypeAlias = IPv4Network | IPv6Network

SESSION = 12 * 3600.0  # seconds
MAX_SESSIONS = 1000
TRIES = 5  # wrong tokens from one address within a minute
ALL_TRIES = 60  # from all of them
MAX_ADDRESSES = 1000
MINUTE = 60.0  # seconds
MAX_USER = 128  # characters
LEAST_TOKEN, MAX_TOKEN = 20, 1024  # characters
MAX_FILE = 4096  # characters of the file with the token
PROXY_STREAM = 600.0  # seconds after which a live stream begins anew, and the proxy decides again
# The beginnings of names of headers that browsers and proxies send with each request.
OTHER_HEADERS = (
    *("accept", "authorization", "cache-", "connection", "content-", "cookie", "forwarded", "host", "if-", "origin"),
    *("priority", "referer", "sec-", "te", "upgrade", "user-agent", "via", "x-real-ip", "x-rebaser-action"),
    *(f"x-forwarded-{what}" for what in ("for", "host", "port", "proto", "server")),
)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Refused(Exception):  # noqa: N818 - named after the outcome
    """The request breaks a rule."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass(slots=True)
class Viewer:
    """Somebody who may use the console until `until` (monotonic seconds). `user` is their name, as far as it is known;
    `session` tells the sessions of a token apart in the log. `address` is the address of a viewer about whom nothing
    else is known; it is empty if other viewers may have the same one."""

    user: str = ""
    session: str = ""
    until: float = math.inf
    address: str = ""

    @property
    def name(self) -> str:
        """The session, user or address under which what this viewer uses is counted; empty if others may share it."""
        return self.session or self.user or self.address

    @property
    def left(self) -> float:
        """The remaining seconds."""
        return self.until - time.monotonic()

    @property
    def logged(self) -> dict[str, str]:
        """The fields that tell who it was, for a log event."""
        return {name: text for name, text in (("user", self.user), ("session", self.session)) if text}


class AccessRule(Protocol):
    """Decides who may use a console."""

    @property
    def kind(self) -> str:
        """The word for it: `none`, `token` or `proxy`."""

    def viewer(self, headers: Headers, peer: str) -> Viewer:
        """Return who sent a request with these headers from the address `peer`. Raises `Refused`."""


class OpenAccess:
    """Everybody who reaches the console may use it."""

    kind = "none"

    def viewer(self, headers: Headers, peer: str) -> Viewer:  # noqa: ARG002
        return Viewer(address=_own_address(peer))


@dataclass(frozen=True, slots=True)
class ProxyAccess:
    """A proxy at an address in `networks` asks for a login, and names the user in the header `header`."""

    header: str
    networks: Sequence[Network]
    kind: str = "proxy"

    def viewer(self, headers: Headers, peer: str) -> Viewer:
        if not self._is_trusted(peer):
            raise Refused(403, "not_from_proxy", "this console is reached only through its proxy")
        wanted = self.header.lower().encode()
        found = [value for name, value in headers if name.lower() == wanted]
        if len(found) != 1:  # a proxy that adds a second header would leave the choice to whoever sent the first
            raise Refused(
                403, "no_user", f"the proxy has to send exactly one header {self.header}; it sent {len(found)}"
            )
        user = found[0].decode("utf-8", "replace").strip()
        if not user or len(user) > MAX_USER or not user.isprintable():
            raise Refused(403, "no_user", f"the header {self.header} has to name a user in up to {MAX_USER} characters")
        return Viewer(user, until=time.monotonic() + PROXY_STREAM)

    def _is_trusted(self, peer: str) -> bool:
        address = _address_of(peer)
        return address is not None and any(address in network for network in self.networks)


@dataclass(slots=True)
class _Tries:
    """When wrong tokens came, by address."""

    by_address: OrderedDict[str, deque[float]] = field(default_factory=OrderedDict)
    all: deque[float] = field(default_factory=lambda: deque(maxlen=ALL_TRIES))

    def wait(self, address: str) -> float:
        """Return after how many seconds the next try from `address` is looked at; 0 if now."""
        own = self.by_address.get(address, deque[float]())
        return max(_wait(own, TRIES), _wait(self.all, ALL_TRIES))

    def add(self, address: str) -> None:
        now = time.monotonic()
        self.by_address.setdefault(address, deque(maxlen=TRIES)).append(now)
        self.by_address.move_to_end(address)
        self.all.append(now)
        if len(self.by_address) > MAX_ADDRESSES:
            self.by_address.popitem(last=False)


def _wait(times: deque[float], most: int) -> float:
    return max(0.0, MINUTE - (time.monotonic() - times[0])) if len(times) >= most else 0.0


class TokenAccess:
    """Those who sent the token once may use the console for the duration of a session."""

    kind = "token"

    def __init__(self, token: str) -> None:
        self._digest = _digest(token)
        self._sessions: OrderedDict[bytes, Viewer] = OrderedDict()
        self._tries = _Tries()

    def viewer(self, headers: Headers, peer: str) -> Viewer:  # noqa: ARG002
        given = list(headers)
        found = self._sessions.get(_digest(cookie_of(given, cookie_name(host_of(given)))))
        if found is None or found.left <= 0:
            raise Refused(401, "login_needed", "log in first: this console needs its token")
        return found

    def check_tries(self, peer: str) -> None:
        """Raise `Refused` if too many wrong tokens came, from this address or in all."""
        if wait := self._tries.wait(_network_of(peer)):
            raise Refused(429, "too_many_tries", f"too many wrong tokens; try again in {math.ceil(wait)} s")

    def login(self, token: str, headers: Headers, peer: str) -> tuple[Viewer, str]:
        """Begin a session; return it with its cookie. Raises `Refused` for a wrong token, too many of them, or a
        browser that could not keep the session secret."""
        given = list(headers)
        origin = urlsplit(header_of(given, "origin"))
        if origin.scheme == "http" and origin.hostname not in LOOPBACK_NAMES:
            raise Refused(400, "not_https", "over plain http, others could read the token: use https, or a tunnel")
        self.check_tries(peer)
        if not hmac.compare_digest(_digest(token), self._digest):
            self._tries.add(_network_of(peer))
            raise Refused(403, "wrong_token", "this is not the token of this console")
        self.logout(given)
        name, secret = cookie_name(host_of(given)), secrets.token_urlsafe(32)
        viewer = Viewer("token", secrets.token_hex(4), time.monotonic() + SESSION)
        self._sessions[_digest(secret)] = viewer
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)[1].until = 0.0
        return viewer, _cookie(name, secret, int(SESSION))

    def logout(self, headers: Headers) -> str:
        """End the session of a request; return the cookie that makes the browser forget it."""
        given = list(headers)
        name = cookie_name(host_of(given))
        ended = self._sessions.pop(_digest(cookie_of(given, name)), None)
        if ended is not None:
            ended.until = 0.0
        return _cookie(name, "", 0)


def read_token(path: Path) -> str:
    """Return the token in a file. Raises `ConfigError`."""
    try:
        with path.open(encoding="utf-8") as file:
            token = file.read(MAX_FILE).strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the token in {path} cannot be read: {error}") from None
    if not LEAST_TOKEN <= len(token) <= MAX_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{path} has to hold one token of {LEAST_TOKEN} to {MAX_TOKEN:,} ASCII characters without spaces;"
            " make one with `openssl rand -hex 32`"
        )
    return token


def read_networks(texts: Iterable[str]) -> list[Network]:
    """Return the networks in CIDR notation. Raises `ValueError`, also for the network of all addresses."""
    found = [ip_network(text) for text in texts]
    if any(network.prefixlen == 0 for network in found):
        raise ValueError("this would trust everybody; name the addresses of the proxy")
    return found


def is_user_header(name: str) -> bool:
    """Return whether `name` can be a header in which a proxy names the user, and not one that browsers or proxies send
    anyway."""
    plain = name.lower()
    return re.fullmatch(r"[a-z0-9-]{1,64}", plain) is not None and not plain.startswith(OTHER_HEADERS)


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _address_of(peer: str) -> IPv4Address | IPv6Address | None:
    """Return the address of `peer`; None if it is not one. An IPv4 address that an IPv6 socket shows is IPv4."""
    try:
        address = ip_address(peer)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _network_of(peer: str) -> str:
    """Return the address under which tries and streams are counted together: of IPv6, the network that one customer
    usually gets."""
    address = _address_of(peer)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, 64), strict=False))
    return peer if address is None else str(address)


def _own_address(peer: str) -> str:
    """Return the address of a viewer; empty for a loopback address, which all viewers behind a tunnel share."""
    address = _address_of(peer)
    return "" if address is not None and address.is_loopback else _network_of(peer)


def header_of(headers: Headers, name: str) -> str:
    """Return the first header `name`; empty without one."""
    wanted = name.encode()
    return next((value.decode("latin-1") for given, value in headers if given.lower() == wanted), "")


def host_of(headers: Headers) -> str:
    return header_of(headers, "host")


def cookie_name(host: str) -> str:
    """Return the name of the cookie. Browsers do not tell the ports of a host apart; consoles behind two tunnels would
    overwrite each other's sessions. The prefix makes browsers refuse a cookie that another host or plain http set."""
    port = host.rpartition(":")[2]
    return f"__Host-rebaser-{port}" if port.isdecimal() else "__Host-rebaser"


def cookie_of(headers: Headers, name: str) -> str:
    """Return the cookie `name` of a request; empty without one."""
    for given, value in headers:
        if given.lower() == b"cookie":
            for part in value.decode("latin-1").split(";"):
                found, _, text = part.strip().partition("=")
                if found == name:
                    return text
    return ""


def _cookie(name: str, secret: str, seconds: int) -> str:
    return f"{name}={secret}; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={seconds}"

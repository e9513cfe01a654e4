"""Core NATS messages and their headers.

Invariant: `headers` is always a dict, empty if the message has none. Header names are case-sensitive.
"""

from functools import lru_cache
from typing import Any

# The inline status of a message (`NATS/1.0 503 No Responders`) is stored in the headers under these names. No real
# header can have such a name, so a publisher cannot forge a status.
STATUS = ":status"
DESCRIPTION = ":description"

# The longest header line that is cached, in bytes. Lines with content types, message types and versions are shorter.
# Lines with an id or an inbox are longer and never recur, so they would only evict other lines from the cache.
CACHED_LINE_MAX = 38


class Msg:
    """A core NATS message. `reply` is the subject for an answer, and empty if the sender expects no answer."""

    __slots__ = ("data", "headers", "reply", "subject")

    def __init__(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self.headers = {} if headers is None else headers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.subject!r}, {len(self.data)} bytes)"


def parse_headers(raw: bytes) -> dict[str, str]:
    """Parse headers: a `NATS/1.0` line, which may contain a status, then `Name: value` lines.

    Lines without a colon or with an invalid name are skipped. If a name is repeated, the last line with it is used.
    """
    lines = raw.split(b"\r\n")
    first = lines[0]
    headers: dict[str, str] = {}
    for line in lines[1:]:
        if line:  # the last two are empty
            pair = _cached_header(line) if len(line) <= CACHED_LINE_MAX else _header(line)
            if pair is not None:
                headers[pair[0]] = pair[1]
    if len(first) > len(b"NATS/1.0"):
        _, _, status = first.partition(b" ")
        number, _, description = status.strip().partition(b" ")
        if number.isdigit():
            headers[STATUS] = text(number)
            headers[DESCRIPTION] = text(description.strip())
    return headers


def _header(line: bytes) -> tuple[str, str] | None:
    name, colon, value = line.partition(b":")
    key = (_cached_name if len(name) <= CACHED_LINE_MAX else _name)(name)
    return (key, value.strip().decode("utf-8", "replace")) if colon and key is not None else None


def _name(raw: bytes) -> str | None:
    name = raw.strip()
    return name.decode("ascii") if name.isascii() and len(name.split()) == 1 else None


_cached_name = lru_cache(maxsize=256)(_name)


# Parsed lines are cached, because most header lines of a connection recur.
_cached_header = lru_cache(maxsize=4096)(_header)


def text(raw: bytes) -> str:
    """Decode UTF-8; invalid bytes become replacement characters."""
    return raw.decode("utf-8", "replace")


def as_int(value: Any) -> int:
    """Return `value` as an integer; 0 if it cannot be converted."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0

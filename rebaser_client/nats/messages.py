"""Core NATS messages and their headers.

Invariant: `headers` is always a dict, empty if the message has none. Header names are case-sensitive.
"""

from typing import Any, TypeVar

# The inline status of a message (`NATS/1.0 503 No Responders`) is stored in the headers under these names. No real
# header can have such a name, so a publisher cannot forge a status.
STATUS = ":status"
DESCRIPTION = ":description"

# The longest header line that is kept, in bytes. Lines with content types, message types and versions are shorter.
# Lines with an id or an inbox are longer and never recur, so they would only take the place of other lines.
KEPT_LINE_MAX = 38
KEPT_MAX = 4096  # maximum number of lines that are kept, and of names

_T = TypeVar("_T")

# Parsed lines and names are kept, because most header lines of a connection recur.
_kept_lines: dict[bytes, tuple[str, str]] = {}
_kept_names: dict[bytes, str] = {}


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
    del lines[0]
    headers: dict[str, str] = {}
    for line in lines:
        if not line:  # the last two are empty
            continue
        kept = _kept_lines.get(line)
        if kept is not None:
            headers[kept[0]] = kept[1]
        else:
            raw_name, colon, raw_value = line.partition(b":")
            name = _kept_names.get(raw_name)
            if name is None:
                name = _name(raw_name)
            if name and colon:
                value = headers[name] = raw_value.strip().decode("utf-8", "replace")
                if len(line) <= KEPT_LINE_MAX:
                    _keep(_kept_lines, line, (name, value))
    if len(first) > len(b"NATS/1.0"):
        _, _, status = first.partition(b" ")
        number, _, description = status.strip().partition(b" ")
        if number.isdigit():
            headers[STATUS] = text(number)
            headers[DESCRIPTION] = text(description.strip())
    return headers


def _name(raw: bytes) -> str:
    """Parse the name of a header. Return an empty string for an invalid name."""
    name = raw.strip()
    parsed = name.decode("ascii") if name.isascii() and len(name.split()) == 1 else ""
    if len(raw) <= KEPT_LINE_MAX:
        _keep(_kept_names, raw, parsed)
    return parsed


def _keep(kept: dict[bytes, _T], raw: bytes, parsed: _T) -> None:
    if len(kept) >= KEPT_MAX:
        kept.clear()
    kept[raw] = parsed


def text(raw: bytes) -> str:
    """Decode UTF-8; invalid bytes become replacement characters."""
    return raw.decode("utf-8", "replace")


def as_int(value: Any) -> int:
    """Return `value` as an integer; 0 if it cannot be converted."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0

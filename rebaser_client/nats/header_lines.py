"""Encodes the header lines of messages to send.

Most lines recur, such as those with content types, message types and versions, so they are kept.

Invariant: a line has a valid name, and its only line break is at its end.
"""

import re
from collections.abc import Mapping
from typing import TypeAlias

from rebaser_core.errors import UnprocessableError

MAX_LINES = 256  # maximum number of lines that are kept; the lines that are sent first recur most, so none is replaced
MAX_NAMES = 64  # maximum number of names that are kept
MAX_KEPT_LINE = 128  # bytes; longer lines are not kept

Headers: TypeAlias = dict[str, str] | bytes
"""The headers of a message to send. Bytes are written as they are, so they must be what `encode_headers` returns."""

_BEGIN = b"NATS/1.0\r\n"
_NAME = re.compile(r"[!-9;-~]+")


class _Lines(dict[tuple[str, str], bytes]):
    """The lines by name and value. A line that is not kept is encoded when it is looked up."""

    __slots__ = ()

    def __missing__(self, pair: tuple[str, str]) -> bytes:
        name, text = pair
        begin, text = _begins.get(name) or _begin(name), text.strip()
        if "\n" in text or "\r" in text:
            text = text.replace("\r", " ").replace("\n", " ")
        line = begin + text.encode() + b"\r\n"
        if len(self) < MAX_LINES and len(line) <= MAX_KEPT_LINE:
            self[pair] = line
        return line


_line = _Lines().__getitem__
_begins: dict[str, bytes] = {}  # the name and the colon of a line, encoded, by name


def encode_headers(headers: Mapping[str, str], begin: bytes = _BEGIN) -> bytes:
    """Encode the headers of a message, after the lines in `begin`. Line breaks in values become spaces.

    Raise `UnprocessableError` for an invalid name.
    """
    return b"".join([begin, *map(_line, headers.items()), b"\r\n"])


def with_number(headers: Headers | None, name: str, number: int) -> bytes:
    """Encode `headers` with another header, which replaces one of the same name: NATS uses the first. `name` must be
    valid. The line is not looked up, because numbers hardly recur."""
    begin = f"NATS/1.0\r\n{name}: {number}\r\n".encode()
    return begin + headers[len(_BEGIN) :] if isinstance(headers, bytes) else encode_headers(headers or {}, begin)


def _begin(name: str) -> bytes:
    """Return the bytes with which a line for the header `name` begins."""
    stripped = name.strip()
    if _NAME.fullmatch(stripped) is None:
        text = "the name of a header is empty, or has a space, a colon, or a character that is not printable ASCII"
        raise UnprocessableError(text, code="invalid_header")
    begin = f"{stripped}: ".encode()
    if len(_begins) < MAX_NAMES:
        _begins[name] = begin
    return begin

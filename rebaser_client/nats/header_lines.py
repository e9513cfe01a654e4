"""Encodes the header lines of messages to send.

Most lines recur, such as those with content types, message types and versions, so they are kept.

Invariant: a line has a valid name, and its only line break is at its end.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

import nats.errors

MAX_LINES = 256  # maximum number of lines that are kept; the lines that are sent first recur most, so none is replaced
MAX_KEPT_LINE = 128  # bytes; longer lines are not kept

Headers: TypeAlias = dict[str, str] | bytes
"""The headers of a message to send. Bytes are written as they are, so they must be what `encode_headers` returns."""

_NAME = re.compile(r"[!-9;-~]+")


class _Lines(dict[tuple[str, str], bytes]):
    """The lines by name and value. A line that is not kept is encoded when it is looked up."""

    __slots__ = ()

    def __missing__(self, pair: tuple[str, str]) -> bytes:
        name, text = _checked_name(pair[0]), pair[1].strip()
        if "\n" in text or "\r" in text:
            text = text.replace("\r", " ").replace("\n", " ")
        line = f"{name}: {text}\r\n".encode()
        if len(self) < MAX_LINES and len(line) <= MAX_KEPT_LINE:
            self[pair] = line
        return line


_line = _Lines().__getitem__


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Encode the headers of a message. Line breaks in values become spaces.

    Raise `BadHeaderError` for an invalid name.
    """
    return b"".join([b"NATS/1.0\r\n", *map(_line, headers.items()), b"\r\n"])


@lru_cache(maxsize=64)
def _checked_name(name: str) -> str:
    stripped = name.strip()
    if _NAME.fullmatch(stripped) is None:
        raise nats.errors.BadHeaderError(stripped)
    return stripped

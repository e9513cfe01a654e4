"""Writes CBOR (RFC 8949) in pieces, for messages that are needed for each request.

Invariant: each function returns the bytes that cbor2 writes for the same value. For small messages, cbor2 takes twice
as long as code that joins such pieces with constant ones, such as the names of fields.
"""

from functools import lru_cache
from struct import Struct
from typing import Any

from rebaser_core.encoding.payload import CBOR, LIST, MAP, TEXT, dumps, head

UINT = 0  # the CBOR major type of integers that are not negative
_FEW = 256  # the heads of smaller numbers and lengths are looked up

_pack_16, _pack_32 = Struct(">BH").pack, Struct(">BI").pack  # faster than `to_bytes`
_UINTS, _TEXTS, _LISTS, _MAPS = ([head(major, size) for size in range(_FEW)] for major in (UINT, TEXT, LIST, MAP))


def uint(number: int) -> bytes:
    """Write an integer from 0 to 2**64 - 1. Raise `OverflowError` for any other integer."""
    if number < _FEW:
        return _UINTS[number] if number >= 0 else number.to_bytes(8)  # which raises the error
    if number < 0x10000:
        return _pack_16(0x19, number)
    return _pack_32(0x1A, number) if number < 0x100000000 else b"\x1b" + number.to_bytes(8)


def text(content: str) -> bytes:
    """Write a text. Raise `UnicodeEncodeError` if it has a lone surrogate."""
    raw = content.encode()
    size = len(raw)
    return (_TEXTS[size] if size < _FEW else head(TEXT, size)) + raw


often = lru_cache(maxsize=64)(text)  # for texts that most messages have, such as the name of the server


def item(value: Any) -> bytes:
    """Write a JSON value. Raise `UnprocessableError` if it cannot be encoded."""
    return uint(value) if type(value) is int and value >= 0 else dumps(CBOR, value)


def list_head(size: int) -> bytes:
    """Write the head of a list. The items must follow."""
    return _LISTS[size] if size < _FEW else head(LIST, size)


def map_head(size: int) -> bytes:
    """Write the head of a map with fewer than 256 entries. The keys and the values must follow in turn."""
    return _MAPS[size]

"""Columns as bytes: the one form of packets, results and structures.

    "RBC1" | length of the head, 4 bytes | head | column | column ...

The head is CBOR: what the sender says of it all, and name, type and length of each column. Columns are arrays in little
endian, or bytes, each at a multiple of 8. Arrow IPC would do too; for what is small, and most updates are, it costs ten
times as much.

Invariant: no length is believed. What does not fit into the bytes that are there is refused before anything is made.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final

import cbor2
import numpy as np
import pyarrow as pa

from rebaser_core.errors import DvuError

_START: Final = struct.Struct("<4sI")
_MAGIC: Final = b"RBC1"
_TYPES: Final = [np.dtype(name) for name in ("u1", "<u2", "<u4", "<i4", "<i8")]
_CODES: Final = {kind: code for code, kind in enumerate(_TYPES)}
_KINDS: Final = dict(enumerate(_TYPES))
_BYTES: Final = -1


def pack(meta: Mapping[str, Any], columns: Mapping[str, Any]) -> bytes:
    """`columns`, arrays of one dimension or bytes, with `meta`, which CBOR can hold."""
    about: list[tuple[str, int, int]] = []
    parts: list[Any] = []
    for name, value in columns.items():
        if isinstance(value, bytes):
            about.append((name, _BYTES, len(value)))
            size = len(value)
        else:
            about.append((name, _CODES[value.dtype], len(value)))
            size = value.nbytes
            value = np.ascontiguousarray(value)  # noqa: PLW2901
        if size:
            parts.append(value)
            if size % 8:
                parts.append(bytes(-size % 8))
    head: bytes = cbor2.dumps((meta, about))
    head += bytes(-len(head) % 8)
    return b"".join((_START.pack(_MAGIC, len(head)), head, *parts))


def unpack(data: bytes | pa.Buffer, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `pack` was given, arrays in the memory of `data`. Raises `DvuError`, naming `what` it is not."""
    try:
        magic, length = _START.unpack_from(data)
        at = _START.size + length
        if magic != _MAGIC or length % 8 or at > len(data):
            raise ValueError("it does not begin as one, or not all of it is there")  # noqa: TRY301
        meta, about = cbor2.loads(bytes(memoryview(data)[_START.size : at]))
        columns: dict[str, Any] = {}
        for name, code, count in about:
            kind = np.dtype("u1") if code == _BYTES else _KINDS[code]
            size = count * kind.itemsize
            if not 0 <= size <= len(data) - at:
                raise ValueError(f"column {name!r} is not all there")  # noqa: TRY301
            if code == _BYTES:
                columns[name] = bytes(memoryview(data)[at : at + size])
            else:
                columns[name] = np.frombuffer(data, kind, count, at) if count else np.empty(0, kind)
            at += size + -size % 8
        if type(meta) is not dict:
            raise ValueError("it says nothing of itself")  # noqa: TRY301
    except Exception as error:  # noqa: BLE001 - whatever a decoder raises
        raise DvuError(f"unreadable {what}: {type(error).__name__}: {str(error)[:200]}") from None
    return meta, columns

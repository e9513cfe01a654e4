"""Encodes named columns as bytes. Packets, results and structures all have this form.

    "RBC1" | length of the head, 4 bytes | head | column | column ...

The head is CBOR: the sender's metadata, then the name, type and length of each column. A column is a little-endian
array or a byte string, and its offset is a multiple of 8 bytes. Arrow IPC is not used, because it takes ten times as
long for small messages, and most messages are small.

Invariant: a length that exceeds the available bytes is refused before memory is allocated.
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
_CODES: Final = {dtype: code for code, dtype in enumerate(_TYPES)}
_DTYPES: Final = dict(enumerate(_TYPES))
_BYTES: Final = -1


def pack(meta: Mapping[str, Any], columns: Mapping[str, Any]) -> bytes:
    """Return `columns` (arrays of one dimension, or bytes) and `meta` (values that CBOR supports) encoded as bytes."""
    headers: list[tuple[str, int, int]] = []
    parts: list[Any] = []
    for name, value in columns.items():
        if isinstance(value, bytes):
            headers.append((name, _BYTES, len(value)))
            size = len(value)
        else:
            headers.append((name, _CODES[value.dtype], len(value)))
            size = value.nbytes
            value = np.ascontiguousarray(value)  # noqa: PLW2901
        if size:
            parts.append(value)
            if size % 8:
                parts.append(bytes(-size % 8))
    head: bytes = cbor2.dumps((meta, headers))
    head += bytes(-len(head) % 8)
    return b"".join((_START.pack(_MAGIC, len(head)), head, *parts))


def unpack(data: bytes | pa.Buffer, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the `meta` and `columns` that `pack` encoded as `data`. The arrays share the memory of `data`.

    Raise `DvuError` if the bytes are malformed. `what` says in the error message what the bytes are.
    """
    try:
        magic, length = _START.unpack_from(data)
        offset = _START.size + length
        if magic != _MAGIC or length % 8 or offset > len(data):
            raise ValueError("its beginning is wrong, or it is truncated")  # noqa: TRY301
        meta, headers = cbor2.loads(bytes(memoryview(data)[_START.size : offset]))
        columns: dict[str, Any] = {}
        for name, code, count in headers:
            if type(name) is not str:
                raise ValueError("the name of a column is not text")  # noqa: TRY301
            dtype = np.dtype("u1") if code == _BYTES else _DTYPES[code]
            size = count * dtype.itemsize
            if not 0 <= size <= len(data) - offset:
                raise ValueError(f"column {name!r} is truncated")  # noqa: TRY301
            if code == _BYTES:
                columns[name] = bytes(memoryview(data)[offset : offset + size])
            else:
                columns[name] = np.frombuffer(data, dtype, count, offset) if count else np.empty(0, dtype)
            offset += size + -size % 8
        if type(meta) is not dict:
            raise ValueError("its metadata is not a map")  # noqa: TRY301
    except Exception as error:  # noqa: BLE001 - malformed bytes may cause any exception
        raise DvuError(f"unreadable {what}: {type(error).__name__}: {str(error)[:200]}") from None
    return meta, columns

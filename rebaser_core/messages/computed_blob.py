"""Encodes and decodes blobs that contain the results of a large update in columns (`ComputedTable`).

Invariant: `decode_table` returns a table equal to the one that `encode_table` encoded. It refuses any other bytes, and
tables with a value that cannot be stored.

A blob contains `{"v2": {"computed": {…}}}` in CBOR. The inner map has these fields:

- `ids`: a text with one id in each line; ids contain no line breaks.
- `kinds`: one byte for each id: 0 null, 1 false, 2 true, 3 integer, 4 double, 5 any other value.
- `numbers`: 8 bytes, little endian, for each integer or double, in the order of their ids.
- `others`: the values of kind 5, in the order of their ids.
- `errors`: for each failed value, a list of its position, and the code, message and origin of its fault.
"""

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np

from rebaser_core.encoding.payload import BYTES, CBOR, MAP, TEXT, check_tree, dumps, head, malformed, read_unchecked
from rebaser_core.errors import UnprocessableError
from rebaser_core.limits import Limits
from rebaser_core.state.computed_table import ComputedTable, RowIds
from rebaser_core.state.kinds import FLOAT, NULL, OTHER, is_number, spread_numbers
from rebaser_core.values import Fault

_BITS = np.dtype("<i8")


def encode_table(table: ComputedTable) -> bytes:
    """Encode `table` as a blob in the format that the docstring of this module describes."""
    kinds = table.kinds
    numbers = is_number(kinds)
    bits = table.bits if numbers.all() else table.bits[numbers]
    ids = table.ids.lines() if isinstance(table.ids, RowIds) else "\n".join(table.ids).encode()
    faults = sorted(table.faults.items())
    columns: dict[str, tuple[Any, ...]] = {  # all parts are joined at the end, so each is copied only once
        "ids": (head(TEXT, len(ids)), ids),
        "kinds": (head(BYTES, len(kinds)), kinds.tobytes()),
        "numbers": (head(BYTES, bits.nbytes), np.ascontiguousarray(bits, _BITS).data),
        "others": (dumps(CBOR, [table.others[position] for position in np.flatnonzero(kinds == OTHER).tolist()]),),
        "errors": (dumps(CBOR, [[position, fault.code, fault.message, fault.origin] for position, fault in faults]),),
    }
    frame = dumps(CBOR, {"v2": {"computed": 0}})[:-1]
    encoded = (part for name, parts in columns.items() for part in (dumps(CBOR, name), *parts))
    return b"".join((frame, head(MAP, len(columns)), *encoded))


def decode_table(data: bytes, limits: Limits) -> ComputedTable:
    """Return the table in the blob `data`. Raise `UnprocessableError` if the blob is invalid or exceeds `limits`."""
    text, table = _open(data, limits)
    return replace(table, ids=text.split("\n") if text else [])


def check_table(data: bytes, table: ComputedTable, limits: Limits) -> None:
    """Raise `UnprocessableError` if the blob `data` does not decode to `table`.

    The ids in the blob are validated, but not compared with those of `table`, because that would mean creating a string
    for each id.
    """
    if len(data) > limits.max_request_bytes:
        raise UnprocessableError(
            f"the blob has {len(data)} bytes; at most {limits.max_request_bytes} are allowed", code="too_large"
        )
    _, decoded = _open(data, limits)
    numbers = is_number(table.kinds)
    if not np.array_equal(decoded.kinds, table.kinds) or not np.array_equal(decoded.bits[numbers], table.bits[numbers]):
        raise malformed("the kinds or numbers in the blob are not those of the table that was encoded")
    if decoded.others != table.others or decoded.faults != table.faults:
        raise malformed("the values or errors in the blob are not those of the table that was encoded")


def _open(data: bytes, limits: Limits) -> tuple[str, ComputedTable]:
    """Check the whole blob. Return the ids as one text, with an id in each line, and the table without ids."""
    source = BytesIO(data)
    raw = read_unchecked(source, limits)  # `check_tree` runs below, and only for the values that are not in columns
    if source.tell() != len(data):
        raise malformed("unexpected bytes follow the table")
    body = _only(_only(raw, "v2"), "computed")
    if type(body) is not dict or set(body) != {"ids", "kinds", "numbers", "others", "errors"}:
        raise malformed("a table must be a map with the keys 'ids', 'kinds', 'numbers', 'others' and 'errors'")
    ids, kinds = body["ids"], np.frombuffer(_bytes(body["kinds"]), np.uint8)
    if len(kinds) != _check_ids(ids, limits) or (len(kinds) and kinds.max() > OTHER):
        raise malformed(f"the field 'kinds' of a table must have exactly one byte per id, from 0 to {OTHER}")
    bits = _bits(_bytes(body["numbers"]), kinds)
    places = np.flatnonzero(kinds == OTHER).tolist()
    others, errors = body["others"], body["errors"]
    if type(others) is not list or len(others) != len(places) or type(errors) is not list:
        raise malformed(f"the field 'others' of a table must have exactly one item per id of kind {OTHER}")
    check_tree(others)
    faults = dict(_fault(row, kinds) for row in errors)
    return ids, ComputedTable([], kinds, bits, dict(zip(places, others, strict=True)), faults)


def _only(raw: object, key: str) -> Any:
    if type(raw) is not dict or list(raw) != [key]:
        raise malformed(f"expected a map with the single key {key!r}")
    return raw[key]


def _bytes(raw: object) -> bytes:
    if type(raw) is not bytes:
        raise malformed("a column of a table is not a byte string")
    return raw


def _check_ids(text: object, limits: Limits) -> int:
    """Return the number of ids in `text`, which has one id in each line. Raise `UnprocessableError` if `text` or one of
    its ids is invalid."""
    if type(text) is not str:
        raise malformed("the field 'ids' of a table must be a string")
    if not text:
        return 0
    # The array has one element per character, so the lengths of the ids can be computed without creating strings for
    # them.
    ascii_only = text.isascii()
    characters = np.frombuffer(
        text.encode("ascii" if ascii_only else "utf-32-le"), np.uint8 if ascii_only else np.uint32
    )
    ends = np.flatnonzero(characters == ord("\n"))
    lengths = np.diff(ends, prepend=-1, append=len(characters)) - 1
    if len(lengths) > limits.max_updates:
        raise UnprocessableError(
            f"the blob has {len(lengths)} computed values; at most {limits.max_updates} are allowed", code="too_large"
        )
    if lengths.min() == 0 or lengths.max() > limits.max_id_length:
        raise malformed(f"an id in a table is empty, or longer than {limits.max_id_length} characters")
    if not text.replace("\n", "").isprintable():
        raise malformed("an id in a table has a character that is not printable")
    return len(lengths)


def _bits(raw: bytes, kinds: Any) -> Any:
    if len(raw) != 8 * int(is_number(kinds).sum()):
        raise malformed("the field 'numbers' of a table must have exactly 8 bytes per integer or double")
    bits = spread_numbers(kinds, np.frombuffer(raw, _BITS))
    if not np.isfinite(bits[kinds == FLOAT].view(np.float64)).all():
        raise malformed("a number in a table is not finite")
    return bits


def _fault(row: object, kinds: Any) -> tuple[int, Fault]:
    if type(row) is not list or len(row) != 4:
        raise malformed("an error in a table must be a list of position, code, message and origin")
    position, code, message, origin = row
    if type(position) is not int or not 0 <= position < len(kinds) or kinds[position] != NULL:
        raise malformed("the position of an error in a table must be the position of an id whose value is null")
    if not (type(code) is str and type(message) is str and type(origin) is str):
        raise malformed("the code, message and origin of an error in a table must be text")
    return position, Fault(code, message, origin)

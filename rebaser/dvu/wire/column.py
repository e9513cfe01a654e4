"""Defines a column of values that is stored as arrays. The owner and workers exchange values in this form, and compiled
code reads this form.

Invariant: a value is stored as its kind and, if it is a number, its 8 bytes. Texts, lists and maps are stored
separately, by position. A million numbers are therefore two arrays, and never a list.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, overload

import cbor2
import numpy as np
import numpy.typing as npt

from rebaser_core.state.kinds import (
    CONSTANTS,
    FALSE,
    FLOAT,
    INT,
    NULL,
    OTHER,
    TRUE,
    Bits,
    Kinds,
    decode,
    decode_one,
    is_number,
    spread_numbers,
)
from rebaser_core.values import Json

__all__ = [
    "DIGEST",
    "FALSE",
    "FAULT",
    "FLOAT",
    "INT",
    "IN_ERROR",
    "ITEM_OF_KIND",
    "MISSING",
    "NEVER_COMPUTED",
    "NO_VALUE",
    "NULL",
    "OTHER",
    "TRUE",
    "UNKNOWN",
    "Bits",
    "Column",
    "Digest",
    "Item",
    "Kinds",
    "Sentinel",
]  # fmt: skip


# The kinds of items that are not values. `rebaser_core.state.kinds` defines the kinds of values.
FAULT, MISSING, DIGEST, UNKNOWN = range(OTHER + 1, OTHER + 5)


@dataclass(frozen=True, slots=True)
class Digest:
    """The hash of a value or fault, with which a worker detects whether the value or fault changed. `raw` is a blake2b
    hash of 16 bytes."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Sentinel:
    """An item that has a kind but no value, because the value is in error, does not exist, or was never computed."""

    kind: int


IN_ERROR: Final = Sentinel(FAULT)
NO_VALUE: Final = Sentinel(MISSING)
NEVER_COMPUTED: Final = Sentinel(UNKNOWN)

Item: TypeAlias = Json | Digest | Sentinel

ITEM_OF_KIND: Final[dict[int, Item]] = {**CONSTANTS, FAULT: IN_ERROR, MISSING: NO_VALUE, UNKNOWN: NEVER_COMPUTED}
_KINDS: dict[type, int] = {type(None): NULL, int: INT, float: FLOAT, Digest: DIGEST}


class Column(Sequence[Item]):
    """A sequence of items that is stored in arrays. Item `i` has the kind `kinds[i]`. If item `i` is a number,
    `bits[i]` is the integer, or the bits of the double. If it is a text, list, map or digest, it is in `others[i]`."""

    __slots__ = ("bits", "kinds", "others")

    def __init__(self, kinds: Kinds, bits: Bits, others: dict[int, Json | Digest] | None = None) -> None:
        self.kinds = kinds
        self.bits = bits
        self.others = {} if others is None else others

    @classmethod
    def from_items(cls, items: Sequence[Item]) -> "Column":
        """Return a column with these `items`. If `items` is a column, return `items` itself."""
        if isinstance(items, Column):
            return items
        types = set(map(type, items))
        if types == {float}:
            return cls(np.full(len(items), FLOAT, np.uint8), np.array(items, np.float64).view(np.int64))
        if types == {int}:
            return cls(np.full(len(items), INT, np.uint8), np.array(items, np.int64))
        return cls._mixed(items)

    @classmethod
    def _mixed(cls, items: Sequence[Item]) -> "Column":
        kinds = bytearray(len(items))
        bits = np.zeros(len(items), np.int64)
        ints: Any = memoryview(bits)  # type: ignore[arg-type] # an array is a buffer
        floats: Any = memoryview(bits.view(np.float64))  # type: ignore[arg-type]
        others: dict[int, Json | Digest] = {}
        for position, item in enumerate(items):
            kind = _KINDS.get(type(item), OTHER)
            if kind == FLOAT:
                floats[position] = item
            elif kind == INT:
                ints[position] = item
            elif item is True or item is False:
                kind = TRUE if item else FALSE
            elif isinstance(item, Sentinel):
                kind = item.kind
            elif kind != NULL:
                others[position] = item
            kinds[position] = kind
        return cls(np.frombuffer(kinds, np.uint8), bits, others)

    def __len__(self) -> int:
        return len(self.kinds)

    @overload
    def __getitem__(self, position: int) -> Item: ...
    @overload
    def __getitem__(self, position: slice) -> list[Item]: ...
    def __getitem__(self, position: int | slice) -> Item | list[Item]:
        if isinstance(position, slice):
            return self.tolist()[position]
        position = position if position >= 0 else position + len(self.kinds)
        return decode_one(self.kinds, self.bits, self.others, position, ITEM_OF_KIND)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.tolist())

    def tolist(self) -> list[Item]:
        """Return the items as a list."""
        return decode(self.kinds, self.bits, self.others, ITEM_OF_KIND)

    def uniform(self, kind: int) -> bool:
        """Return whether the column is not empty and all items are of `kind`."""
        return len(self.kinds) > 0 and bool((self.kinds == kind).all())

    def split(self, ints: Bits, floats: npt.NDArray[np.float64]) -> None:
        """Write each integer into `ints` and each double into `floats`, at its position. In `floats`, write NaN for all
        other items."""
        for numbers, kind in ((ints, INT), (floats, FLOAT)):
            of_kind = self.kinds == kind
            if of_kind.all():
                numbers[:] = self.bits.view(numbers.dtype)
                continue
            if kind == FLOAT:
                numbers[:] = np.nan
            if of_kind.any():
                numbers[of_kind] = self.bits.view(numbers.dtype)[of_kind]

    def part(self, start: int, end: int) -> "Column":
        """Return the items from position `start` to before `end` as a column that shares the memory of this one."""
        if end - start == len(self.kinds):
            return self
        others: dict[int, Json | Digest] = {}
        kinds = self.kinds[start:end]
        if self.others:
            positions = np.flatnonzero((kinds == OTHER) | (kinds == DIGEST)).tolist()
            others = {position: self.others[start + position] for position in positions}
        return Column(kinds, self.bits[start:end], others)

    def pack(self, name: str) -> dict[str, Any]:
        """Return the fields of a message that contain this column: the kinds (only one if all are equal), the bits of
        the numbers, and the other items. The names of the fields begin with `name`."""
        kinds, bits = self.kinds, self.bits
        same = len(kinds) > 0 and bool((kinds == kinds[0]).all())
        numbers = is_number(kinds)
        others = list(map(self.others.__getitem__, np.flatnonzero(kinds == OTHER).tolist()))
        digests: list[Any] = list(map(self.others.__getitem__, np.flatnonzero(kinds == DIGEST).tolist()))
        return {
            f"{name}_kinds": kinds[:1] if same else kinds,
            f"{name}_bits": bits if numbers.all() else bits[numbers],
            f"{name}_others": cbor2.dumps(others) if others else b"",
            f"{name}_digests": b"".join([digest.raw for digest in digests]),
        }

    @classmethod
    def unpack(cls, name: str, row: dict[str, Any], count: int) -> "Column":
        """Return the column of `count` items that `pack` encoded under `name`; `row` has the fields of the message.
        Raise `ValueError` if the fields are inconsistent."""
        kinds: Kinds = row[f"{name}_kinds"]
        numbers: Bits = row[f"{name}_bits"]
        if kinds.dtype != np.uint8 or numbers.dtype != np.int64:
            raise ValueError("kinds or numbers have the wrong type")
        sent_kinds = kinds  # a single item if all kinds are equal
        if len(kinds) != count:
            kinds = np.full(count, kinds, np.uint8)
        bits = spread_numbers(kinds, numbers)
        others: dict[int, Json | Digest] = {}
        packed, raw = row[f"{name}_others"], row[f"{name}_digests"]
        for kind, items in (
            (OTHER, cbor2.loads(packed) if packed else []),
            (DIGEST, [Digest(raw[start : start + 16]) for start in range(0, len(raw), 16)]),
        ):
            if items or (sent_kinds == kind).any():
                others.update(zip(np.flatnonzero(kinds == kind).tolist(), items, strict=True))
        return cls(kinds, bits, others)

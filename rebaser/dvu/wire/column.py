"""Many values as arrays: what travels between planner and workers, and what compiled code reads.

Invariant: a value is its kind and, if it is a number, the 8 bytes of it; whatever else it may be stands apart, by
position. So a million numbers are two arrays, and never a list.
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
    "CONSTANT_ITEMS", "DIGEST", "FALSE", "FAULT", "FLOAT", "INT", "IN_ERROR", "MISSING", "NEVER_COMPUTED", "NO_VALUE",
    "NULL", "OTHER", "TRUE", "UNKNOWN", "Bits", "Column", "Digest", "Item", "Kinds", "Sentinel",
]  # fmt: skip


# The kinds are those of `rebaser_core.state.kinds`, and these, which are no values of a change set.
FAULT, MISSING, DIGEST, UNKNOWN = range(OTHER + 1, OTHER + 5)


@dataclass(frozen=True, slots=True)
class Digest:
    """16 bytes of blake2b over `canonical`: enough to tell whether a value is still the same."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Sentinel:
    """A value that is only a kind: in error, missing, or never computed."""

    kind: int


IN_ERROR: Final = Sentinel(FAULT)
NO_VALUE: Final = Sentinel(MISSING)
NEVER_COMPUTED: Final = Sentinel(UNKNOWN)

Item: TypeAlias = Json | Digest | Sentinel

CONSTANT_ITEMS: Final[dict[int, Item]] = {**CONSTANTS, FAULT: IN_ERROR, MISSING: NO_VALUE, UNKNOWN: NEVER_COMPUTED}
_KINDS: dict[type, int] = {type(None): NULL, int: INT, float: FLOAT, Digest: DIGEST}


class Column(Sequence[Item]):
    """`kinds` and `bits` (an integer, or the bits of a double) by position; `others` holds what is neither number nor
    plain: text, lists, maps and digests."""

    __slots__ = ("bits", "kinds", "others")

    def __init__(self, kinds: Kinds, bits: Bits, others: dict[int, Json | Digest] | None = None) -> None:
        self.kinds = kinds
        self.bits = bits
        self.others = {} if others is None else others

    @classmethod
    def of(cls, items: Sequence[Item]) -> "Column":
        """The column of `items`; what is one already stays as it is."""
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
        for at, item in enumerate(items):
            kind = _KINDS.get(type(item), OTHER)
            if kind == FLOAT:
                floats[at] = item
            elif kind == INT:
                ints[at] = item
            elif item is True or item is False:
                kind = TRUE if item else FALSE
            elif isinstance(item, Sentinel):
                kind = item.kind
            elif kind != NULL:
                others[at] = item
            kinds[at] = kind
        return cls(np.frombuffer(kinds, np.uint8), bits, others)

    def __len__(self) -> int:
        return len(self.kinds)

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> list[Item]: ...
    def __getitem__(self, at: int | slice) -> Item | list[Item]:
        if isinstance(at, slice):
            return self.tolist()[at]
        return decode_one(self.kinds, self.bits, self.others, at if at >= 0 else at + len(self.kinds), CONSTANT_ITEMS)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.tolist())

    def tolist(self) -> list[Item]:
        """The items themselves."""
        return decode(self.kinds, self.bits, self.others, CONSTANT_ITEMS)

    def uniform(self, kind: int) -> bool:
        """Whether all items are of `kind`, and there is one."""
        return len(self.kinds) > 0 and bool((self.kinds == kind).all())

    def split(self, ints: Bits, floats: npt.NDArray[np.float64]) -> None:
        """Write the numbers: integers into `ints`, doubles into `floats` with NaN between."""
        for numbers, kind in ((ints, INT), (floats, FLOAT)):
            these = self.kinds == kind
            if these.all():
                numbers[:] = self.bits.view(numbers.dtype)
                continue
            if kind == FLOAT:
                numbers[:] = np.nan
            if these.any():
                numbers[these] = self.bits.view(numbers.dtype)[these]

    def part(self, start: int, end: int) -> "Column":
        """The column of the items from `start` to before `end`, in the same memory."""
        if end - start == len(self.kinds):
            return self
        others: dict[int, Json | Digest] = {}
        kinds = self.kinds[start:end]
        if self.others:
            wanted = np.flatnonzero((kinds == OTHER) | (kinds == DIGEST)).tolist()
            others = {at: self.others[start + at] for at in wanted}
        return Column(kinds, self.bits[start:end], others)

    def packed(self, name: str) -> dict[str, Any]:
        """As columns of a message: kinds (one, if all are the same), the bits of the numbers, and the rest."""
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
    def unpacked(cls, name: str, row: dict[str, Any], count: int) -> "Column":
        """The column of `count` items that `packed` wrote. Raises `ValueError` if it did not."""
        kinds: Kinds = row[f"{name}_kinds"]
        numbers: Bits = row[f"{name}_bits"]
        if kinds.dtype != np.uint8 or numbers.dtype != np.int64:
            raise ValueError("kinds or numbers are of another type")
        said = kinds  # one of them says it for all, if all are the same
        if len(kinds) != count:
            kinds = np.broadcast_to(kinds, count)
        bits = spread_numbers(kinds, numbers)
        others: dict[int, Json | Digest] = {}
        packed, raw = row[f"{name}_others"], row[f"{name}_digests"]
        for kind, items in (
            (OTHER, cbor2.loads(packed) if packed else []),
            (DIGEST, [Digest(raw[at : at + 16]) for at in range(0, len(raw), 16)]),
        ):
            if items or (said == kind).any():
                others.update(zip(np.flatnonzero(kinds == kind).tolist(), items, strict=True))
        return cls(kinds, bits, others)

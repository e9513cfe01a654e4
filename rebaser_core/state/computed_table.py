"""Stores the results of an update of derived values in columns.

Invariant: a table behaves like a sequence of `Computed` items. An item is created only when it is accessed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
from numpy.typing import NDArray

from rebaser_core.commit import Computed
from rebaser_core.state.columns import Columns
from rebaser_core.state.kinds import CONSTANTS, decode, decode_one
from rebaser_core.values import Fault, Json


@dataclass(frozen=True, slots=True)
class RowIds(Sequence[str]):
    """The ids of `rows`, as a sequence. `ids` lists the ids of all rows; an item is looked up there when it is
    accessed."""

    ids: list[str]
    rows: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        return RowIds(self.ids, self.rows[at]) if isinstance(at, slice) else self.ids[self.rows[at]]

    def __iter__(self) -> Iterator[str]:
        return map(self.ids.__getitem__, self.rows.tolist())

    def lines(self) -> bytes:
        """Return all ids as UTF-8 text with one id in each line."""
        return "\n".join(self).encode()


@dataclass(frozen=True, slots=True, eq=False)
class ComputedTable(Sequence[Computed]):
    """The results of an update of derived values.

    Result number i belongs to the value `ids[i]`. It is either a value of the kind `kinds[i]` (see
    `rebaser_core.state.kinds`), or the fault `faults[i]`, in which case its kind is NULL. If the table was made from
    `columns`, `rows` are the values' rows in these columns; in a decoded table, both are None. Before the row of an id
    is freed, the id must be removed from the table with `filter`.
    """

    ids: Sequence[str]
    kinds: NDArray[np.uint8]
    bits: NDArray[np.int64]
    others: dict[int, Json] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)
    rows: NDArray[np.int32] | None = None
    columns: Columns | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def value(self, at: int) -> Json:
        """Return the value at position `at`, or None if the result is a fault."""
        return decode_one(self.kinds, self.bits, self.others, at, CONSTANTS)

    @overload
    def __getitem__(self, at: int) -> Computed: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Computed]: ...
    def __getitem__(self, at: int | slice) -> Computed | Sequence[Computed]:
        if isinstance(at, slice):
            return tuple(self[place] for place in range(*at.indices(len(self))))
        place = range(len(self.ids))[at]
        return Computed(self.ids[place], self.value(place), self.faults.get(place))

    def __iter__(self) -> Iterator[Computed]:
        values = decode(self.kinds, self.bits, self.others, CONSTANTS)
        fault = self.faults.get
        return (Computed(id_, value, fault(at)) for at, (id_, value) in enumerate(zip(self.ids, values, strict=True)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment] # like a list, a table is not hashable

    def filter(self, mask: NDArray[np.bool_]) -> "ComputedTable":
        """Return a table with only the results at the positions where `mask` is true."""
        places = np.flatnonzero(mask).tolist()
        others = {new: self.others[old] for new, old in enumerate(places) if old in self.others}
        faults = {new: self.faults[old] for new, old in enumerate(places) if old in self.faults}
        rows = None if self.rows is None else self.rows[mask]
        ids: Sequence[str]
        if rows is not None and self.columns is not None:
            ids = RowIds(self.columns.ids, rows)
        else:
            ids = [self.ids[old] for old in places]
        return ComputedTable(ids, self.kinds[mask], self.bits[mask], others, faults, rows, self.columns)

"""Stores the values of a change set in columns, with one row for each value.

Invariant: a row belongs to an id as long as the id exists or a definition has it as an input; then the row is freed.
The cost of an operation depends only on the rows that it changes, except when the columns are full and are doubled in
size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_core.state.kinds import ERROR, FALSE, FLOAT, INT, NULL, OK, OTHER, TRUE
from rebaser_core.values import Fault, Json

_KINDS: Final[dict[type, int]] = {type(None): NULL, int: INT, float: FLOAT}

# Maximum number of rows whose ids another state adopts. Copying the list and the index of ids takes 10 to 20 ms per
# million rows, and nothing else can run meanwhile, not even in another thread.
MAX_ADOPTED = 4_000_000
FIRST_ROWS = 8  # rows that fit into new columns; most change sets of a large installation are small


@dataclass(frozen=True, slots=True)
class Changes:
    """A record of changes in columns. `touched` is 1 for each row that changed, and `gone` contains the ids of removed
    values."""

    touched: NDArray[np.uint8]
    gone: set[str]

    @property
    def count(self) -> int:
        """The number of changed values, or a slightly higher number."""
        return int(np.count_nonzero(self.touched)) + len(self.gone)


class ValueColumns:
    """The values of a change set, without their definitions, which `Columns` adds.

    There are `count` rows, of which `size` have values. Each row has an item in `ids`, `state`, `kind` (both uint8) and
    `bits` (int64); `rebaser_core.state.kinds` describes the last three. `other` maps rows to texts, lists and maps, and
    `faults` maps rows to faults. `index` maps an id to its row. `free` lists the rows that belong to no id. `touched`
    (uint8) is 1 for each row that has changed since the last call of `take_changes`, and `gone` contains the ids that
    were removed since then. `adopted` is true if all ids came from `adopt`.
    """

    # With more than 30 attributes, an object without slots takes 1.3 kB more.
    __slots__ = (
        *("__weakref__", "_bits", "_double", "_expected", "_kind", "_state", "_touched", "adopted", "bits", "count"),
        *("faults", "free", "gone", "ids", "index", "kind", "other", "size", "state", "touched"),
    )
    TYPES: ClassVar[dict[str, Any]] = {"state": np.uint8, "kind": np.uint8, "bits": np.int64, "touched": np.uint8}

    state: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    bits: NDArray[np.int64]
    touched: NDArray[np.uint8]

    def __init__(self) -> None:
        self.count = self.size = 0
        self.ids: list[str] = []
        self.index: dict[str, int] = {}
        self.other: dict[int, Json] = {}
        self.faults: dict[int, Fault] = {}
        self.free: list[int] = []
        self.gone: set[str] = set()
        self.adopted = False
        self._expected: list[str] | None = None
        self._allot(FIRST_ROWS)

    def _allot(self, capacity: int) -> None:
        used = self.count
        for name, type_ in self.TYPES.items():
            grown = np.zeros(capacity, type_)
            if used:
                grown[:used] = getattr(self, name)[:used]
            setattr(self, name, grown)
        self._views()

    def _views(self) -> None:
        """Create memory views of the arrays. Accessing a single element through a memory view is several times
        faster."""
        self._state, self._kind, self._bits = self.state.data, self.kind.data, self.bits.data
        self._double = self.bits.view(np.float64).data
        self._touched = self.touched.data

    def find(self, id_: str) -> int:
        """Return the row of the value `id_`, or -1 if the value does not exist."""
        row = self.index.get(id_, -1)
        return row if row >= 0 and self._state[row] else -1

    def value(self, row: int) -> Json:
        """Return the value in `row`. This uses memory views, so it is three times as fast as `kinds.decode_one`."""
        kind = self._kind[row]
        if kind == FLOAT:
            return self._double[row]
        if kind == INT:
            return self._bits[row]
        if kind == OTHER:
            return self.other[row]
        return None if kind == NULL else kind == TRUE

    def rows(self) -> NDArray[np.intp]:
        """Return the numbers of all rows that have values."""
        return np.flatnonzero(self.state[: self.count])

    def extend(self, ids: list[str]) -> None:
        """Add a row for each of `ids`. Raise `ValueError` if an id already has a row or occurs twice."""
        first, last = self.count, self.count + len(ids)
        if last > len(self.state):
            self._allot(max(last, 2 * len(self.state)))
        if self._expected is not None and (expected := self._expected[first:last]) == ids:
            self.ids += expected  # so that both columns share the texts
            self.count = last
            return
        self.settle()
        self.adopted = False
        self.index.update(zip(ids, range(first, last), strict=True))
        self.ids += ids
        self.count = last
        if len(self.index) + len(self.free) != last:
            raise ValueError("one of the ids already has a row or occurs twice")

    def adopt(self, other: "ValueColumns") -> None:
        """Expect that `extend` will add the ids of `other`, in the same order.

        As long as it does, `index` is the one of `other`, which is much faster than adding each id to a new index.
        These columns must be empty. Until `settle` is called, `index` may contain ids that have no row here; their row
        numbers are not below `count`. The caller must call `settle` before rows are released or added one by one.
        Nothing else may change `other` during this call. If `other` has more than `MAX_ADOPTED` rows, this does
        nothing.
        """
        # Without free rows, each row of `other` has an id.
        if not other.free and other.count <= MAX_ADOPTED:
            self._expected, self.index = other.ids.copy(), other.index.copy()

    def expected_at_end(self, ids: list[str]) -> int:
        """Return how many of the last `ids` are those that are expected next. These ids have no row yet."""
        if self._expected is None or self.count >= len(self._expected) or self._expected[self.count] not in ids:
            return 0
        rest = ids[ids.index(self._expected[self.count]) :]
        return len(rest) if self._expected[self.count : self.count + len(rest)] == rest else 0

    def settle(self) -> None:
        """End what `adopt` began: remove the ids that have no row here from `index`."""
        expected, self._expected = self._expected, None
        if expected is None:
            return
        self.adopted = True
        if len(expected) > 2 * self.count:
            self.index = dict(zip(self.ids, range(self.count), strict=True))
        else:
            for id_ in expected[self.count :]:
                del self.index[id_]

    def _add(self, id_: str) -> int:
        """Add a row for `id_`, which must not have a row yet, and return the number of the row."""
        if self.free:
            row = self.free.pop()
            self.ids[row] = id_
        else:
            row = self.count
            if row == len(self.state):
                self._allot(2 * row)
            self.count += 1
            self.ids.append(id_)
        self.index[id_] = row
        return row

    def release(self, row: int) -> None:
        """Free `row`, which must not have a value and must not be an input of any definition."""
        del self.index[self.ids[row]]
        self.ids[row] = ""
        self._touched[row] = 0
        self.free.append(row)

    def put(self, row: int, value: Json, fault: Fault | None = None) -> None:
        """Store `value` in `row`. If `fault` is given, `value` must be None."""
        kind = _KINDS.get(type(value), OTHER)
        if kind == FLOAT:
            self._double[row] = value  # type: ignore[assignment]
        elif kind == INT:
            self._bits[row] = value  # type: ignore[assignment]
        elif kind == OTHER:
            if type(value) is bool:
                kind = TRUE if value else FALSE
            else:
                self.other[row] = value
        if self._kind[row] == OTHER and kind != OTHER:
            del self.other[row]
        self._kind[row] = kind
        self._touched[row] = 1
        if fault is not None:
            self.faults[row] = fault
        elif self.faults:
            self.faults.pop(row, None)

    def computed(self, row: int, value: Json, fault: Fault | None) -> None:
        """Store the computed value or the fault of the derived value in `row`."""
        self._state[row] = OK if fault is None else ERROR
        self.put(row, value, fault)

    def computed_all(
        self,
        rows: NDArray[np.int32],
        kinds: NDArray[np.uint8],
        bits: NDArray[np.int64],
        others: Mapping[int, Json],
        faults: Mapping[int, Fault],
    ) -> None:
        """Store the computed values and faults of the derived values in `rows`.

        The other parameters have the same meaning as in `ComputedTable`. The keys of `others` and `faults` are
        positions in `rows`.
        """
        if self.other:
            for row in rows[self.kind[rows] == OTHER].tolist():
                del self.other[row]
        if self.faults:
            for row in rows[self.state[rows] == ERROR].tolist():
                del self.faults[row]
        self.state[rows], self.kind[rows], self.bits[rows], self.touched[rows] = OK, kinds, bits, 1
        for position, value in others.items():
            self.other[int(rows[position])] = value
        for position, fault in faults.items():
            row = int(rows[position])
            self.state[row], self.faults[row] = ERROR, fault

    def take_changes(self) -> Changes:
        """Return the changes since the last call of this method, and start a new record of changes."""
        changes = Changes(self.touched, self.gone)
        self.touched, self.gone = np.zeros(len(self.touched), np.uint8), set()
        self._touched = self.touched.data
        return changes

    def give_back(self, changes: Changes) -> None:
        """Add `changes` to the current record of changes, because the checkpoint that contains `changes` was not
        stored. Each row is marked as changed, even if it now belongs to another id."""
        self.touched[: len(changes.touched)] |= changes.touched
        self.gone |= changes.gone

"""Values and definitions of a change set in columns: a row a value, a number for each row.

Invariant: a row belongs to one id for as long as the id exists or a definition names it; then it is free again. Every
operation costs what it touches, growing the columns apart, which doubles them.

`refs` holds the inputs of all definitions, one after another, as rows; `in_at[row]` is where those of a row begin, and
its shape says how many they are. The way back (`rebaser_core.edges`) may name a row that no longer has that input,
never the other way round: whoever follows it and must be exact asks `uses_input`. An input that is a pattern has a row
of its own, and no value (`rebaser_core.matching`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_core.edges import Edges
from rebaser_core.matching import Matching
from rebaser_core.updates import MARK, Derive, Input, Match
from rebaser_core.values import Fault, Json, State, canonical

# What a row is.
ABSENT, OK, STALE, ERROR, UNSET = range(5)
STATES: Final = (State.UNSET, State.OK, State.STALE, State.ERROR, State.UNSET)
CODES: Final = {State.OK: OK, State.STALE: STALE, State.ERROR: ERROR, State.UNSET: UNSET}

# What its value is: the kind, a number in `num` (an integer, or the bits of a double), all else in `other`.
NULL, FALSE, TRUE, INT, FLOAT, OTHER = range(6)
_KINDS: Final[dict[type, int]] = {type(None): NULL, int: INT, float: FLOAT}

UNDEFINED = -1  # the shape of a row without a definition
_MANY = 24  # inputs from which on arrays are faster than loops


@dataclass(frozen=True, slots=True)
class Shape:
    """A definition without its ids: `inputs` are names with how many ids each has, -1 for one that is not in a list."""

    function: str
    inputs: tuple[tuple[str, int], ...]
    params: Mapping[str, Json]

    @property
    def arity(self) -> int:
        """Input ids in all."""
        return sum(abs(count) for _, count in self.inputs)


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed in columns: rows as a mask, and ids."""

    touched: NDArray[np.uint8]
    gone: set[str]

    @property
    def count(self) -> int:
        """How many values changed, or a few more."""
        return int(np.count_nonzero(self.touched)) + len(self.gone)


class Columns:
    """Rows 0 to `count` - 1; `size` of them are values.

    By row: `state` and `kind` (uint8), `num` (int64), `shape` (int32, a position in `shapes`), `in_at` (int64), `uses`
    (int32: how often definitions name it), `ids`. `other` and `faults` by row where there is one. `index`: id to row.
    `defined` counts definitions that came or went: while it stays, so do all inputs, and the rows they are.
    `patterns` is None or empty where no input is a pattern.
    What changed since `take_changes`: `touched` (uint8, by row), and `gone`, ids of values that were taken away.
    """

    def __init__(self) -> None:
        self.count = self.size = self.defined = 0
        self.ids: list[str] = []
        self.index: dict[str, int] = {}
        self.shapes: list[Shape] = []
        self.functions: set[str] = set()  # of `shapes`
        self.arity: NDArray[np.int32] = np.zeros(16, np.int32)  # of each shape
        self.other: dict[int, Json] = {}
        self.faults: dict[int, Fault] = {}
        self.free: list[int] = []
        self.gone: set[str] = set()
        self.edges = Edges()
        self.patterns: Matching | None = None
        self.refs_used = self.refs_lost = 0
        self._shape_of: dict[tuple[str, tuple[tuple[str, int], ...], bytes], int] = {}
        self._allot(64)
        self.refs: NDArray[np.int32] = np.zeros(64, np.int32)
        self._refs = self.refs.data

    def _allot(self, capacity: int) -> None:
        used = self.count
        columns: dict[str, Any] = {
            "state": np.uint8,
            "kind": np.uint8,
            "num": np.int64,
            "shape": np.int32,
            "in_at": np.int64,
            "uses": np.int32,
            "touched": np.uint8,
        }
        for name, type_ in columns.items():
            grown = np.zeros(capacity, type_)
            if used:
                grown[:used] = getattr(self, name)[:used]
            setattr(self, name, grown)
        self._views()

    state: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    num: NDArray[np.int64]
    shape: NDArray[np.int32]
    in_at: NDArray[np.int64]
    uses: NDArray[np.int32]
    touched: NDArray[np.uint8]

    def _views(self) -> None:
        """Memory views: one element of an array is read and written several times faster through them."""
        self._state, self._kind, self._num = self.state.data, self.kind.data, self.num.data
        self._double = self.num.view(np.float64).data
        self._shape, self._in_at, self._uses = self.shape.data, self.in_at.data, self.uses.data
        self._touched = self.touched.data

    # -- reading ---------------------------------------------------------------------------------------------------

    def find(self, id_: str) -> int:
        """The row of a value; -1 where there is none."""
        row = self.index.get(id_, -1)
        return row if row >= 0 and self._state[row] else -1

    def used(self, id_: str) -> int:
        """How often definitions name `id_`."""
        row = self.index.get(id_, -1)
        return self._uses[row] if row >= 0 else 0

    def value(self, row: int) -> Json:
        """The value of a row."""
        kind = self._kind[row]
        if kind == FLOAT:
            return self._double[row]
        if kind == INT:
            return self._num[row]
        if kind == OTHER:
            return self.other[row]
        return None if kind == NULL else kind == TRUE

    def inputs(self, row: int) -> list[int]:
        """The rows that the definition of `row` names, in declared order, repeats included."""
        shape = self._shape[row]
        at = self._in_at[row]
        return self._refs[at : at + self.arity[shape]].tolist() if shape >= 0 else []

    def uses_input(self, row: int, input_row: int) -> bool:
        """Whether the definition of `row` names `input_row`."""
        return input_row in self.inputs(row)

    def dependents(self, row: int) -> list[int]:
        """Rows whose definitions name `row`, each once."""
        return [one for one in dict.fromkeys(self._edges().of(row)) if self.uses_input(one, row)]

    def definition(self, row: int) -> Derive | None:
        """The definition of a row."""
        if self._shape[row] < 0:
            return None
        shape = self.shapes[self._shape[row]]
        ids: list[Any] = [self.ids[one] for one in self.inputs(row)]
        if self.patterns:
            ids = [Match(one[1:]) if one[0] == MARK else one for one in ids]
        given: dict[str, Input | tuple[Input, ...]] = {}
        at = 0
        for name, count in shape.inputs:
            alone = count < 0 or (count == 1 and type(ids[at]) is Match)
            given[name] = ids[at] if alone else tuple(ids[at : at + count])
            at += abs(count)
        return Derive(self.ids[row], shape.function, given, shape.params)

    def places(self, rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Where in `refs` the inputs of `rows`, all defined, are; then, of each, where its own begin among these, and
        how many they are.
        """
        counts = self.arity[self.shape[rows]].astype(np.int64)
        starts = np.cumsum(counts) - counts
        return np.arange(counts.sum()) + np.repeat(self.in_at[rows] - starts, counts), starts, counts

    def rows(self) -> NDArray[np.intp]:
        """All rows that are values."""
        return np.flatnonzero(self.state[: self.count])

    # -- writing ---------------------------------------------------------------------------------------------------

    def derived(self, functions: frozenset[str] | None = None) -> NDArray[np.intp]:
        """The rows of all values that are derived, or of those that are by one of `functions`; costs what there are."""
        shape = self.shape[: self.count]
        found = (shape >= 0) & (self.state[: self.count] != ABSENT)
        if functions is not None:
            asked = np.zeros(len(self.shapes) + 1, np.bool_)  # the last one is that of rows without a definition
            asked[:-1] = [one.function in functions for one in self.shapes]
            found &= asked[shape]
        return np.flatnonzero(found)

    def set(self, id_: str, value: Json) -> None:
        """Give `id_` a value by hand."""
        row = self._undefined(id_)
        self._state[row] = OK
        self.put(row, value)

    def unset(self, id_: str) -> None:
        """Take the value and the definition of `id_` away."""
        row = self._undefined(id_)
        self._state[row] = UNSET
        self.put(row, None)

    def remove(self, id_: str) -> None:
        """Take `id_` away."""
        row = self.find(id_)
        if row >= 0:
            self._undefined(id_)
            self.put(row, None)
            self._state[row] = ABSENT
            self.size -= 1
            if self.patterns is not None:
                self.patterns.went(id_)
            self.gone.add(id_)
            if not self._uses[row]:
                self.release(row)

    def derive(self, definition: Derive) -> None:
        """Define `definition.id`. It keeps the value it had, as stale."""
        shape, ids = self._shape_for(definition)
        row = self._undefined(definition.id)
        self._uses[row] += 1  # whatever is freed below, this one is not
        rows = [self._row(one) for one in ids]
        self._uses[row] -= 1
        self.defined += 1
        at, count = self.refs_used, len(rows)
        self.reserve_refs(count)
        self._shape[row], self._in_at[row], self._state[row] = shape, at, STALE
        if self.faults:
            self.faults.pop(row, None)
        self.refs_used += count
        if count < _MANY:
            for place, one in enumerate(rows, at):
                self._refs[place] = one
                self._uses[one] += 1
        else:
            self.refs[at : at + count] = rows
            np.add.at(self.uses, rows, 1)
        self.edges.add(row, rows)

    def reserve_refs(self, count: int) -> None:
        """Make room for `count` more inputs."""
        at = self.refs_used
        if at + count > len(self.refs):
            grown = np.zeros(max(at + count, 2 * len(self.refs)), np.int32)
            grown[:at] = self.refs[:at]
            self.refs, self._refs = grown, grown.data

    def extend(self, ids: list[str]) -> None:
        """Add rows for `ids`, which have none. `add_pattern` must be told of patterns among them.

        Raises `ValueError` for an id that comes twice.
        """
        first, last = self.count, self.count + len(ids)
        if last > len(self.state):
            self._allot(max(last, 2 * len(self.state)))
        self.index.update(zip(ids, range(first, last), strict=True))
        self.ids += ids
        self.count = last
        self.shape[first:last] = UNDEFINED
        if len(self.index) + len(self.free) != last:
            raise ValueError("an id comes twice")

    def put(self, row: int, value: Json, fault: Fault | None = None) -> None:
        """Store a value, and the fault that stands for one."""
        kind = _KINDS.get(type(value), OTHER)
        if kind == FLOAT:
            self._double[row] = value  # type: ignore[assignment]
        elif kind == INT:
            self._num[row] = value  # type: ignore[assignment]
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

    def computed_all(
        self,
        rows: NDArray[np.int32],
        kinds: NDArray[np.uint8],
        bits: NDArray[np.int64],
        others: Mapping[int, Json],
        faults: Mapping[int, Fault],
    ) -> None:
        """Store what an update found for many derived rows; `others` and `faults` are by position in `rows`."""
        if self.other:
            for row in rows[self.kind[rows] == OTHER].tolist():
                del self.other[row]
        if self.faults:
            for row in rows[self.state[rows] == ERROR].tolist():
                del self.faults[row]
        self.state[rows], self.kind[rows], self.num[rows], self.touched[rows] = OK, kinds, bits, 1
        for at, value in others.items():
            self.other[int(rows[at])] = value
        for at, fault in faults.items():
            row = int(rows[at])
            self.state[row], self.faults[row] = ERROR, fault

    def computed(self, row: int, value: Json, fault: Fault | None) -> None:
        """Store what an update found for a derived row."""
        self._state[row] = OK if fault is None else ERROR
        self.put(row, value, fault)

    def _row(self, id_: str) -> int:
        row = self.index.get(id_, -1)
        if row >= 0:
            return row
        if self.free:
            row = self.free.pop()
            self.ids[row] = id_
        else:
            row = self.count
            if row == len(self.state):
                self._allot(2 * row)
            self.count += 1
            self.ids.append(id_)
            self._shape[row] = UNDEFINED
        self.index[id_] = row
        if id_[0] == MARK:
            self.add_pattern(id_)
        return row

    def add_pattern(self, key: str) -> None:
        """The pattern `key` has a row now."""
        if self.patterns is None:
            self.patterns = Matching(self)
        self.patterns.add(key)

    def _undefined(self, id_: str) -> int:
        """The row of `id_`, made if need be, without its definition."""
        row = self._row(id_)
        self._touched[row] = 1
        if not self._state[row]:
            self.size += 1
            if self.patterns is not None:
                self.patterns.came(id_)
        elif self._shape[row] >= 0:
            self._uses[row] += 1  # it may name itself
            self._undefine(row)
            self._uses[row] -= 1
        return row

    def _undefine(self, row: int) -> None:
        rows = self.inputs(row)
        self.defined += 1
        self._shape[row] = UNDEFINED
        self.refs_lost += len(rows)
        self.edges.lost += len(rows)
        uses, state = self._uses, self._state
        for one in rows:
            uses[one] -= 1
            if not uses[one] and not state[one]:
                self.release(one)

    def release(self, row: int) -> None:
        """Let a row go that is no value and that nothing names."""
        id_ = self.ids[row]
        if self.patterns is not None and id_[0] == MARK:
            self.patterns.remove(id_)
        del self.index[id_]
        self.ids[row] = ""
        self._touched[row] = 0
        self.free.append(row)

    def _shape_for(self, definition: Derive) -> tuple[int, list[str]]:
        inputs: list[tuple[str, int]] = []
        ids: list[str] = []
        for name, given in definition.inputs.items():
            if isinstance(given, str):
                inputs.append((name, -1))
                ids.append(given)
            elif isinstance(given, Match):
                inputs.append((name, 1))
                ids.append(given.key)
            else:
                inputs.append((name, len(given)))
                ids.extend([one if isinstance(one, str) else one.key for one in given])
        return self.shape_of(definition.function, tuple(inputs), definition.params), ids

    def shape_of(self, function: str, inputs: tuple[tuple[str, int], ...], params: Mapping[str, Json]) -> int:
        """The position of a shape in `shapes`, added if it is new."""
        key = (function, inputs, canonical(dict(params)) if params else b"")
        place = self._shape_of.get(key)
        if place is None:
            place = self._shape_of[key] = len(self.shapes)
            self.shapes.append(Shape(function, inputs, params))
            self.functions.add(function)
            if place == len(self.arity):
                self.arity = np.resize(self.arity, 2 * place)
            self.arity[place] = self.shapes[place].arity
        return place

    # -- what changed -----------------------------------------------------------------------------------------------

    def take_changes(self) -> "Changes":
        """What changed since this was last asked."""
        changes = Changes(self.touched, self.gone)
        self.touched, self.gone = np.zeros(len(self.touched), np.uint8), set()
        self._touched = self.touched.data
        return changes

    def give_back(self, changes: "Changes") -> None:
        """Count `changes` again, because what they were taken for failed. A row that is another's by now counts too."""
        self.touched[: len(changes.touched)] |= changes.touched
        self.gone |= changes.gone

    # -- the way back ----------------------------------------------------------------------------------------------

    def _edges(self) -> Edges:
        if self.edges.behind:
            self.tidy()
        return self.edges

    def tidy(self) -> None:
        """Bring the way back into one piece if it is worth it, and the inputs too. Costs what all definitions cost."""
        if not self.patterns:
            self.patterns = None
        if not self.edges.worn and self.refs_lost <= max(65_536, self.refs_used // 2):
            return
        owners = np.flatnonzero(self.shape[: self.count] >= 0)
        places, starts, counts = self.places(owners)
        self.refs = self.refs[places] if len(places) else np.zeros(64, np.int32)
        self._refs = self.refs.data
        self.in_at[owners] = starts
        self.refs_used, self.refs_lost = len(places), 0
        self.edges.build(self.refs[: len(places)], np.repeat(owners.astype(np.int32), counts), self.count)

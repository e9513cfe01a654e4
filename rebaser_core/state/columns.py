"""The values of a change set and their definitions in columns, and who depends on whom.

`refs` holds the inputs of all definitions, one after another, as rows; `in_at[row]` is where those of a row begin, and
its shape says how many they are. The way back (`rebaser_core.state.dependents`) may name a row that no longer has that
input, never the other way round: whoever follows it and must be exact asks `uses_input`. An input that is a pattern has
a row of its own, and no value (`rebaser_core.state.patterns.matches`).
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rebaser_core import thresholds
from rebaser_core.state.dependents import Edges
from rebaser_core.state.kinds import ABSENT, OK, STALE, UNDEFINED, UNSET
from rebaser_core.state.patterns.matches import Matching
from rebaser_core.state.templates import Shapes
from rebaser_core.state.value_columns import ValueColumns
from rebaser_core.updates import MARK, Derive, Input, Match
from rebaser_core.values import Json


class Columns(ValueColumns):
    """By row, beside the values: `shape` (int32, a position in `shapes`), `in_at` (int64), `uses` (int32: how often
    definitions name it).

    `defined` counts definitions that came or went: while it stays, so do all inputs, and the rows they are.
    `patterns` is None or empty where no input is a pattern.
    """

    TYPES: ClassVar[dict[str, Any]] = ValueColumns.TYPES | {"shape": np.int32, "in_at": np.int64, "uses": np.int32}

    shape: NDArray[np.int32]
    in_at: NDArray[np.int64]
    uses: NDArray[np.int32]

    def __init__(self) -> None:
        super().__init__()
        self.shapes = Shapes()
        self.edges = Edges()
        self.patterns: Matching | None = None
        self.defined = self.refs_used = self.refs_lost = 0
        self.refs: NDArray[np.int32] = np.zeros(64, np.int32)
        self._refs = self.refs.data

    def _views(self) -> None:
        super()._views()
        self._shape, self._in_at, self._uses = self.shape.data, self.in_at.data, self.uses.data

    # -- reading ---------------------------------------------------------------------------------------------------

    def used(self, id_: str) -> int:
        """How often definitions name `id_`."""
        row = self.index.get(id_, -1)
        return self._uses[row] if row >= 0 else 0

    def inputs(self, row: int) -> list[int]:
        """The rows that the definition of `row` names, in declared order, repeats included."""
        shape = self._shape[row]
        at = self._in_at[row]
        return self._refs[at : at + self.shapes.arity[shape]].tolist() if shape >= 0 else []

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
        return self.shapes.places(self.shape[rows], self.in_at[rows])

    def derived(self, functions: frozenset[str] | None = None) -> NDArray[np.intp]:
        """The rows of all values that are derived, or of those that are by one of `functions`; costs what there are."""
        shape = self.shape[: self.count]
        found = (shape >= 0) & (self.state[: self.count] != ABSENT)
        if functions is not None:
            asked = np.zeros(len(self.shapes) + 1, np.bool_)  # the last one is that of rows without a definition
            asked[:-1] = [one.function in functions for one in self.shapes]
            found &= asked[shape]
        return np.flatnonzero(found)

    # -- writing ---------------------------------------------------------------------------------------------------

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
        shape, ids = self.shapes.split(definition)
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
        if count < thresholds.now.arrays:
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
        first = self.count
        super().extend(ids)
        self.shape[first : self.count] = UNDEFINED

    def _row(self, id_: str) -> int:
        row = self.index.get(id_, -1)
        if row < 0:
            row = self._add(id_)
            self._shape[row] = UNDEFINED
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
        if self.patterns is not None and (id_ := self.ids[row])[0] == MARK:
            self.patterns.remove(id_)
        super().release(row)

    # -- the way back ----------------------------------------------------------------------------------------------

    def _edges(self) -> Edges:
        if self.edges.behind:
            self.tidy()
        return self.edges

    def tidy(self) -> None:
        """Bring the way back into one piece if it is worth it, and the inputs too. Costs what all definitions cost."""
        if not self.patterns:
            self.patterns = None
        if not self.edges.worn and self.refs_lost <= max(thresholds.now.refs_lost, self.refs_used // 2):
            return
        owners = np.flatnonzero(self.shape[: self.count] >= 0)
        places, starts, counts = self.places(owners)
        self.refs = self.refs[places] if len(places) else np.zeros(64, np.int32)
        self._refs = self.refs.data
        self.in_at[owners] = starts
        self.refs_used, self.refs_lost = len(places), 0
        self.edges.build(self.refs[: len(places)], np.repeat(owners.astype(np.int32), counts), self.count)

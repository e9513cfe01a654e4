"""Stores the values of a change set and their definitions in columns, and finds the definitions that use a value.

`refs` contains the inputs of all definitions as row numbers, one definition after another. The inputs of a row begin at
`first_input[row]`, and the row's template says how many there are. `edges` (`rebaser_core.state.dependents`) leads from
an input to the rows whose definitions use the input. It leads to all of these rows, but possibly also to rows that used
the input in the past. A caller that needs the exact result checks each row with `uses_input`. A pattern among the
inputs also has a row, without a value (`rebaser_core.state.patterns.matches`).
"""

from collections.abc import Collection
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rebaser_core import thresholds
from rebaser_core.state.dependents import Edges
from rebaser_core.state.kinds import ABSENT, OK, STALE, UNDEFINED, UNSET
from rebaser_core.state.patterns.matches import PatternMatches
from rebaser_core.state.templates import Templates
from rebaser_core.state.value_columns import ValueColumns
from rebaser_core.updates import PATTERN_PREFIX, Derive, Input, Match, Set, Unset, Update
from rebaser_core.values import Json

_NO_REFS: NDArray[np.int32] = np.zeros(0, np.int32)
_NO_VIEW = _NO_REFS.data
MIN_REFS = 16  # inputs that fit when the first definition is added


class Columns(ValueColumns):
    """The values and definitions of a change set, in arrays with one item for each row.

    This class adds the following arrays to those of `ValueColumns`:

    - `template` (int32) is the index of the row's template in `templates`, or -1 for a row without a definition.
    - `first_input` (int64) is the position in `refs` at which the row's inputs begin.
    - `uses` (int32) is the number of times that the row occurs as an input in definitions.
    - `edited` (int64) is the log sequence of the commit that last defined the row, or 0 if this commit is unknown or
      the row has no value.

    `definition_generation` is increased when a definition is added or removed. As long as it stays the same, no
    definition has changed, and no input has moved to another row. `patterns` is None or empty if no input is a pattern.
    """

    __slots__ = (
        *("_edited", "_first_input", "_refs", "_template", "_uses", "dead_refs", "definition_generation", "edges"),
        *("edited", "first_input", "patterns", "refs", "refs_used", "template", "templates", "uses"),
    )
    TYPES: ClassVar[dict[str, Any]] = ValueColumns.TYPES | {
        "template": np.int32,
        "first_input": np.int64,
        "uses": np.int32,
        "edited": np.int64,
    }

    template: NDArray[np.int32]
    first_input: NDArray[np.int64]
    uses: NDArray[np.int32]
    edited: NDArray[np.int64]

    def __init__(self) -> None:
        super().__init__()
        self.templates = Templates()
        self.edges = Edges()
        self.patterns: PatternMatches | None = None
        self.definition_generation = self.refs_used = self.dead_refs = 0
        self.refs, self._refs = _NO_REFS, _NO_VIEW

    def _views(self) -> None:
        super()._views()
        self._template, self._first_input, self._uses = self.template.data, self.first_input.data, self.uses.data
        self._edited = self.edited.data

    # -- reading ---------------------------------------------------------------------------------------------------

    def used(self, id_: str) -> int:
        """Return the number of times that `id_` occurs as an input in definitions."""
        row = self.index.get(id_, -1)
        return self._uses[row] if row >= 0 else 0

    def inputs(self, row: int) -> list[int]:
        """Return the rows of the inputs of `row`'s definition, in the order of the definition, with repetitions."""
        template = self._template[row]
        at = self._first_input[row]
        return self._refs[at : at + self.templates.arity[template]].tolist() if template >= 0 else []

    def uses_input(self, row: int, input_row: int) -> bool:
        """Return whether `input_row` is an input of `row`'s definition."""
        return input_row in self.inputs(row)

    def dependents(self, row: int) -> list[int]:
        """Return the rows whose definitions have `row` as an input, without repetitions."""
        return [user for user in dict.fromkeys(self._edges().candidates(row)) if self.uses_input(user, row)]

    def definition(self, row: int) -> Derive | None:
        """Return the definition of `row`, or None if the row has no definition."""
        if self._template[row] < 0:
            return None
        template = self.templates[self._template[row]]
        items: list[Any] = [self.ids[input_row] for input_row in self.inputs(row)]
        if self.patterns:
            items = [Match(id_[1:]) if id_[0] == PATTERN_PREFIX else id_ for id_ in items]
        inputs: dict[str, Input | tuple[Input, ...]] = {}
        start = 0
        for name, count in template.inputs:
            single = count < 0 or (count == 1 and type(items[start]) is Match)
            inputs[name] = items[start] if single else tuple(items[start : start + count])
            start += abs(count)
        return Derive(self.ids[row], template.function, inputs, template.params)

    def edit_of(self, id_: str) -> Update | None:
        """Return the update that recreates `id_`, or None if `id_` does not exist."""
        row = self.find(id_)
        if row < 0:
            return None
        if self._template[row] >= 0:
            return self.definition(row)
        return Unset(id_) if self._state[row] == UNSET else Set(id_, self.value(row))

    def input_places(self, rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions in `refs` of the inputs of `rows`. All of these rows must have definitions.

        The first array contains all positions, one row after another. For each of `rows`, the second array contains the
        index in the first array at which the row's positions begin, and the third array contains the number of these
        positions.
        """
        return self.templates.input_places(self.template[rows], self.first_input[rows])

    def derived(self, functions: frozenset[str] | None = None) -> NDArray[np.intp]:
        """Return the rows of all derived values or, if `functions` is given, only of those derived by one of
        `functions`. All rows are searched."""
        template = self.template[: self.count]
        found = (template >= 0) & (self.state[: self.count] != ABSENT)
        if functions is not None:
            wanted = np.zeros(len(self.templates) + 1, np.bool_)  # the last element is for rows without a definition
            wanted[:-1] = [known.function in functions for known in self.templates]
            found &= wanted[template]
        return np.flatnonzero(found)

    def functions(self) -> dict[str, int]:
        """Return the number of values that each function derives, by the function's name. All rows are searched."""
        numbers = np.bincount(self.template[self.derived()], minlength=len(self.templates))
        found: dict[str, int] = {}
        for known, number in zip(self.templates, numbers.tolist(), strict=True):
            found[known.function] = found.get(known.function, 0) + number
        return {name: number for name, number in found.items() if number}

    # -- writing; `edited` is the log sequence of the commit that contains the edit ------------------------------------

    def set(self, id_: str, value: Json, edited: int = 0) -> None:
        """Set `id_` to `value`. If `id_` has a definition, the definition is removed."""
        row = self._row_undefined(id_, edited)
        self._state[row] = OK
        self.put(row, value)

    def unset(self, id_: str, edited: int = 0) -> None:
        """Remove the value and the definition of `id_`, but not `id_` itself."""
        row = self._row_undefined(id_, edited)
        self._state[row] = UNSET
        self.put(row, None)

    def remove(self, id_: str) -> None:
        """Remove `id_` with its value and its definition, if it exists."""
        row = self.find(id_)
        if row >= 0:
            self._row_undefined(id_, 0)
            self.put(row, None)
            self._state[row] = ABSENT
            self.size -= 1
            if self.patterns is not None:
                self.patterns.value_removed(id_)
            self.gone.add(id_)
            if not self._uses[row]:
                self.release(row)

    def derive(self, definition: Derive, edited: int = 0) -> None:
        """Store a definition. If its id already has a value, the value stays and becomes stale."""
        template, ids = self.templates.split(definition)
        row = self._row_undefined(definition.id, edited)
        rows = [self._row_of(id_) for id_ in ids]
        self.definition_generation += 1
        at, count = self.refs_used, len(rows)
        self.reserve_refs(count)
        self._template[row], self._first_input[row], self._state[row] = template, at, STALE
        if self.faults:
            self.faults.pop(row, None)
        self.refs_used += count
        if count < thresholds.now.vectorized_write_min_inputs:
            for place, input_row in enumerate(rows, at):
                self._refs[place] = input_row
                self._uses[input_row] += 1
        else:
            self.refs[at : at + count] = rows
            np.add.at(self.uses, rows, 1)
        self.edges.add(row, rows)

    def reserve_refs(self, count: int) -> None:
        """Enlarge `refs`, if necessary, so that `count` more inputs fit."""
        at = self.refs_used
        if at + count > len(self.refs):
            grown = np.zeros(max(at + count, 2 * len(self.refs), MIN_REFS), np.int32)
            grown[:at] = self.refs[:at]
            self.refs, self._refs = grown, grown.data

    def extend(self, ids: list[str]) -> None:
        """Add a row for each of `ids`. The caller must then call `add_pattern` for the patterns among `ids`.

        Raise `ValueError` if an id already has a row or occurs twice.
        """
        first = self.count
        super().extend(ids)
        self.template[first : self.count] = UNDEFINED

    def _row_of(self, id_: str) -> int:
        row = self.index.get(id_, -1)
        if row < 0:
            row = self._add(id_)
            self._template[row] = UNDEFINED
            if id_[0] == PATTERN_PREFIX:
                self.add_pattern(id_)
        return row

    def add_pattern(self, key: str) -> None:
        """Register the pattern `key`, which must have a row."""
        if self.patterns is None:
            self.patterns = PatternMatches(self)
        self.patterns.add(key)

    def _row_undefined(self, id_: str, edited: int) -> int:
        """Remove the definition of `id_`, if any, and return the row of `id_`. If `id_` has no row, add one."""
        row = self._row_of(id_)
        self._touched[row] = 1
        self._edited[row] = edited
        if not self._state[row]:
            self.size += 1
            if self.patterns is not None:
                self.patterns.value_added(id_)
        elif self._template[row] >= 0:
            self._uses[row] += 1  # keeps the row from being released if its own definition has it as an input
            self._undefine(row)
            self._uses[row] -= 1
        return row

    def _undefine(self, row: int) -> None:
        rows = self.inputs(row)
        self.definition_generation += 1
        self._template[row] = UNDEFINED
        self.dead_refs += len(rows)
        self.edges.dead_edges += len(rows)
        uses, state = self._uses, self._state
        for input_row in rows:
            uses[input_row] -= 1
            if not uses[input_row] and not state[input_row]:
                self.release(input_row)

    def release(self, row: int) -> None:
        """Free `row`, which must not have a value and must not be an input of any definition."""
        if self.patterns is not None and (id_ := self.ids[row])[0] == PATTERN_PREFIX:
            self.patterns.remove(id_)
        super().release(row)

    # -- dependents -----------------------------------------------------------------------------------------------

    def reached(self, roots: Collection[str]) -> NDArray[np.intp] | None:
        """Return the rows of the derived values among `roots`, and of all values that depend on any of `roots`. Return
        None if it is faster to follow each root by itself, or if an input is a pattern."""
        if self.patterns or len(roots) < thresholds.now.reach_at_once_min_share * self.count:
            return None
        if not self.edges.are_exact(self.count):
            self._rebuild()
        found = self._rows_of(roots)
        reached = self.edges.reached(found, self.count)
        reached[found[self.template[found] >= 0]] = True
        return np.flatnonzero(reached)

    def _rows_of(self, ids: Collection[str]) -> NDArray[np.int32]:
        """Return the rows of those of `ids` that have one. Many ids are usually in the order of their rows. Then, this
        reads the ids of all rows, which takes a fifth of the time of looking up each id."""
        rest = iter(ids)
        wanted, found = next(rest, None), []
        for row, id_ in enumerate(self.ids):
            if id_ == wanted:
                found.append(row)
                wanted = next(rest, None)
        if wanted is not None:
            found += [row for id_ in (wanted, *rest) if (row := self.index.get(id_, -1)) >= 0]
        return np.array(found, np.int32)

    def _edges(self) -> Edges:
        if self.edges.stale:
            self.compact()
        return self.edges

    def compact(self) -> None:
        """Rebuild `edges` and remove unused items from `refs`, provided that there are enough new edges or unused
        items. The cost is proportional to the number of definitions."""
        if not self.patterns:
            self.patterns = None
        if not self.edges.needs_rebuild and self.dead_refs <= max(
            thresholds.now.compact_min_dead_inputs, self.refs_used // 2
        ):
            return
        self._rebuild()

    def _rebuild(self) -> None:
        owners = np.flatnonzero(self.template[: self.count] >= 0)
        places, starts, counts = self.input_places(owners)
        self.refs = self.refs[places] if len(places) else _NO_REFS
        self._refs = self.refs.data
        self.first_input[owners] = starts
        self.refs_used, self.dead_refs = len(places), 0
        self.edges.build(self.refs[: len(places)], np.repeat(owners.astype(np.int32), counts), self.count)

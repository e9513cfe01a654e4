"""Provides all values of a change set by id, from columns and from an overlay.

The overlay contains the changes that were made while open views pinned the columns. Invariant: callers see a single
mapping, no matter whether a value is in the overlay or in the columns. An overlay entry hides the value in the columns.
If the entry is None, the value was removed.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterator, KeysView, Mapping
from dataclasses import field

import numpy as np

from rebaser_core.branches.merge import same_definition
from rebaser_core.record import record
from rebaser_core.state.columns import Columns
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.state.kinds import STATE_CODES, STATES
from rebaser_core.state.patterns.globs import GlobSet
from rebaser_core.updates import PATTERN_PREFIX, Derive, Set, Unset, Update
from rebaser_core.values import Fault, Json, State, Value


@record
class Cell:
    """A stored value with its state and its definition.

    `state` is `stale` only for a derived value that has not been computed since it was defined. `edited` is the log
    sequence of the commit that last defined the value, or 0 if that is unknown.
    """

    value: Json
    state: State
    fault: Fault | None = None
    definition: Derive | None = None
    edited: int = field(default=0, compare=False)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The input ids of the definition, in its order and without repetitions. A pattern is listed as its key."""
        return tuple(dict.fromkeys(self.definition.input_ids())) if self.definition is not None else ()


UNSET_CELL = Cell(None, State.UNSET)


class Cells(Mapping[str, Cell]):
    """A mapping from ids to cells. A cell of the columns is created each time it is accessed. `pins` is the number of
    views that need `columns` to stay unchanged."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.pins = 0
        self._overlay: dict[str, Cell | None] = {}
        self._extra_uses: dict[str, int] = {}  # maps ids to their number of uses as inputs, minus the uses in `columns`
        self._extra_size = 0  # the number of values, minus the number of values in `columns`
        self._extra_errors = 0  # the number of values in state `error`, minus the number of such values in `columns`
        self._patterns: GlobSet | None = None  # the patterns among the inputs of definitions in the overlay

    # -- reading ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.columns.size + self._extra_size

    def __contains__(self, id_: object) -> bool:
        if id_ in self._overlay:
            return self._overlay[id_] is not None
        return self.columns.find(id_) >= 0  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[str]:
        over, ids = self._overlay, self.columns.ids
        yield from [id_ for row in self.columns.rows().tolist() if (id_ := ids[row]) not in over]
        yield from [id_ for id_, cell in over.items() if cell is not None]

    def __getitem__(self, id_: str) -> Cell:
        if (cell := self._overlay[id_] if id_ in self._overlay else self.base_cell(id_)) is None:
            raise KeyError(id_)
        return cell

    def base_cell(self, id_: str) -> Cell | None:
        """Return the cell of `id_` in the columns, or None. The overlay is ignored."""
        row = self.columns.find(id_)
        return self.at(row) if row >= 0 else None

    def at(self, row: int) -> Cell:
        """Return the cell in the row `row` of the columns."""
        columns = self.columns
        return Cell(
            columns.value(row),
            STATES[columns.state[row]],
            columns.faults.get(row),
            columns.definition(row),
            int(columns.edited[row]),
        )

    def value(self, id_: str) -> Value | None:
        """Return the stored value of `id_`, or None if `id_` does not exist. Unlike `get`, this method creates no
        definition object."""
        if id_ in self._overlay:
            cell = self._overlay[id_]
            return None if cell is None else Value(cell.value, cell.state, cell.fault)
        columns = self.columns
        row = columns.find(id_)
        return Value(columns.value(row), STATES[columns.state[row]], columns.faults.get(row)) if row >= 0 else None

    def edited(self, id_: str) -> int:
        """Return the log sequence of the commit that last defined `id_`; 0 if it is unknown, or there is no such id."""
        if id_ in self._overlay:
            cell = self._overlay[id_]
            return 0 if cell is None else cell.edited
        row = self.columns.find(id_)
        return int(self.columns.edited[row]) if row >= 0 else 0

    def iter_values(self) -> Iterator[tuple[str, Value]]:
        """Yield all ids with their values. Unlike `items`, this method creates no definition objects."""
        columns, over = self.columns, self._overlay
        ids, value, state, faults = columns.ids, columns.value, columns.state, columns.faults
        for row in columns.rows().tolist():
            if (id_ := ids[row]) not in over:
                yield id_, Value(value(row), STATES[state[row]], faults.get(row))
        for id_, cell in over.items():
            if cell is not None:
                yield id_, Value(cell.value, cell.state, cell.fault)

    def states(self) -> dict[State, int]:
        """Return the number of values in each stored state."""
        columns, over = self.columns, self._overlay
        by_code = np.bincount(columns.state[columns.rows()]).tolist()
        counts = Counter({STATES[code]: count for code, count in enumerate(by_code)})
        for id_, cell in over.items():
            row = columns.find(id_)
            if row >= 0:
                counts[STATES[columns.state[row]]] -= 1
            if cell is not None:
                counts[cell.state] += 1
        return counts

    @property
    def errors(self) -> int:
        """The number of values in state `error`."""
        return len(self.columns.faults) + self._extra_errors

    def is_error(self, id_: str) -> bool:
        """Return whether `id_` exists and is in state `error`."""
        if id_ in self._overlay:
            return (cell := self._overlay[id_]) is not None and cell.fault is not None
        return self.columns.find(id_) in self.columns.faults

    def faults(self) -> Iterator[tuple[str, Fault]]:
        """Yield the ids and faults of values in state `error`."""
        columns, over = self.columns, self._overlay
        for row, fault in columns.faults.items():
            if (id_ := columns.ids[row]) not in over:
                yield id_, fault
        for id_, cell in over.items():
            if cell is not None and cell.fault is not None:
                yield id_, cell.fault

    def is_derived(self, id_: str) -> bool:
        """Return whether `id_` exists and has a definition."""
        if id_ in self._overlay:
            cell = self._overlay[id_]
            return cell is not None and cell.definition is not None
        row = self.columns.find(id_)
        return row >= 0 and self.columns.template[row] >= 0

    def derived(self, functions: frozenset[str] | None = None) -> Iterator[str]:
        """Yield the ids of all derived values or, if `functions` is given, only of those derived by one of them. The
        whole change set is searched."""
        over, ids = self._overlay, self.columns.ids
        yield from [id_ for row in self.columns.derived(functions).tolist() if (id_ := ids[row]) not in over]
        for id_, cell in over.items():
            definition = None if cell is None else cell.definition
            if definition is not None and (functions is None or definition.function in functions):
                yield id_

    def functions_of_faults(self, code: str) -> set[str]:
        """Return the functions of derived values whose fault has the code `code`. All faults are searched."""
        columns, over = self.columns, self._overlay
        of_template = {int(columns.template[row]): row for row, fault in columns.faults.items() if fault.code == code}
        found = [columns.definition(row) for row in of_template.values()]
        found += [one.definition for one in over.values() if one and one.fault and one.fault.code == code]
        return {definition.function for definition in found if definition is not None}

    def unknown_functions(self, known: Container[str]) -> set[str]:
        """Return those functions of current and past definitions in the columns that are not in `known`."""
        return {name for name in self.columns.templates.functions if name not in known}

    def uses(self, function: str | None) -> bool:
        """Return whether a value is or was derived by `function` or, if `function` is None, by any function. The whole
        overlay is searched."""
        known = self.columns.templates.functions
        if known if function is None else function in known:
            return True
        definitions = (cell.definition for cell in self._overlay.values() if cell is not None)
        return any(derive is not None and function in (None, derive.function) for derive in definitions)

    def is_input(self, id_: str) -> bool:
        """Return whether a definition has `id_`, or a pattern that matches `id_`, as an input. `id_` may be an id that
        does not exist."""
        used, uses = self.columns.used, self._extra_uses
        if self.columns.patterns is None and self._patterns is None:
            return used(id_) + uses.get(id_, 0) > 0
        return any(used(name) + uses.get(name, 0) > 0 for name in self._names(id_))

    def _names(self, id_: str) -> list[str]:
        """Return the inputs through which a definition may use `id_`: `id_` itself, and the keys of the patterns that
        match `id_`."""
        names = [id_]
        if self.columns.patterns:
            names += self.columns.patterns.keys(id_)
        if self._patterns is not None:
            names += [key for glob in self._patterns.matching(id_) if (key := PATTERN_PREFIX + glob) not in names]
        return names

    # -- writing ---------------------------------------------------------------------------------------------------

    @property
    def overlay_empty(self) -> bool:
        """Whether all values are in the columns."""
        return not self._overlay

    @property
    def overlaid(self) -> KeysView[str]:
        """The ids of all entries in the overlay, including those of values that were removed but are still in the
        columns."""
        return self._overlay.keys()

    def apply(self, update: Update, edited: int = 0) -> bool:
        """Apply `update`, which belongs to the commit at log sequence `edited`. Return false if it has no effect,
        because it removes an id that does not exist."""
        if self.pins or self._overlay:
            return self._write_overlay(update, edited)
        columns = self.columns
        if type(update) is Set:
            columns.set(update.id, update.value, edited)
        elif type(update) is Derive:
            columns.derive(update, edited)
        elif type(update) is Unset:
            columns.unset(update.id, edited)
        elif columns.find(update.id) < 0:
            return False
        else:
            columns.remove(update.id)
        return True

    def _write_overlay(self, update: Update, edited: int) -> bool:
        """Apply an update to the overlay. The parameters and the result are the same as for `apply`."""
        id_ = update.id
        columns, overlaid, row = self.columns, None, -1
        if id_ in self._overlay:
            overlaid = self._overlay[id_]
        else:
            row = columns.find(id_)  # faster than `base_cell`, which would create a definition object
        exists = row >= 0 or overlaid is not None
        cell: Cell | None = None
        if type(update) is Set:
            cell = Cell(update.value, State.OK, edited=edited)
        elif type(update) is Derive:
            value = columns.value(row) if row >= 0 else overlaid.value if overlaid is not None else None
            cell = Cell(value, State.STALE, None, update, edited)
            self._count_inputs(update, 1)
        elif type(update) is Unset:
            cell = Cell(None, State.UNSET, edited=edited)
        elif not exists:
            return False
        replaced = columns.definition(row) if row >= 0 else overlaid.definition if overlaid is not None else None
        if replaced is not None:
            self._count_inputs(replaced, -1)
        self._extra_size += (cell is not None) - exists
        self._extra_errors -= row in columns.faults if overlaid is None else overlaid.fault is not None
        self._overlay[id_] = cell
        return True

    def _count_inputs(self, definition: Derive, change: int) -> None:
        """Add `change` to `_extra_uses` for each input of `definition`, and add its patterns to `_patterns`."""
        uses = self._extra_uses
        for input_id in definition.input_ids():
            uses[input_id] = uses.get(input_id, 0) + change
            if input_id[0] == PATTERN_PREFIX:
                self._patterns = GlobSet() if self._patterns is None else self._patterns
                self._patterns.add(input_id[1:])

    def merge_overlay(self, at_most: int) -> bool:
        """Move up to `at_most` cells from the overlay to the columns. Return whether more cells remain.

        While the columns are pinned, move no cell and return false.
        """
        overlay = self._overlay
        if self.pins or not overlay:
            return False
        while overlay and at_most:
            at_most -= 1
            self._merge_cell(*overlay.popitem())
        if not overlay:
            self._extra_uses.clear()
            self._extra_size = self._extra_errors = 0
            self._patterns = None
        return bool(overlay)

    def _merge_cell(self, id_: str, cell: Cell | None) -> None:
        """Write one cell of the overlay to the columns. The columns then count the value and its inputs, so this method
        subtracts them from `_extra_size`, `_extra_errors` and `_extra_uses`."""
        columns = self.columns
        size, errors = columns.size, len(columns.faults)
        row = columns.find(id_)
        replaced = columns.definition(row) if row >= 0 else None
        definition = cell.definition if cell is not None else None
        if replaced is not None:
            self._count_inputs(replaced, 1)
        if definition is not None:
            self._count_inputs(definition, -1)
        if cell is None:
            columns.remove(id_)
        elif definition is not None:
            if replaced is None or not same_definition(replaced, definition):
                columns.derive(definition)
            row = columns.index[id_]
            columns.put(row, cell.value, cell.fault)
            columns.state[row], columns.edited[row] = STATE_CODES[cell.state], cell.edited
        elif cell.state is State.UNSET:
            columns.unset(id_, cell.edited)
        else:
            columns.set(id_, cell.value, cell.edited)
        self._extra_size -= columns.size - size
        self._extra_errors -= len(columns.faults) - errors

    def store_result(self, id_: str, value: Json, fault: Fault | None) -> None:
        """Store the computed value or the fault of `id_`, if `id_` exists and is derived."""
        if self.pins or self._overlay:
            cell = self.get(id_)
            if cell is not None and cell.definition is not None:
                state = State.OK if fault is None else State.ERROR
                self._extra_errors += (fault is not None) - (cell.fault is not None)
                self._overlay[id_] = Cell(value, state, fault, cell.definition, cell.edited)
            return
        columns = self.columns
        row = columns.find(id_)
        if row >= 0 and columns.template[row] >= 0:
            columns.computed(row, value, fault)

    def store_results(self, table: ComputedTable) -> None:
        """Store the computed values and faults in `table`. Ids that do not exist or are not derived are ignored."""
        columns = self.columns
        rows = table.rows
        if self.pins or self._overlay:
            for item in table:
                self.store_result(item.id, item.value, item.fault)
            return
        if rows is None or table.columns is not columns:
            index = columns.index
            found = np.array([index.get(id_, -1) for id_ in table.ids], np.int32)
            derived = (found >= 0) & (columns.template[found] >= 0)
            if not derived.all():
                table, found = table.filter(derived), found[derived]
            rows = found
        columns.computed_all(rows, table.kinds, table.bits, table.others, table.faults)

    def updates(self) -> Iterator[Update]:
        """Return updates that recreate all values and definitions in an empty change set."""
        return filter(None, map(self.edit_of, self))

    def edit_of(self, id_: str) -> Update | None:
        """Return the update that recreates `id_`, or None if `id_` does not exist."""
        if id_ in self._overlay:
            cell = self._overlay[id_]
            if cell is None:
                return None
            return cell.definition or (Unset(id_) if cell.state is State.UNSET else Set(id_, cell.value))
        return self.columns.edit_of(id_)

    def dependents(self, id_: str) -> list[str]:
        """Return the ids of the values whose definitions have `id_`, or a pattern that matches `id_`, as an input. The
        order is undefined."""
        over = self._overlay
        columns = self.columns
        names = self._names(id_)
        rows = [row for name in names if (row := columns.index.get(name, -1)) >= 0]
        found = [columns.ids[dependent] for row in rows for dependent in columns.dependents(row)]
        if len(rows) > 1:
            found = list(dict.fromkeys(found))
        if over:
            found = [dependent for dependent in found if dependent not in over]
            found += [
                user for user, cell in over.items() if cell is not None and not set(names).isdisjoint(cell.inputs)
            ]
        return found

    def reached(self, roots: Collection[str]) -> set[str]:
        """Return the ids of the derived values among `roots`, and of all values that depend on any of `roots`."""
        if not self.pins and not self._overlay and (known := self.columns.reached(roots)) is not None:
            return {self.columns.ids[row] for row in known.tolist()}
        todo = list(roots)
        found = {id_ for id_ in todo if self.is_derived(id_)}
        while todo:
            for dependent in self.dependents(todo.pop()):
                if dependent not in found:
                    found.add(dependent)
                    todo.append(dependent)
        return found

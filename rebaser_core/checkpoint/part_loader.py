"""Loads the rows of a checkpoint's part into the columns of a state, one batch after another.

Invariant: after `close`, the columns contain the same data as if the values had been set, derived and removed one by
one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rebaser_core import thresholds
from rebaser_core.encoding.payload import malformed
from rebaser_core.state.columns import Columns
from rebaser_core.state.kinds import ABSENT, ERROR, OTHER, UNDEFINED
from rebaser_core.updates import PATTERN_PREFIX
from rebaser_core.values import Fault, Json

REFERENCE = 255  # the state of a row that serves only as an id to which other rows refer


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Consecutive rows of a part, as arrays with one item for each row.

    `kinds`, `bits` and `others` encode the values (see `rebaser_core.state.kinds`). `faults` maps positions in the
    batch to faults. `templates` contains indexes of `Columns.templates`, or -1 for a row without a definition. `refs`
    contains the inputs of all rows, one row after another, as row numbers of the part. `edited` has the same meaning as
    in `Columns`.
    """

    ids: list[str]
    states: NDArray[np.uint8]
    kinds: NDArray[np.uint8]
    bits: NDArray[np.int64]
    others: dict[int, Json]
    faults: dict[int, Fault]
    templates: NDArray[np.int32]
    refs: NDArray[np.int32]
    edited: NDArray[np.int64]


class PartLoader:
    """Loads one part of a checkpoint into `columns`. The caller passes all rows, in order, to `add`, and then calls
    `close`.

    Both methods raise `UnprocessableError` if the rows contradict each other. The columns are unusable afterwards.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._all_new = not columns.count  # empty columns contain no id yet, so no id has to be looked up
        self._first_ref = columns.refs_used
        self._rows: list[NDArray[np.int32]] = []
        self._dropped: list[NDArray[np.int32]] = []  # inputs of definitions that were replaced
        self.count = 0

    def add(self, batch: RowBatch) -> None:
        """Load the next rows of the part."""
        columns = self._columns
        rows = self._rows_of(batch.ids)
        self._rows.append(rows)
        self.count += len(rows)
        given = batch.states != REFERENCE
        bare = np.flatnonzero(~given | (batch.states == ABSENT))
        if (
            (batch.templates[bare] >= 0).any()
            or batch.kinds[bare].any()
            or batch.edited[bare].any()
            or not batch.faults.keys().isdisjoint(bare.tolist())
        ):
            raise malformed("a checkpoint row that only lists or removes an id has a value, definition or error")
        if batch.faults.keys() != set(np.flatnonzero(batch.states == ERROR).tolist()):
            raise malformed("a checkpoint row must have an error if and only if its state is 'error'")
        for position in bare.tolist():
            if batch.ids[position][0] == PATTERN_PREFIX:
                columns.add_pattern(batch.ids[position])
        written = rows[given]
        self._clear(written)
        columns.state[written], columns.kind[written] = batch.states[given], batch.kinds[given]
        columns.bits[written], columns.edited[written] = batch.bits[given], batch.edited[given]
        for position, value in batch.others.items():
            columns.other[int(rows[position])] = value
        for position, fault in batch.faults.items():
            columns.faults[int(rows[position])] = fault
        self._define(rows, batch)

    def _rows_of(self, ids: list[str]) -> NDArray[np.int32]:
        """Return the row numbers of `ids` in the columns, after appending a row for each new id."""
        columns, first = self._columns, self._columns.count
        if self._all_new:
            columns.extend(ids)
            return np.arange(first, columns.count, dtype=np.int32)
        find = columns.index.get
        found = np.full(len(ids), -1, np.int32)
        known = len(ids) - columns.expected_at_end(ids)  # the others have no row yet
        found[:known] = [find(id_, -1) for id_ in ids[:known]]
        found[found >= first] = -1  # the index of adopted columns contains ids that have no row yet
        new = np.flatnonzero(found < 0)
        columns.extend([ids[position] for position in new.tolist()])
        found[new] = np.arange(first, columns.count, dtype=np.int32)
        return found

    def _clear(self, rows: NDArray[np.int32]) -> None:
        """Remove the values, faults and definitions in `rows`."""
        columns = self._columns
        for row in rows[columns.kind[rows] == OTHER].tolist():
            columns.other.pop(row, None)
        if columns.faults:
            for row in rows[columns.state[rows] == ERROR].tolist():
                columns.faults.pop(row, None)
        defined = rows[columns.template[rows] >= 0]
        if len(defined):
            if (
                (columns.first_input[defined] >= self._first_ref)
                & (columns.templates.arity[columns.template[defined]] > 0)
            ).any():
                raise malformed("an id occurs twice in a part of the checkpoint")
            inputs = columns.refs[columns.input_places(defined)[0]]
            self._count(inputs, -1)
            self._dropped.append(inputs)
            columns.dead_refs += len(inputs)
            columns.template[defined] = UNDEFINED
            columns.definition_generation += len(defined)

    def _define(self, rows: NDArray[np.int32], batch: RowBatch) -> None:
        columns = self._columns
        defined = batch.templates >= 0
        if not defined.any():
            return
        owners, templates = rows[defined], batch.templates[defined]
        columns.definition_generation += len(owners)
        counts = columns.templates.arity[templates].astype(np.int64)
        at = columns.refs_used
        columns.reserve_refs(len(batch.refs))
        columns.refs[at : at + len(batch.refs)] = batch.refs
        columns.refs_used = at + len(batch.refs)
        columns.template[owners], columns.first_input[owners] = templates, at + np.cumsum(counts) - counts

    def close(self) -> None:
        """Convert inputs from row numbers of the part to row numbers of the columns, and free rows that are not needed.
        Raise `UnprocessableError` if an id occurs twice, or if an input is not a row of the part."""
        columns = self._columns
        rows = np.concatenate([np.zeros(0, np.int32), *self._rows])
        self._rows.clear()
        if _repeats(rows, columns.count):
            raise malformed("an id occurs twice in a part of the checkpoint")
        refs = columns.refs[self._first_ref : columns.refs_used]
        if len(refs):
            if refs.min() < 0 or refs.max() >= len(rows):
                raise malformed("an input refers to a row that its part of the checkpoint does not have")
            refs[:] = rows[refs]
            self._count(refs, 1)
        columns.edges.stale = True
        dropped = np.unique(np.concatenate([np.zeros(0, np.int32), *self._dropped]))
        for candidates in (rows, dropped):
            unused = (columns.state[candidates] == ABSENT) & (columns.uses[candidates] == 0)
            for row in candidates[unused].tolist():
                if columns.ids[row]:  # a row without an id has already been freed
                    columns.settle()
                    columns.release(row)
        columns.size = int(np.count_nonzero(columns.state[: columns.count]))

    def _count(self, inputs: NDArray[np.int32], change: int) -> None:
        """Add `change` to the number of uses of each row in `inputs`."""
        uses = self._columns.uses
        if len(inputs) < thresholds.now.vectorized_count_min_rows:
            np.add.at(uses, inputs, change)
        else:
            uses += change * np.bincount(inputs, minlength=len(uses)).astype(np.int32)


def _repeats(rows: NDArray[np.int32], count: int) -> bool:
    if len(rows) < thresholds.now.vectorized_count_min_rows:
        return len(np.unique(rows)) < len(rows)
    return bool(np.bincount(rows, minlength=count).max() > 1)

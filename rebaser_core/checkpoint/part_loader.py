"""Puts the rows of a part into columns, many at a time.

Invariant: when a layer is closed the columns are as if its rows had been set, derived and removed one by one.
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

SAID_ELSEWHERE = 255  # the state of a row that is only named


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Some rows of a part. `others` and `faults` are by position; `templates` are the columns'; `refs` rows of the
    part, those of one after those of another.
    """

    ids: list[str]
    states: NDArray[np.uint8]
    kinds: NDArray[np.uint8]
    bits: NDArray[np.int64]
    others: dict[int, Json]
    faults: dict[int, Fault]
    templates: NDArray[np.int32]
    refs: NDArray[np.int32]


class PartLoader:
    """A part on its way into `columns`: `add` its rows, in order, then `close`.

    Both raise `UnprocessableError` where the rows contradict each other; the columns are of no use then.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._first = not columns.count  # so that all ids are new
        self._first_ref = columns.refs_used
        self._rows: list[NDArray[np.int32]] = []
        self._dropped: list[NDArray[np.int32]] = []  # inputs of definitions that are no more
        self.count = 0

    def add(self, some: RowBatch) -> None:
        columns = self._columns
        rows = self._rows_of(some.ids)
        self._rows.append(rows)
        self.count += len(rows)
        said = some.states != SAID_ELSEWHERE
        bare = np.flatnonzero(~said | (some.states == ABSENT))
        if (
            (some.templates[bare] >= 0).any()
            or some.kinds[bare].any()
            or not some.faults.keys().isdisjoint(bare.tolist())
        ):
            raise malformed("there is a value where there is none")
        for at in bare.tolist():
            if some.ids[at][0] == PATTERN_PREFIX:
                columns.add_pattern(some.ids[at])
        self._forget(rows[said])
        there = rows[said]
        columns.state[there], columns.kind[there] = some.states[said], some.kinds[said]
        columns.bits[there] = some.bits[said]
        for at, value in some.others.items():
            columns.other[int(rows[at])] = value
        for at, fault in some.faults.items():
            columns.faults[int(rows[at])] = fault
        self._define(rows, some)

    def _rows_of(self, ids: list[str]) -> NDArray[np.int32]:
        """The rows of `ids`, made where there is none."""
        columns, first = self._columns, self._columns.count
        if self._first:
            columns.extend(ids)
            return np.arange(first, columns.count, dtype=np.int32)
        find = columns.index.get
        found = np.array([find(id_, -1) for id_ in ids], np.int32)
        new = np.flatnonzero(found < 0)
        columns.extend([ids[at] for at in new.tolist()])
        found[new] = np.arange(first, columns.count, dtype=np.int32)
        return found

    def _forget(self, rows: NDArray[np.int32]) -> None:
        """Take away what stands in `rows`."""
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
                raise malformed("an id stands twice in a part")
            inputs = columns.refs[columns.input_places(defined)[0]]
            self._count(inputs, -1)
            self._dropped.append(inputs)
            columns.dead_refs += len(inputs)
            columns.template[defined] = UNDEFINED
            columns.definition_generation += len(defined)

    def _define(self, rows: NDArray[np.int32], some: RowBatch) -> None:
        columns = self._columns
        defined = some.templates >= 0
        if not defined.any():
            return
        owners, templates = rows[defined], some.templates[defined]
        columns.definition_generation += len(owners)
        counts = columns.templates.arity[templates].astype(np.int64)
        at = columns.refs_used
        columns.reserve_refs(len(some.refs))
        columns.refs[at : at + len(some.refs)] = some.refs
        columns.refs_used = at + len(some.refs)
        columns.template[owners], columns.first_input[owners] = templates, at + np.cumsum(counts) - counts

    def close(self) -> None:
        """Resolve inputs, free what nobody needs."""
        columns = self._columns
        rows = np.concatenate([np.zeros(0, np.int32), *self._rows])
        self._rows.clear()
        if _repeats(rows, columns.count):
            raise malformed("an id stands twice in a part")
        refs = columns.refs[self._first_ref : columns.refs_used]
        if len(refs):
            if refs.min() < 0 or refs.max() >= len(rows):
                raise malformed("an input is no row of its part")
            refs[:] = rows[refs]
            self._count(refs, 1)
        columns.edges.stale = True
        dropped = np.unique(np.concatenate([np.zeros(0, np.int32), *self._dropped]))
        for some in (rows, dropped):
            for row in some[(columns.state[some] == ABSENT) & (columns.uses[some] == 0)].tolist():
                if columns.ids[row]:  # else it is free already
                    columns.release(row)
        columns.size = int(np.count_nonzero(columns.state[: columns.count]))

    def _count(self, inputs: NDArray[np.int32], one: int) -> None:
        uses = self._columns.uses
        if len(inputs) < thresholds.now.counted:
            np.add.at(uses, inputs, one)
        else:
            uses += one * np.bincount(inputs, minlength=len(uses)).astype(np.int32)


def _repeats(rows: NDArray[np.int32], count: int) -> bool:
    if len(rows) < thresholds.now.counted:
        return len(np.unique(rows)) < len(rows)
    return bool(np.bincount(rows, minlength=count).max() > 1)

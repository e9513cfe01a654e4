"""Finds the changes of a target since the base of a branch, by comparing the two states instead of reading commits.

Undoing the changes of a branch gives the definitions that the target had at the base. The target has changed a
definition since then if its current definition differs from the one at the base.
"""

from collections.abc import Container, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from rebaser_core.branches.merge import Definition, same_definition
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.columns import Columns
from rebaser_core.state.kinds import OTHER
from rebaser_core.state.overlay import Cells

SLOW = 100  # the maximum number of ids in one step if their definitions are compared one by one


def definitions_that_differ(
    branch: ChangeSetState, changes: Mapping[str, Definition], target: ChangeSetState, step: int
) -> Iterator[dict[str, Definition]]:
    """Yield, in several parts, the definitions in `target` that differ from those at the base of `branch`.

    Each part maps ids to definitions in the target; None means that the value does not exist in the target. `changes`
    contains the edits that were made on the branch. Until the generator ends, the caller must not fold an edit into the
    branch, but may fold computed values. Ids are processed in steps of `step` ids. Each step first compares the
    columns, which skips values without definitions that are equal in both states, and then compares the remaining ids
    one by one.
    """
    cells, theirs = branch.cells, target.cells

    def stood(id_: str) -> Definition:
        return changes[id_] if id_ in changes else cells.edit_of(id_)

    rows = theirs.columns.rows()
    for start in range(0, len(rows), step):
        some = _doubtful(cells, changes, theirs.columns, rows[start : start + step])
        for first in range(0, len(some), SLOW):
            part = [(id_, theirs.edit_of(id_)) for id_ in some[first : first + SLOW]]
            yield {id_: their for id_, their in part if not same_definition(stood(id_), their)}
    for ids in (list(changes), list(cells.overlaid), *_ids(cells.columns, step)):
        for first in range(0, len(ids), step):
            gone = [id_ for id_ in ids[first : first + step] if id_ not in theirs]
            yield {id_: None for id_ in gone if stood(id_) is not None}


def _ids(columns: Columns, step: int) -> Iterator[list[str]]:
    rows, ids = columns.rows(), columns.ids
    for start in range(0, len(rows), step):
        yield [ids[row] for row in rows[start : start + step].tolist()]


def _doubtful(cells: Cells, changes: Container[str], theirs: Columns, rows: NDArray[np.intp]) -> list[str]:
    """Return the ids of those `rows` of the target whose definitions may differ from those at the base.

    The other rows have no definitions, and their values in the branch are the same.
    """
    mine = cells.columns
    index, ids, over = mine.index, [theirs.ids[row] for row in rows.tolist()], cells.overlaid
    at = np.array([index.get(id_, -1) for id_ in ids], np.intp)
    plain = (at >= 0) & (mine.template[at] < 0) & (theirs.template[rows] < 0) & (theirs.kind[rows] != OTHER)
    equal = (mine.state[at] == theirs.state[rows]) & (mine.kind[at] == theirs.kind[rows])
    equal &= plain & (mine.bits[at] == theirs.bits[rows])
    return [id_ for id_, same in zip(ids, equal.tolist(), strict=True) if not same or id_ in over or id_ in changes]

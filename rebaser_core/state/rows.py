"""Lists all values of a state as tuples, for readers that export them. This is faster than creating `Value` objects."""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.kinds import CONSTANTS, OTHER, STATES, decode
from rebaser_core.values import Fault, Json, State

Row: TypeAlias = tuple[str, Json, State, Fault | None]  # the id, followed by the fields of a `Value`


def all_rows(state: ChangeSetState) -> Iterator[Row]:
    """Yield the content of `state.values()` as rows, sorted by id. `state` must not have an open view."""
    stale = state.stale()  # this also merges the overlay, so all values are then in the columns
    columns = state.cells.columns
    ids = sorted(map(columns.ids.__getitem__, columns.rows().tolist()))
    rows = np.fromiter(map(columns.index.__getitem__, ids), np.int64, len(ids))
    kinds = columns.kind[rows]
    others = {place: columns.other[int(rows[place])] for place in np.flatnonzero(kinds == OTHER).tolist()}
    values = decode(kinds, columns.bits[rows], others, CONSTANTS)
    for id_, value, code, row in zip(ids, values, columns.state[rows].tolist(), rows.tolist(), strict=True):
        if id_ in stale:
            yield id_, value, State.STALE, None
        else:
            yield id_, value, STATES[code], columns.faults.get(row)

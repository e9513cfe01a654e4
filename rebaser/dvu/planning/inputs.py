"""Reads the values that a packet needs: its constants, and the baselines (the stored values with which a worker
compares its results).

Invariant: the data that this module reads, rows of a view and results of earlier waves, does not change while Spark
computes a packet.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rebaser.dvu import faults
from rebaser.dvu.planning.subgraph import Ints, Subgraph
from rebaser.dvu.wire.column import DIGEST, FAULT, MISSING, NO_VALUE, NULL, OTHER, UNKNOWN, Column, Item
from rebaser.dvu.wire.equality import baseline, fault_digest
from rebaser.dvu.wire.packet import estimated_size
from rebaser_core.state.columns import Columns
from rebaser_core.state.kinds import ABSENT, ERROR, STALE, UNSET
from rebaser_core.values import Fault, Json

_NUMBER_BYTES = estimated_size(0)
_NO_VALUE_BYTES = 1  # bytes of a constant that is in error or does not exist


@dataclass(slots=True)
class NewValues:
    """The results that have arrived so far, by position in a `Subgraph`.

    If `changed[i]` is True, position `i` has a new result of kind `kinds[i]`. A number is in `bits[i]`; a text, list or
    map in `others[i]`; a fault in `faults[i]`.
    """

    changed: npt.NDArray[np.bool_]
    kinds: npt.NDArray[np.uint8]
    bits: npt.NDArray[np.int64]
    others: dict[int, Json] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)

    @classmethod
    def none(cls, count: int) -> "NewValues":
        """Return an object for `count` positions that has no results yet."""
        return cls(np.zeros(count, np.bool_), np.zeros(count, np.uint8), np.zeros(count, np.int64))


def row_kinds(columns: Columns, rows: Ints) -> npt.NDArray[np.uint8]:
    """Return the kinds that the values in `rows` have as inputs: `NULL` for an unset value, `FAULT` for a value in
    error, and `MISSING` for a value that does not exist."""
    state, kinds = columns.state[rows], columns.kind[rows]
    kinds[state == UNSET] = NULL
    kinds[state == ERROR] = FAULT
    kinds[state == ABSENT] = MISSING
    return kinds


def row_sizes(columns: Columns, rows: Ints) -> npt.NDArray[np.int64]:
    """Return the approximate number of bytes that the value in each of `rows` takes as a constant of a packet."""
    kinds = row_kinds(columns, rows)
    sizes = np.full(len(rows), _NUMBER_BYTES, np.int64)
    sizes[(kinds == FAULT) | (kinds == MISSING)] = _NO_VALUE_BYTES
    for index in np.flatnonzero(kinds == OTHER).tolist():
        sizes[index] = estimated_size(columns.other[rows[index]])
    return sizes


def constant_column(codes: Ints, columns: Columns, graph: Subgraph, new: NewValues) -> Column:
    """Return a column of the values that `codes` denote, in the same order.

    The code `-k - 1` denotes constant `k` of `graph`. Any other code is a position of `graph` whose value is already
    computed. If that value changed, the column contains the result in `new`, otherwise the stored value.
    """
    positions = np.maximum(codes, 0)
    inside = codes >= 0
    rows = graph.rows[positions]
    rows[~inside] = graph.outside[-codes[~inside] - 1]
    changed = inside & new.changed[positions] if len(new.changed) else inside
    kinds, bits = row_kinds(columns, rows), columns.bits[rows]
    if changed.any():
        kinds[changed], bits[changed] = new.kinds[positions[changed]], new.bits[positions[changed]]
    others: dict[int, Any] = {}
    for index in np.flatnonzero(kinds == OTHER).tolist():
        others[index] = new.others[int(codes[index])] if changed[index] else columns.other[int(rows[index])]
    return Column(kinds, bits, others)


def input_item(column: Column, index: int) -> Item:
    """Return the input at `index` of `column`. It is a `Sentinel` if the input does not exist or is in error."""
    return NO_VALUE if column.kinds[index] == MISSING else column[index]


def baseline_column(rows: Ints, columns: Columns) -> Column:
    """Return the stored values and faults of `rows`, in the form in which a worker compares them with its results.

    The column contains a small value as it is, and a large value as a digest. A fault whose message mentions no other
    value is also a digest. A fault whose message mentions another value is only the kind `FAULT`, and a stale value is
    only the kind `UNKNOWN`.
    """
    state, kinds, bits = columns.state[rows], columns.kind[rows], columns.bits[rows]
    kinds[state == STALE] = UNKNOWN
    others: dict[int, Any] = {}
    for index in np.flatnonzero(state == ERROR).tolist():
        fault = columns.faults[int(rows[index])]
        kinds[index] = FAULT if fault.code in faults.FROM_INPUTS else DIGEST
        if kinds[index] == DIGEST:
            others[index] = fault_digest(fault.code, fault.message)
    for index in np.flatnonzero(kinds == OTHER).tolist():
        others[index] = item = baseline(columns.other[int(rows[index])])
        if not isinstance(item, str):
            kinds[index] = DIGEST
    return Column(kinds, bits, others)

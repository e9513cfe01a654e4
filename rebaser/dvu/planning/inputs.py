"""Packets from what is settled: constants, and what stood at each node.

Invariant: what is read here, rows of a view and results of earlier waves, does not change while a packet is out.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rebaser.dvu import faults
from rebaser.dvu.planning.subgraph import Ints, Subgraph
from rebaser.dvu.wire.column import DIGEST, FAULT, IN_ERROR, MISSING, NO_VALUE, NULL, OTHER, UNKNOWN, Column, Item
from rebaser.dvu.wire.equality import baseline, fault_digest
from rebaser.dvu.wire.packet import estimated_size
from rebaser_core.state.columns import Columns
from rebaser_core.state.kinds import ABSENT, ERROR, STALE, UNSET
from rebaser_core.values import Fault, Json

_NUMBER = estimated_size(0)
_NOTHING = 1  # bytes of a constant that is in error or missing


@dataclass(slots=True)
class NewValues:
    """What is new by position: where `changed`, a value (`kinds`, `bits`, `others`) or a fault."""

    changed: npt.NDArray[np.bool_]
    kinds: npt.NDArray[np.uint8]
    bits: npt.NDArray[np.int64]
    others: dict[int, Json] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)

    @classmethod
    def none(cls, count: int) -> "NewValues":
        """Nothing new at any of `count` positions."""
        return cls(np.zeros(count, np.bool_), np.zeros(count, np.uint8), np.zeros(count, np.int64))

    def value(self, at: int) -> Json:
        """The new value at a position."""
        kind = self.kinds[at]
        if kind == OTHER:
            return self.others[at]
        found: Any = Column(self.kinds[at : at + 1], self.bits[at : at + 1])[0]
        return None if found is IN_ERROR else found


def row_kinds(columns: Columns, rows: Ints) -> npt.NDArray[np.uint8]:
    """What the values in `rows` are as inputs."""
    state, kinds = columns.state[rows], columns.kind[rows]
    kinds[state == UNSET] = NULL
    kinds[state == ERROR] = FAULT
    kinds[state == ABSENT] = MISSING
    return kinds


def row_weights(columns: Columns, rows: Ints) -> npt.NDArray[np.int64]:
    """About how many bytes each value in `rows` takes as a constant."""
    kinds = row_kinds(columns, rows)
    weights = np.full(len(rows), _NUMBER, np.int64)
    weights[(kinds == FAULT) | (kinds == MISSING)] = _NOTHING
    for at in np.flatnonzero(kinds == OTHER).tolist():
        weights[at] = estimated_size(columns.other[rows[at]])
    return weights


def constants_of(codes: Ints, columns: Columns, graph: Subgraph, found: NewValues) -> Column:
    """The inputs behind `codes`: `-k - 1` is constant k of the graph, any other a settled position."""
    positions = np.maximum(codes, 0)
    inside = codes >= 0
    rows = graph.rows[positions]
    rows[~inside] = graph.outside[-codes[~inside] - 1]
    fresh = inside & found.changed[positions] if len(found.changed) else inside
    kinds, bits = row_kinds(columns, rows), columns.bits[rows]
    if fresh.any():
        kinds[fresh], bits[fresh] = found.kinds[positions[fresh]], found.bits[positions[fresh]]
    others: dict[int, Any] = {}
    for at in np.flatnonzero(kinds == OTHER).tolist():
        others[at] = found.others[int(codes[at])] if fresh[at] else columns.other[int(rows[at])]
    return Column(kinds, bits, others)


def input_item(column: Column, at: int) -> Item:
    """One constant; an input that is missing or in error is a mark."""
    return NO_VALUE if column.kinds[at] == MISSING else column[at]


def olds_of(rows: Ints, columns: Columns) -> Column:
    """What stood in `rows`, as a worker needs it to tell whether it changed."""
    state, kinds, bits = columns.state[rows], columns.kind[rows], columns.bits[rows]
    kinds[state == STALE] = UNKNOWN
    others: dict[int, Any] = {}
    for at in np.flatnonzero(state == ERROR).tolist():
        fault = columns.faults[int(rows[at])]
        kinds[at] = FAULT if fault.code in faults.FROM_INPUTS else DIGEST
        if kinds[at] == DIGEST:
            others[at] = fault_digest(fault.code, fault.message)
    for at in np.flatnonzero(kinds == OTHER).tolist():
        others[at] = remembered = baseline(columns.other[int(rows[at])])
        if not isinstance(remembered, str):
            kinds[at] = DIGEST
    return Column(kinds, bits, others)

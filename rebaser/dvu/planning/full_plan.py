"""Updates that reach much of a large graph: swept as a whole, over a structure that is kept between updates.

Invariant: gives what `rebaser.dvu.planning.packet_plan.PacketPlan` would give. What a worker finds is compared here, by
column, with what stands in the change set; so nothing of what stood there travels, and no edge after the first time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rebaser.dvu import faults, fingerprint
from rebaser.dvu.compiled import translate
from rebaser.dvu.functions.registry import FunctionRegistry
from rebaser.dvu.planning import subgraph
from rebaser.dvu.planning.inputs import row_kinds
from rebaser.dvu.planning.layout import GraphLayout, IdText, TextRowIds
from rebaser.dvu.planning.loop_loader import loops_for
from rebaser.dvu.wire.column import FAULT, INT, NULL, OTHER, Column
from rebaser.dvu.wire.packet import Encoded, NodeFault, Results, estimated_size
from rebaser.dvu.wire.structure import Structure, StructurePacket, function_names
from rebaser_core.errors import DvuError
from rebaser_core.state.change_set import View
from rebaser_core.state.columns import Columns
from rebaser_core.state.computed_table import ComputedTable, RowIds
from rebaser_core.state.kinds import ABSENT, ERROR, OK
from rebaser_core.thresholds import Thresholds
from rebaser_core.values import Fault, same

# How workers come by the structure: they had it before; nobody has yet; they find it where it was put; in the packet.
_KEPT, _UNSENT, _SHARED, _BROUGHT = range(4)
_NUMBER, _REACHED, _NEEDED = 1, 1, 2  # the packet's; what a mark by slot says


@dataclass(frozen=True, slots=True, eq=False)
class _ChangedRows:
    """Room for rows that changed and what they are now; `others` by place."""

    rows: subgraph.Ints
    kinds: npt.NDArray[np.uint8]
    bits: npt.NDArray[np.int64]
    others: dict[int, Any] = field(default_factory=dict)


def plan_full_graph(
    view: View, at: GraphLayout, roots: subgraph.Ints, functions: FunctionRegistry, limits: Thresholds
) -> "FullGraphPlan | None":
    """The plan of all that the rows `roots` reach, or None where another is better: there is a cycle, it is not that
    much, or too much of it is not for compiled code."""
    structure = at.structure
    if structure is None:
        return None
    roots = _named(view.columns, roots)
    slots = at.slot[roots[roots < len(at.slot)]]
    mark = np.zeros(len(at.rows), np.uint8)
    mark[slots[slots >= 0]] = _REACHED
    loops = loops_for(len(structure.refs), limits.interpreted_max)
    count = int(loops.spread(structure.base, structure.starts, structure.refs, mark))
    if count < view.columns.size // limits.share:
        nodes = np.flatnonzero(mark[structure.base :] == _REACHED)
        if (structure.starts[nodes + 1] - structure.starts[nodes]).sum() < limits.many(len(structure.refs)):
            return None
    made = FullGraphPlan(view.columns, at, mark, functions, limits)
    return made if made.suits() else None


def _named(columns: Columns, roots: subgraph.Ints) -> subgraph.Ints:
    """`roots`, and for a pattern among them, which has no slot, those that name it."""
    if not columns.patterns:
        return roots
    patterns = roots[columns.patterns.links().first_link[roots] < 0].tolist()
    return np.concatenate((roots, *[np.array(columns.edges.candidates(row), np.int32) for row in patterns]))


class FullGraphPlan:
    """As `rebaser.dvu.planning.packet_plan.PacketPlan`, in one packet; a second time with the structure, for a worker
    that has it not."""

    def __init__(
        self, columns: Columns, at: GraphLayout, mark: Any, functions: FunctionRegistry, limits: Thresholds
    ) -> None:
        assert at.structure is not None  # noqa: S101 - there is no cycle
        self._columns = columns
        self._layout = at
        self._structure = structure = at.structure
        self._functions = functions
        self._limits = limits
        base = structure.base
        reached = mark[base:] == _REACHED
        self.size = int(reached.sum())
        calls = functions.functions
        self._by_python = [translate.translate(one, calls.get(one.function)) is None for one in structure.templates]
        # What is computed, and the slots it starts from. Of most nodes, telling which takes longer than computing all,
        # if it is compiled code that does.
        self._nodes: subgraph.Mask | None = None
        self._given: subgraph.Mask | None = None
        self._rows = at.rows[:base]
        self._count = len(reached)
        if any(self._by_python) or self.size < limits.whole_all * self._count:
            self._nodes, self._count = reached, self.size
            self._given = mark != 0
            self._given[base:] = mark[base:] == _NEEDED
            self._rows = at.rows[np.flatnonzero(self._given)]
        self._store = ""
        self._way = _KEPT if at.sent else _UNSENT
        self._done = False
        self._flying = False
        self._room = _ChangedRows(np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.int64))
        self._found = 0  # of it
        self._changed_faults: dict[int, Fault] = {}  # by row
        self._faults: dict[int, Fault] = {}  # by slot, changed or not

    @property
    def unsent(self) -> Structure | None:
        """The structure, if workers may not have it: it comes with the packet, unless it is `shared` before."""
        return self._structure if self._way == _UNSENT else None

    @property
    def too_large(self) -> bool:
        """Whether the structure would have to go with the packet, and is too much for that."""
        return self._way in (_UNSENT, _BROUGHT) and len(self._structure.data) > self._limits.brought_bytes

    def shared(self, store: str) -> None:
        """Workers find the structure in the blob store `store`, or by themselves where that is empty."""
        self._store = store
        self._way = _SHARED

    def suits(self) -> bool:
        """Whether compiled code does enough of it, from inputs that can be sent at once."""
        slow = self._limits.slow
        columns, structure = self._columns, self._structure
        by_python = np.array(self._by_python, np.bool_)
        if self._nodes is not None and by_python[structure.template[self._nodes]].sum() > slow * self._count:
            return False
        sample = slice(None, None, max(1, len(structure.template) // self._limits.whole_sample))
        rows = self._layout.rows[structure.base :][sample]
        rows = rows if self._nodes is None else rows[self._nodes[sample]]
        odd = (columns.kind[rows] == OTHER) | (columns.state[rows] == ERROR)
        if int(odd.sum()) > slow * len(rows):
            return False
        texts = self._rows[columns.kind[self._rows] == OTHER].tolist()
        return sum(estimated_size(columns.other[row]) for row in texts) <= self._limits.whole_texts

    def next_wave(self) -> list[bytes]:
        """The packet; none once its results are here."""
        if self._flying:
            raise DvuError("the results of the last wave are not absorbed yet")
        if self._done:
            return []
        self._flying = True
        structure, columns = self._structure, self._columns
        rows = self._rows
        kinds = row_kinds(columns, rows)
        others: dict[int, Any] = {at: columns.other[int(rows[at])] for at in np.flatnonzero(kinds == OTHER).tolist()}
        packet = StructurePacket(
            _NUMBER,
            fingerprint.code(),
            self._functions.fingerprints(function_names(structure.templates)),
            structure.address,
            self._nodes,
            self._given,
            Column(kinds, columns.bits[rows], others),
            structure.data if self._way in (_UNSENT, _BROUGHT) else b"",
            self._store,
        )
        return [packet.encode()]

    def absorb(self, results: Sequence[Encoded]) -> None:
        """Take in the results, in any order. Raises `DvuError` if they are not complete."""
        nodes = len(self._structure.template)
        parts = sorted([Results.decode(data, nodes) for data in results], key=lambda part: part.part)
        self._flying = False
        if any(part.missing for part in parts):
            self._layout.sent = False
            if self._way in (_UNSENT, _BROUGHT):
                raise DvuError("a worker cannot take in the structure of the graph")
            self._way = _UNSENT if self._way == _KEPT else _BROUGHT
            return
        if [part.part for part in parts] != list(range(len(parts))) or not parts or not parts[-1].last:
            raise DvuError("results of a packet are not complete")
        if any(part.number != _NUMBER for part in parts) or sum(len(part.nodes) for part in parts) != self._count:
            raise DvuError("results are not those of what was sent")
        asked, count, before = self._nodes, self._count, -1
        for found in [part.nodes for part in parts if len(part.nodes)]:
            if found[0] <= before or (asked is not None and not asked[found].all()):  # each part is in order
                raise DvuError("results are not those of what was sent")
            before = found[-1]
        self._room = _ChangedRows(np.empty(count, np.int32), np.empty(count, np.uint8), np.empty(count, np.int64))
        for part in parts:
            self._absorb(part)
        self._layout.sent = self._done = True
        self._way = _KEPT

    def _absorb(self, part: Results) -> None:
        columns, values, room, start = self._columns, part.values, self._room, self._found
        rows, kinds, bits = room.rows[start:], room.kinds[start:], room.bits[start:]
        places = np.empty(len(part.nodes), np.int32)
        found, odd = loops_for(len(places), self._limits.interpreted_max).differing(
            *(part.nodes, self._structure.base, self._layout.rows, values.kinds, values.bits),
            *(columns.state, columns.kind, columns.bits, OK, OTHER, INT, places, rows, kinds, bits),
        )
        if odd:
            raw = iter(part.faults)
            kept = np.ones(found, np.bool_)
            odd_ones = np.flatnonzero(kinds[:found] >= OTHER).tolist()
            kept[odd_ones] = [self._differs(int(rows[at]), int(places[at]), part, raw) for at in odd_ones]
            left = np.flatnonzero(kept)
            found = len(left)
            rows[:found], kinds[:found], bits[:found], places = rows[left], kinds[left], bits[left], places[left]
            for at in np.flatnonzero(kinds[:found] == OTHER).tolist():
                room.others[start + at] = values.others[int(places[at])]
        self._found += found

    def _differs(self, row: int, place: int, part: Results, raw: Iterator[NodeFault]) -> bool:
        """Whether a text, list, map or fault at `place` is not what stands in `row`; `raw` are faults yet to come."""
        columns = self._columns
        if part.values.kinds[place] == OTHER:
            stood = columns.state[row] == OK and columns.kind[row] == OTHER
            return not (stood and same(columns.other[row], part.values.others[place]))  # type: ignore[arg-type]
        slot = self._structure.base + int(part.nodes[place])
        self._faults[slot] = fault = self._fault(row, next(raw))
        if columns.state[row] == ERROR and columns.faults.get(row) == fault:
            return False
        self._changed_faults[row] = fault
        return True

    def _fault(self, row: int, raw: NodeFault) -> Fault:
        """The words for what a worker said in slots."""
        columns = self._columns
        id_ = columns.ids[row]
        if not isinstance(raw, int):
            return Fault(*raw, id_)
        if not 0 <= raw < len(self._layout.rows):
            raise DvuError("a worker blames a value that there is not")
        blamed = int(self._layout.rows[raw])
        if columns.state[blamed] == ABSENT:
            return faults.missing_input(id_, columns.ids[blamed])
        fault = self._faults.get(raw) or columns.faults.get(blamed)
        if fault is None:
            raise DvuError(f"a worker calls {faults.quote(columns.ids[blamed])} failed, and it is not")
        return faults.failed_input(columns.ids[blamed], fault)

    @property
    def upto(self) -> list[int]:
        """As `rebaser.dvu.planning.packet_plan.PacketPlan` has it."""
        return [0, self.size]

    def computed(self) -> ComputedTable:
        """What changed against the stored cells. Complete once `next_wave` has returned nothing."""
        room, found = self._room, self._found
        rows, kinds, bits = room.rows[:found], room.kinds[:found], room.bits[:found]
        failed = np.flatnonzero(kinds == FAULT)
        by_place = {at: self._changed_faults[int(rows[at])] for at in failed.tolist()}
        if len(failed):
            kinds[failed] = NULL
        columns = self._columns
        return ComputedTable(self._ids(rows), kinds, bits, room.others, by_place, rows, columns)

    def _ids(self, rows: subgraph.Ints) -> RowIds:
        columns, at, base = self._columns, self._layout, self._structure.base
        if len(rows) < self._limits.named:
            return RowIds(columns.ids, rows)
        if at.names is None:
            at.names = IdText.of(RowIds(columns.ids, at.rows[base:]))
        return TextRowIds(columns.ids, rows, at.names, at.slot[rows] - base, self._limits.interpreted_max)

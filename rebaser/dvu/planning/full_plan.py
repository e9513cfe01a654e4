"""Plans an update that affects much of a large graph, as one packet that refers to a structure.

A structure (`rebaser.dvu.wire.structure`) is the whole graph without ids and values; workers keep it between updates.
Its slots are numbered: first the `base` input values, then the nodes, which are the derived values. Edges are sent only
once, as part of the structure. The stored values of the nodes to compute are not sent, because the owner compares the
results with them, column by column.

Invariant: the plan gives the results that `rebaser.dvu.planning.packet_plan.PacketPlan` would give.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rebaser.dvu import faults, fingerprint
from rebaser.dvu.compiled.translate import translate
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

# These constants say how workers get the structure. `_CACHED`: they have it from an earlier update. `_UNSENT`: they may
# not have it, so it is sent with the packet unless `mark_shared` is called first. `_SHARED`: they read it from a folder
# or a blob store. `_ATTACHED`: they did not find it there, so it is sent with the packet.
_CACHED, _UNSENT, _SHARED, _ATTACHED = range(4)
_PACKET_NUMBER = 1
_REACHED, _READ = 1, 2  # marks of slots: to be computed, or only read as an input of a slot that is computed


@dataclass(frozen=True, slots=True, eq=False)
class _Changes:
    """The rows that changed, and their new values.

    `rows[i]` has a new value of kind `kinds[i]`, with `bits[i]` if it is a number and `others[i]` if it is a text, list
    or map. The arrays have room for all results of the packet, but only their first items are in use.
    """

    rows: subgraph.Ints
    kinds: npt.NDArray[np.uint8]
    bits: npt.NDArray[np.int64]
    others: dict[int, Any] = field(default_factory=dict)


def plan_full_graph(
    view: View, layout: GraphLayout, roots: subgraph.Ints, functions: FunctionRegistry, limits: Thresholds
) -> "FullGraphPlan | None":
    """Return a plan to compute all values that depend on the rows `roots`; None if a `PacketPlan` is better.

    A `PacketPlan` is better if the graph has no structure (it has a cycle, or its patterns match too many values), if
    only a small part of the graph depends on the roots, or if `FullGraphPlan.is_suitable` is False for that part.
    """
    structure = layout.structure
    if structure is None:
        return None
    roots = _with_pattern_dependents(view.columns, roots)
    slots = layout.slot[roots[roots < len(layout.slot)]]
    mark = np.zeros(len(layout.rows), np.uint8)
    mark[slots[slots >= 0]] = _REACHED
    loops = loops_for(len(structure.refs), limits.interpreted_max)
    reached = int(loops.mark_reached(structure.base, structure.starts, structure.refs, mark))
    if reached < view.columns.size // limits.full_plan_reach_divisor:
        nodes = np.flatnonzero(mark[structure.base :] == _REACHED)
        reached_inputs = (structure.starts[nodes + 1] - structure.starts[nodes]).sum()
        if reached_inputs < limits.full_plan_min_reached_inputs(len(structure.refs)):
            return None
    plan = FullGraphPlan(view.columns, layout, mark, functions, limits)
    return plan if plan.is_suitable() else None


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view of `array`. If a compiled loop got a writable array in one call and a read-only array in
    another, Numba would compile the loop twice."""
    view = array.view()
    view.flags.writeable = False
    return view


def _with_pattern_dependents(columns: Columns, roots: subgraph.Ints) -> subgraph.Ints:
    """Return `roots`, followed by the dependents of all roots that are patterns. A pattern has no slot, so the search
    has to start from its dependents."""
    if not columns.patterns:
        return roots
    patterns = roots[columns.patterns.links().first_link[roots] < 0].tolist()
    return np.concatenate((roots, *[np.array(columns.edges.candidates(row), np.int32) for row in patterns]))


class FullGraphPlan:
    """The plan of an update that is computed as one packet. It has the same methods as a `PacketPlan`.

    If a worker reports that it does not have the structure, `next_wave` returns the packet again. The packet then
    contains the structure, or says where to find it. `mark` holds `_REACHED`, `_READ` or 0 for each slot of `layout`.
    """

    def __init__(
        self, columns: Columns, layout: GraphLayout, mark: Any, functions: FunctionRegistry, limits: Thresholds
    ) -> None:
        assert layout.structure is not None  # noqa: S101 - the caller has checked it
        self._columns = columns
        self._layout = layout
        self._structure = structure = layout.structure
        self._functions = functions
        self._limits = limits
        base = structure.base
        reached = mark[base:] == _REACHED
        self.size = int(reached.sum())
        known = functions.functions
        self._by_python = [translate(used, known.get(used.function)) is None for used in structure.templates]
        # `_nodes` are the nodes to compute; None means all. `_value_slots` are the slots whose values are sent; None
        # means the slots of the input values. All nodes are computed if compiled code computes them and most of them
        # are marked, because selecting the marked nodes would take longer.
        self._nodes: subgraph.Mask | None = None
        self._value_slots: subgraph.Mask | None = None
        self._rows = layout.rows[:base]
        self._count = len(reached)
        if any(self._by_python) or self.size < limits.full_plan_compute_all_min_share * self._count:
            self._nodes, self._count = reached, self.size
            self._value_slots = mark != 0
            self._value_slots[base:] = mark[base:] == _READ
            self._rows = layout.rows[np.flatnonzero(self._value_slots)]
        self._store = ""
        self._delivery = _CACHED if layout.sent else _UNSENT
        self._done = False
        self._in_flight = False
        self._changes = _Changes(np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.int64))
        self._changed = 0  # the number of items of `_changes` that are in use
        self._changed_faults: dict[int, Fault] = {}  # the faults that changed, by row
        self._faults: dict[int, Fault] = {}  # all faults, changed or not, by slot

    @property
    def unsent_structure(self) -> Structure | None:
        """The structure if some workers might lack it; None if all workers have it. The packet contains the structure
        unless `mark_shared` is called before `next_wave`."""
        return self._structure if self._delivery == _UNSENT else None

    @property
    def structure_too_large(self) -> bool:
        """Whether the structure has to be sent with the packet, but is too large for that."""
        return self._attaches_structure and len(self._structure.data) > self._limits.structure_in_packet_max_bytes

    @property
    def _attaches_structure(self) -> bool:
        return self._delivery in (_UNSENT, _ATTACHED)

    def mark_shared(self, store: str) -> None:
        """Record where workers find the structure: in the blob store at the URL `store` or, if `store` is empty, in the
        folder that they share with the owner."""
        self._store = store
        self._delivery = _SHARED

    def is_suitable(self) -> bool:
        """Return whether compiled code can compute enough of the nodes, and whether the texts, lists and maps among the
        input values are small enough for one packet."""
        slow = self._limits.full_plan_max_python_share
        columns, structure = self._columns, self._structure
        by_python = np.array(self._by_python, np.bool_)
        if self._nodes is not None and by_python[structure.template[self._nodes]].sum() > slow * self._count:
            return False
        sample = slice(None, None, max(1, len(structure.template) // self._limits.full_plan_sample_nodes))
        rows = self._layout.rows[structure.base :][sample]
        rows = rows if self._nodes is None else rows[self._nodes[sample]]
        not_numbers = (columns.kind[rows] == OTHER) | (columns.state[rows] == ERROR)
        if int(not_numbers.sum()) > slow * len(rows):
            return False
        texts = self._rows[columns.kind[self._rows] == OTHER].tolist()
        return sum(estimated_size(columns.other[row]) for row in texts) <= self._limits.full_plan_max_text_bytes

    def next_wave(self) -> list[bytes]:
        """Return the packet in a list, or an empty list once its results are absorbed. Raise `DvuError` if the packet
        was returned before and its results are not absorbed yet."""
        if self._in_flight:
            raise DvuError("the results of the last wave are not absorbed yet: call absorb first")
        if self._done:
            return []
        self._in_flight = True
        structure, columns, rows = self._structure, self._columns, self._rows
        kinds = row_kinds(columns, rows)
        others: dict[int, Any] = {
            index: columns.other[int(rows[index])] for index in np.flatnonzero(kinds == OTHER).tolist()
        }
        packet = StructurePacket(
            _PACKET_NUMBER,
            fingerprint.code(),
            self._functions.fingerprints(function_names(structure.templates)),
            structure.address,
            self._nodes,
            self._value_slots,
            Column(kinds, columns.bits[rows], others),
            structure.data if self._attaches_structure else b"",
            self._store,
        )
        return [packet.encode()]

    def absorb(self, results: Sequence[Encoded]) -> None:
        """Absorb the results of the packet; the parts may be in any order. Raise `DvuError` if the results are
        incomplete or do not match the packet."""
        nodes = len(self._structure.template)
        parts = sorted([Results.decode(data, nodes) for data in results], key=lambda part: part.part)
        self._in_flight = False
        if any(part.missing for part in parts):
            self._prepare_resend()
            return
        self._check(parts)
        count = self._count
        self._changes = _Changes(np.empty(count, np.int32), np.empty(count, np.uint8), np.empty(count, np.int64))
        for part in parts:
            self._absorb_part(part)
        self._layout.sent = self._done = True
        self._delivery = _CACHED

    def _prepare_resend(self) -> None:
        """Prepare to send the packet again, because a worker lacked the structure. The next packet contains the
        structure, or says where to find it. Raise `DvuError` if the last packet already contained the structure."""
        self._layout.sent = False
        if self._attaches_structure:
            raise DvuError(
                "a worker reported that it lacks the structure of the graph, although the packet contained it"
            )
        self._delivery = _UNSENT if self._delivery == _CACHED else _ATTACHED

    def _check(self, parts: list[Results]) -> None:
        """Raise `DvuError` unless `parts` contain the result of each node of the packet exactly once, in order."""
        if [part.part for part in parts] != list(range(len(parts))) or not parts or not parts[-1].last:
            raise DvuError("the results of a packet are incomplete")
        if any(part.number != _PACKET_NUMBER for part in parts):
            raise DvuError("the results do not match the packet that was sent")
        if sum(len(part.nodes) for part in parts) != self._count:
            raise DvuError("the results do not match the packet that was sent")
        last = -1
        for nodes in [
            part.nodes for part in parts if len(part.nodes)
        ]:  # `Results.decode` checks the order within a part
            if nodes[0] <= last or (self._nodes is not None and not self._nodes[nodes].all()):
                raise DvuError("the results do not match the packet that was sent")
            last = nodes[-1]

    def _absorb_part(self, part: Results) -> None:
        columns, values, start = self._columns, part.values, self._changed
        rows, kinds, bits = (array[start:] for array in (self._changes.rows, self._changes.kinds, self._changes.bits))
        indexes = np.empty(len(part.nodes), np.int32)
        found, not_numbers = loops_for(len(indexes), self._limits.interpreted_max).changed_results(
            (part.nodes, self._structure.base, self._layout.rows, _read_only(values.kinds), _read_only(values.bits)),
            (columns.state, columns.kind, columns.bits),
            (OK, OTHER, INT),
            *(indexes, rows, kinds, bits),
        )
        if not_numbers:
            node_faults = iter(part.faults)
            changed = np.ones(found, np.bool_)
            to_compare = np.flatnonzero(kinds[:found] >= OTHER).tolist()
            changed[to_compare] = [
                self._differs(int(rows[index]), int(indexes[index]), part, node_faults) for index in to_compare
            ]
            keep = np.flatnonzero(changed)
            found = len(keep)
            rows[:found], kinds[:found], bits[:found], indexes = rows[keep], kinds[keep], bits[keep], indexes[keep]
            for index in np.flatnonzero(kinds[:found] == OTHER).tolist():
                self._changes.others[start + index] = values.others[int(indexes[index])]
        self._changed += found

    def _differs(self, row: int, index: int, part: Results, node_faults: Iterator[NodeFault]) -> bool:
        """Return whether the result at `index` of `part` differs from what is stored for `row`.

        The result is a text, list, map or fault. If it is a fault, it is the next item of `node_faults`.
        """
        columns = self._columns
        if part.values.kinds[index] == OTHER:
            comparable = columns.state[row] == OK and columns.kind[row] == OTHER
            return not (comparable and same(columns.other[row], part.values.others[index]))  # type: ignore[arg-type]
        slot = self._structure.base + int(part.nodes[index])
        self._faults[slot] = fault = self._fault(row, next(node_faults))
        if columns.state[row] == ERROR and columns.faults.get(row) == fault:
            return False
        self._changed_faults[row] = fault
        return True

    def _fault(self, row: int, node_fault: NodeFault) -> Fault:
        """Return the fault of the value in `row`. A worker reported `node_fault`: either the code and message of the
        fault, or the slot of the input that failed or does not exist."""
        columns = self._columns
        id_ = columns.ids[row]
        if not isinstance(node_fault, int):
            return Fault(*node_fault, id_)
        if not 0 <= node_fault < len(self._layout.rows):
            raise DvuError("a worker reported an unknown slot")
        input_row = int(self._layout.rows[node_fault])
        if columns.state[input_row] == ABSENT:
            return faults.missing_input(id_, columns.ids[input_row])
        fault = self._faults.get(node_fault) or columns.faults.get(input_row)
        if fault is None:
            raise DvuError(f"a worker reported that {faults.quote(columns.ids[input_row])} failed, but it did not")
        return faults.failed_input(columns.ids[input_row], fault)

    @property
    def done_after(self) -> list[int]:
        """Two numbers: how many values are done before the packet is computed, and how many are done afterwards."""
        return [0, self.size]

    def computed(self) -> ComputedTable:
        """Return the values that differ from the stored ones. The table is complete once `next_wave` has returned an
        empty list."""
        changes, count = self._changes, self._changed
        rows, kinds, bits = changes.rows[:count], changes.kinds[:count], changes.bits[:count]
        failed = np.flatnonzero(kinds == FAULT)
        faults_by_index = {index: self._changed_faults[int(rows[index])] for index in failed.tolist()}
        if len(failed):
            kinds[failed] = NULL
        return ComputedTable(self._ids(rows), kinds, bits, changes.others, faults_by_index, rows, self._columns)

    def _ids(self, rows: subgraph.Ints) -> RowIds:
        columns, layout, base = self._columns, self._layout, self._structure.base
        if len(rows) < self._limits.ids_as_text_min_values:
            return RowIds(columns.ids, rows)
        if layout.id_text is None:
            layout.id_text = IdText.of(RowIds(columns.ids, layout.rows[base:]))
        nodes = layout.slot[rows] - base
        return TextRowIds(columns.ids, rows, layout.id_text, nodes, self._limits.interpreted_max)

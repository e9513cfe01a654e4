"""Plans an update as packets of the affected subgraph.

A wave is a set of packets that can be computed at the same time. Usually there is one wave of one packet. If an island
(a part of the subgraph with no edge to any other part) does not fit into one packet, it is divided among several
packets, level by level. Nodes that have to wait for a packet of one wave go into a later wave.

The values of the subgraph are numbered by position. A position is settled once its value is known. A code is a number
that denotes a value: a position, or `-k - 1` for constant `k` of the subgraph.

Invariants: a plan reads one `View` and does no I/O, and its cost grows with the number of affected values. A packet
does not depend on another packet of its wave; the results that it needs from earlier waves are among its constants.
`computed()` returns only values that differ from the stored ones. Its result does not depend on how the work was
divided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from rebaser.dvu import faults, fingerprint
from rebaser.dvu.functions.registry import FunctionRegistry
from rebaser.dvu.planning import subgraph
from rebaser.dvu.planning.inputs import NewValues, baseline_column, constant_column, input_item, row_sizes
from rebaser.dvu.planning.loop_loader import loops_for
from rebaser.dvu.wire.column import FAULT, NULL, OTHER, Sentinel
from rebaser.dvu.wire.packet import Encoded, NodeFault, Packet, Results, estimated_size
from rebaser.dvu.worker.evaluator import MAX_INPUT_BYTES
from rebaser_core.errors import DvuError
from rebaser_core.state.change_set import View
from rebaser_core.state.computed_table import ComputedTable, RowIds
from rebaser_core.state.kinds import ERROR
from rebaser_core.state.templates import DefinitionTemplate
from rebaser_core.thresholds import Thresholds
from rebaser_core.values import Fault

_SETTLED, _WAITING = 0, -1  # values in `_where`, instead of the number of a packet
_TEMPLATE_BYTES = 64


@dataclass(slots=True)
class _InFlight:
    """A packet whose results have not arrived. `nodes` are the positions that it computes, in order. `codes` are the
    codes of its constants."""

    nodes: subgraph.Ints
    codes: subgraph.Ints


class PacketPlan:
    """The plan of one update, as packets in waves.

    Call `next_wave` and then `absorb` with the results of its packets, until `next_wave` returns an empty list. Then
    `computed` returns the values that changed.
    """

    def __init__(
        self, view: View, limits: Thresholds, functions: FunctionRegistry, reached: subgraph.Reached | None = None
    ) -> None:
        self._columns = view.columns
        self._limits = limits
        self._functions = functions
        self._graph = graph = subgraph.build_subgraph(view, limits, reached)
        count, constants = len(graph.rows), len(graph.outside)
        self._new = NewValues.none(count)
        self._loops = loops_for(count + len(graph.idx), limits.interpreted_max)
        self._where = np.full(count, _WAITING, np.int32)  # the packet of each position, `_SETTLED` or `_WAITING`
        self._index_in_packet = np.zeros(count, np.int32)  # the index of each position in its packet
        # For each position and each constant: the number of the last packet whose size includes it.
        self._seen = np.zeros(count, np.int32)
        self._constant_seen = np.zeros(constants, np.int32)
        self._sizes: Any = None
        self._templates, self._template = _distinct(graph.template, limits.interpreted_max)
        self._template_seen = np.zeros(len(self._templates), np.int32)
        self._last_number = 0  # the number of the last packet
        self._in_flight: dict[int, _InFlight] = {}
        # The positions that are in no packet yet. Once they are divided into islands, island `i` is
        # `_remaining[_begin[i]:_begin[i + 1]]`.
        self._remaining, self._begin = graph.order, np.array([0, len(graph.order)], np.int32)
        self._are_islands = False  # whether `_remaining` is divided into islands
        for members in graph.cycles:
            ids = self._columns.ids
            fault = faults.cycle(ids[graph.rows[position]] for position in members)
            for position in members:
                self._settle_fault(position, fault)
        for position, code_and_message in graph.faults.items():
            self._settle_fault(position, Fault(*code_and_message, self._id(position)))

    @property
    def size(self) -> int:
        """The number of affected values."""
        return len(self._graph.rows)

    @property
    def done_after(self) -> list[int]:
        """A list whose item `n` is the number of values that are done once the first `n` packets of this wave are
        computed."""
        sizes = [len(sent.nodes) for sent in self._in_flight.values()]
        return list(accumulate(sizes, initial=self.size - len(self._remaining) - sum(sizes)))

    def computed(self) -> ComputedTable:
        """Return the values that differ from the stored ones. The table is complete once `next_wave` has returned an
        empty list."""
        new, ids = self._new, self._columns.ids
        positions = np.flatnonzero(new.changed)
        rows, kinds, bits = self._graph.rows[positions], new.kinds[positions], new.bits[positions]
        kinds[kinds == FAULT] = NULL
        others = {index: new.others[int(positions[index])] for index in np.flatnonzero(kinds == OTHER).tolist()}
        fault_indexes = np.searchsorted(positions, list(new.faults)).tolist()
        new_faults = dict(zip(fault_indexes, new.faults.values(), strict=True))
        return ComputedTable(RowIds(ids, rows), kinds, bits, others, new_faults, rows, self._columns)

    def next_wave(self) -> list[bytes]:
        """Return the packets of the next wave, which can be computed in any order and on any executor. Return an empty
        list when all values are done.

        Raise `DvuError` if the results of the last wave are not absorbed yet.
        """
        if self._in_flight:
            raise DvuError("the results of the last wave are not absorbed yet: call absorb first")
        while len(self._remaining):
            packets = self._fill_wave()
            if packets:
                return packets
        return []

    # -- filling packets -------------------------------------------------------------------------------------------

    def _fill_wave(self) -> list[bytes]:
        """Return the packets of one wave, which contain all positions that can be computed now. Positions that have to
        wait for one of these packets stay in `_remaining`."""
        limits = self._limits
        work = self._work_left()
        if not self._are_islands and work < 2 * limits.task_min_elements:
            packets = self._fill(work, work + 1, one_only=True)
            if packets is not None:
                return packets
        if not self._are_islands:
            self._remaining, self._begin = subgraph.islands(self._graph, self._remaining, limits.interpreted_max)
            self._are_islands = True
        enough = -(-work // min(limits.parallelism, work // limits.task_min_elements + 1))
        return self._fill(work, enough, one_only=False) or []

    def _work_left(self) -> int:
        """Return the number of positions that are in no packet yet, plus the number of their inputs."""
        ptr, remaining = self._graph.ptr, self._remaining
        if len(remaining) == self.size:
            return len(remaining) + len(self._graph.idx)
        return len(remaining) + int((ptr[remaining + 1] - ptr[remaining]).sum())

    def _fill(self, work: int, enough: int, *, one_only: bool) -> list[bytes] | None:
        """Return the packets of a wave. A packet is full once it has `enough` nodes and edges; `work` is the number of
        all nodes and edges that are in no packet yet.

        Return None if `one_only` is True and not everything fits into one packet.
        """
        graph, limits, count = self._graph, self._limits, len(self._remaining)
        scratch = np.empty(len(graph.idx), np.int32)
        while True:
            taken, later, oversized = (np.empty(count, np.int32) for _ in range(3))
            ends, later_begin = np.zeros(count + 2, np.int32), np.zeros(count + 2, np.int32)
            first = self._last_number + 1
            packets, islands_left, oversized_count, gave_up = self._loops.fill(
                (self._remaining, self._begin),
                (graph.ptr, graph.idx, graph.dirty, self._template),
                self._all_sizes(),
                (first, limits.packet_bytes, MAX_INPUT_BYTES, enough, work, limits.task_min_elements // 4, one_only),
                (self._where, self._index_in_packet, self._constant_seen, self._seen, self._template_seen),
                (taken, ends, later, later_begin, oversized, scratch),
            )
            self._last_number += int(packets)
            if not oversized_count and not gave_up:
                break
            # Discard this attempt. Values whose inputs are too large to send get faults, and the wave is filled again.
            self._where[taken[: ends[packets - 1]] if packets else taken[:0]] = _WAITING
            if gave_up:
                return None
            for position in oversized[:oversized_count].tolist():
                self._settle_fault(position, self._too_large(position))
        self._begin = later_begin[: islands_left + 1]
        self._remaining = later[: self._begin[-1]]
        starts = [0, *ends[:packets].tolist()]
        made = []
        for index in range(int(packets)):
            nodes = taken[starts[index] : starts[index + 1]]
            if len(nodes):
                made.append(self._packet(first + index, nodes))
        return made

    def _all_sizes(self) -> Any:
        """Return three arrays of approximate sizes in bytes: of each constant, of the value at each position, and of
        each template."""
        graph, columns = self._graph, self._columns
        if self._sizes is None:
            templates = [_template_size(self._template_at(number)) for number in self._templates.tolist()]
            self._sizes = (
                row_sizes(columns, graph.outside),
                row_sizes(columns, graph.rows),
                np.array(templates, np.int64),
            )
        return self._sizes

    def _packet(self, number: int, nodes: subgraph.Ints) -> bytes:
        graph = self._graph
        counts = graph.ptr[nodes + 1] - graph.ptr[nodes]
        refs, codes = np.empty(int(counts.sum()), np.int32), np.empty(int(counts.sum()), np.int32)
        constants = self._loops.packet_inputs(
            *(nodes, graph.ptr, graph.idx, self._where, number, self._index_in_packet),
            *(np.full(len(graph.outside), -1, np.int32), np.full(len(graph.rows), -1, np.int32), refs, codes),
        )
        self._in_flight[number] = _InFlight(nodes, codes[:constants])
        used, template = _distinct(self._template[nodes], self._limits.interpreted_max)
        templates = [self._template_at(number) for number in self._templates[used].tolist()]
        return Packet(
            number,
            fingerprint.code(),
            self._functions.fingerprints({template.function for template in templates}),
            templates,
            constant_column(codes[:constants], self._columns, graph, self._new),
            template,
            refs,
            graph.dirty[nodes].view(np.bool_),
            baseline_column(graph.rows[nodes], self._columns),
        ).encode()

    def _template_at(self, number: int) -> DefinitionTemplate:
        return self._columns.templates[number] if number >= 0 else self._graph.widened[-number - 1]

    def _too_large(self, position: int) -> Fault:
        """Return the fault of the value at `position`, whose inputs are all computed and together too large to send. As
        in a worker, the faults of an unknown function and of a failed input take precedence over `too_large`."""
        columns, graph = self._columns, self._graph
        row = graph.rows[position]
        id_ = columns.ids[row]
        function = columns.templates[columns.template[row]].function
        if function not in self._functions.functions:
            return Fault(*faults.unknown_function(function), id_)
        codes = graph.idx[graph.ptr[position] : graph.ptr[position + 1]]
        inputs = constant_column(codes, columns, graph, self._new)
        for index, code in enumerate(codes.tolist()):
            if type(input_item(inputs, index)) is Sentinel:
                return self._input_fault(position, code)
        return Fault(*faults.inputs_too_large(MAX_INPUT_BYTES), id_)

    # -- reading results -------------------------------------------------------------------------------------------

    def absorb(self, results: Sequence[Encoded]) -> None:
        """Absorb the results of the last wave, in any order. Raise `DvuError` if they are incomplete or do not match
        its packets."""
        if results and not self._in_flight:
            raise DvuError("a worker returned results for a packet that was not sent")
        parts: dict[int, list[Results]] = {number: [] for number in self._in_flight}
        max_nodes = max((len(sent.nodes) for sent in self._in_flight.values()), default=0)
        for data in results:
            part = Results.decode(data, max_nodes)
            sent = self._in_flight.get(part.number)
            if sent is None or (len(part.nodes) and part.nodes[-1] >= len(sent.nodes)):
                raise DvuError("a worker returned results for a packet, or for a node of a packet, that was not sent")
            parts[part.number].append(part)
        for of_packet in parts.values():
            of_packet.sort(key=lambda part: part.part)
            numbers = [part.part for part in of_packet]
            if numbers != list(range(len(numbers))) or not of_packet or not of_packet[-1].last:
                raise DvuError("the results of a packet are incomplete")
        for number, sent in self._in_flight.items():
            for part in parts[number]:
                self._absorb_part(sent, part)
        for sent in self._in_flight.values():
            self._where[sent.nodes] = _SETTLED
        self._in_flight = {}

    def _absorb_part(self, sent: _InFlight, part: Results) -> None:
        new, values = self._new, part.values
        positions = sent.nodes[part.nodes]
        failed = values.kinds == FAULT
        good = positions[~failed]
        new.changed[good], new.kinds[good], new.bits[good] = True, values.kinds[~failed], values.bits[~failed]
        for index in np.flatnonzero(values.kinds == OTHER).tolist():
            new.others[int(positions[index])] = value = values.others[index]  # type: ignore[assignment] # no digest
            if self._sizes is not None:
                self._sizes[1][positions[index]] = estimated_size(value)  # type: ignore[arg-type]
        self._mark_dependents(good)
        for position, node_fault in zip(positions[failed].tolist(), part.faults, strict=True):
            self._settle_fault(position, self._fault(sent, position, node_fault))

    def _fault(self, sent: _InFlight, position: int, node_fault: NodeFault) -> Fault:
        """Return the fault of the value at `position`. A worker reported `node_fault`: either the code and message of
        the fault, or the slot of the input that failed or does not exist."""
        if not isinstance(node_fault, int):
            return Fault(*node_fault, self._id(position))
        base = len(sent.codes)
        if not 0 <= node_fault < base + len(sent.nodes):
            raise DvuError("a worker reported an unknown slot")
        return self._input_fault(
            position, int(sent.nodes[node_fault - base] if node_fault >= base else sent.codes[node_fault])
        )

    def _id(self, code: int) -> str:
        """Return the id of the value that `code` denotes."""
        return self._columns.ids[self._row(code)]

    def _row(self, code: int) -> int:
        return int(self._graph.rows[code] if code >= 0 else self._graph.outside[-code - 1])

    def _input_fault(self, position: int, code: int) -> Fault:
        """Return the fault of the value at `position`, whose input `code` failed or does not exist."""
        columns, row, input_id = self._columns, self._row(code), self._id(code)
        if not columns.state[row]:
            return faults.missing_input(self._id(position), input_id)
        is_new = code >= 0 and bool(self._new.changed[code])
        fault = self._new.faults.get(code) if is_new else columns.faults.get(row)
        if fault is None:
            raise DvuError(f"a worker reported that {faults.quote(input_id)} failed, but it did not")
        return faults.failed_input(input_id, fault)

    def _settle_fault(self, position: int, fault: Fault) -> None:
        self._where[position] = _SETTLED
        row = int(self._graph.rows[position])
        if self._columns.state[row] != ERROR or self._columns.faults.get(row) != fault:
            new = self._new
            new.changed[position], new.kinds[position], new.faults[position] = True, FAULT, fault
            self._mark_dependents(np.array([position], np.int32))

    def _mark_dependents(self, changed: subgraph.Ints) -> None:
        if len(self._remaining):  # otherwise, all dependents are in packets, and workers see the changes
            self._loops.mark_dependents(changed, self._graph.sptr, self._graph.sidx, self._graph.dirty)


def _template_size(template: DefinitionTemplate) -> int:
    return _TEMPLATE_BYTES + estimated_size(dict(template.params)) + sum([len(name) for name, _ in template.inputs])


def _distinct(numbers: subgraph.Ints, interpreted_max: int) -> tuple[subgraph.Ints, subgraph.Ints]:
    """Return the distinct numbers in `numbers`, in ascending order; and, for each item of `numbers`, its index among
    the distinct numbers."""
    if len(numbers) > interpreted_max:
        values, indexes = np.unique(numbers, return_inverse=True)
        return values, indexes.astype(np.int32)
    listed = numbers.tolist()
    distinct = sorted(set(listed))
    index_of = {value: index for index, value in enumerate(distinct)}
    return np.array(distinct, np.int32), np.array([index_of[value] for value in listed], np.int32)

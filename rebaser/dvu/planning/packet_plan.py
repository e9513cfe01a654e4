"""What a dependent values update has to compute, cut into packets.

Invariant: pure, and about one `View`; cost grows with the affected part. A packet needs nothing from another packet of
its wave; what it needs of earlier waves is in it as a constant. `computed()` holds only what differs from the stored
cells, and does not depend on how the work was cut.

Usual case: one wave of one packet. An island (weakly connected part) that does not fit is filled level by level, and
what waits for a packet of this wave goes into the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from rebaser.dvu import faults, fingerprint
from rebaser.dvu.functions.registry import FunctionRegistry
from rebaser.dvu.planning import subgraph
from rebaser.dvu.planning.inputs import NewValues, constants_of, input_item, olds_of, row_weights
from rebaser.dvu.planning.loop_loader import loops_for
from rebaser.dvu.wire.column import FAULT, NULL, OTHER, Sentinel
from rebaser.dvu.wire.packet import Encoded, NodeFault, Packet, Results, estimated_size
from rebaser.dvu.worker.evaluator import MAX_INPUT_BYTES
from rebaser_core.errors import DvuError
from rebaser_core.state.change_set import View
from rebaser_core.state.computed_table import ComputedTable, RowIds
from rebaser_core.state.kinds import ERROR
from rebaser_core.state.templates import Template
from rebaser_core.thresholds import Thresholds
from rebaser_core.values import Fault

_SETTLED, _WAITING = 0, -1  # other numbers: the packet of this wave that computes the node
_SHAPE_BYTES = 64


@dataclass(slots=True)
class _Flying:
    """A packet on its way: its positions by place, and the codes of its constants."""

    nodes: subgraph.Ints
    codes: subgraph.Ints


class PacketPlan:
    """Iterate `while packets := plan.next_wave(): plan.absorb(results of these packets)`, then read `computed()`."""

    def __init__(
        self, view: View, limits: Thresholds, functions: FunctionRegistry, reached: subgraph.Reached | None = None
    ) -> None:
        self._columns = view.columns
        self._limits = limits
        self._functions = functions
        self._graph = found = subgraph.build_subgraph(view, limits, reached)
        count, constants = len(found.rows), len(found.outside)
        self._found = NewValues.none(count)
        self._run = loops_for(count + len(found.idx), limits.interpreted_max)
        self._where = np.full(count, _WAITING, np.int32)
        self._place = np.zeros(count, np.int32)  # in its packet
        self._seen = np.zeros(count, np.int32)
        self._constant_seen = np.zeros(constants, np.int32)
        self._weights: Any = None
        self._shapes, self._shape = _distinct(found.shape, limits.interpreted_max)
        self._shape_seen = np.zeros(len(self._shapes), np.int32)
        self._filled = 0
        self._flying: dict[int, _Flying] = {}
        self._parts, self._begin = found.order, np.array([0, len(found.order)], np.int32)
        self._cut = False  # whether `_parts` are islands yet
        for members in found.cycles:
            ids = self._columns.ids
            fault = faults.cycle(ids[found.rows[at]] for at in members)
            for at in members:
                self._settle_fault(at, fault)
        for at, fault_of in found.crowded.items():
            self._settle_fault(at, Fault(*fault_of, self._id(at)))

    @property
    def size(self) -> int:
        """How many values are affected."""
        return len(self._graph.rows)

    @property
    def upto(self) -> list[int]:
        """How many values are done without the packets of this wave, with the first of them, with two, and so on."""
        sizes = [len(flying.nodes) for flying in self._flying.values()]
        return list(accumulate(sizes, initial=self.size - len(self._parts) - sum(sizes)))

    def computed(self) -> ComputedTable:
        """What changed against the stored cells. Complete once `next_wave` has returned nothing."""
        found, ids = self._found, self._columns.ids
        places = np.flatnonzero(found.changed)
        rows, kinds, bits = self._graph.rows[places], found.kinds[places], found.bits[places]
        kinds[kinds == FAULT] = NULL
        others = {at: found.others[int(places[at])] for at in np.flatnonzero(kinds == OTHER).tolist()}
        new_places = np.searchsorted(places, list(found.faults)).tolist()
        faults = dict(zip(new_places, found.faults.values(), strict=True))
        return ComputedTable(RowIds(ids, rows), kinds, bits, others, faults, rows, self._columns)

    def next_wave(self) -> list[bytes]:
        """Packets that can be computed now, in any order and place; none when all is done."""
        if self._flying:
            raise DvuError("the results of the last wave are not absorbed yet")
        while len(self._parts):
            packets = self._fill_wave()
            if packets:
                return packets
        return []

    # -- filling packets -------------------------------------------------------------------------------------------

    def _fill_wave(self) -> list[bytes]:
        """Fill packets with all that waits for nothing in this wave; the rest becomes `_parts` of the next."""
        limits = self._limits
        left = self._work()
        if not self._cut and left < 2 * limits.task_work:
            packets = self._fill(left, left + 1, one_only=True)
            if packets is not None:
                return packets
        if not self._cut:
            self._parts, self._begin = subgraph.islands(self._graph, self._parts, limits.interpreted_max)
            self._cut = True
        enough = -(-left // min(limits.parallelism, left // limits.task_work + 1))
        return self._fill(left, enough, one_only=False) or []

    def _work(self) -> int:
        ptr, parts = self._graph.ptr, self._parts
        if len(parts) == self.size:
            return len(parts) + len(self._graph.idx)
        return len(parts) + int((ptr[parts + 1] - ptr[parts]).sum())

    def _fill(self, left: int, enough: int, *, one_only: bool) -> list[bytes] | None:
        """The packets of a wave, or None if it takes more than one and only one was wanted."""
        found, limits, count = self._graph, self._limits, len(self._parts)
        constant_weights, weights, shape_weights = self._all_weights()
        while True:
            taken, later, heavy = (np.empty(count, np.int32) for _ in range(3))
            ends, later_begin = np.zeros(count + 2, np.int32), np.zeros(count + 2, np.int32)
            packets, rest, heavy_count, gave_up = self._run.fill(
                *(self._parts, self._begin, found.ptr, found.idx, found.dirty),
                *(constant_weights, weights, self._shape, shape_weights),
                *(
                    self._filled + 1,
                    limits.packet_bytes,
                    MAX_INPUT_BYTES,
                    enough,
                    left,
                    limits.task_work // 4,
                    one_only,
                ),
                *(self._where, self._place, self._constant_seen, self._seen, self._shape_seen),
                *(taken, ends, later, later_begin, heavy),
            )
            first, self._filled = self._filled + 1, self._filled + int(packets)
            if not heavy_count and not gave_up:
                break
            self._where[taken[: ends[packets - 1]] if packets else taken[:0]] = _WAITING
            if gave_up:
                return None
            for at in heavy[:heavy_count].tolist():
                self._settle_fault(at, self._too_large(at))
        self._begin = later_begin[: rest + 1]
        self._parts = later[: self._begin[-1]]
        starts = [0, *ends[:packets].tolist()]
        made = []
        for number in range(int(packets)):
            nodes = taken[starts[number] : starts[number + 1]]
            if len(nodes):
                made.append(self._packet(first + number, nodes))
        return made

    def _all_weights(self) -> Any:
        """About how many bytes constants, positions and shapes take; positions as of now."""
        found, columns = self._graph, self._columns
        if self._weights is None:
            shapes = [_shape_weight(self._shape_at(at)) for at in self._shapes.tolist()]
            self._weights = (
                row_weights(columns, found.outside),
                row_weights(columns, found.rows),
                np.array(shapes, np.int64),
            )
        return self._weights

    def _packet(self, number: int, nodes: subgraph.Ints) -> bytes:
        found = self._graph
        counts = found.ptr[nodes + 1] - found.ptr[nodes]
        refs, codes = np.empty(int(counts.sum()), np.int32), np.empty(int(counts.sum()), np.int32)
        constants = self._run.assemble(
            *(nodes, found.ptr, found.idx, self._where, number, self._place),
            *(np.full(len(found.outside), -1, np.int32), np.full(len(found.rows), -1, np.int32), refs, codes),
        )
        self._flying[number] = _Flying(nodes, codes[:constants])
        local, shape = _distinct(self._shape[nodes], self._limits.interpreted_max)
        shapes = [self._shape_at(number) for number in self._shapes[local].tolist()]
        return Packet(
            number,
            fingerprint.code(),
            self._functions.fingerprints({one.function for one in shapes}),
            shapes,
            constants_of(codes[:constants], self._columns, found, self._found),
            shape,
            refs,
            found.dirty[nodes].view(np.bool_),
            olds_of(found.rows[nodes], self._columns),
        ).encode()

    def _shape_at(self, number: int) -> Template:
        return self._columns.templates[number] if number >= 0 else self._graph.wide[-number - 1]

    def _too_large(self, at: int) -> Fault:
        """The fault of a value whose inputs, all settled, are too large to send; as a worker would find it."""
        columns, found = self._columns, self._graph
        id_ = columns.ids[found.rows[at]]
        function = columns.templates[columns.template[found.rows[at]]].function
        if function not in self._functions.functions:
            return Fault(*faults.unknown_function(function), id_)
        codes = found.idx[found.ptr[at] : found.ptr[at + 1]]
        inputs = constants_of(codes, columns, found, self._found)
        for place, code in enumerate(codes.tolist()):
            if type(input_item(inputs, place)) is Sentinel:
                return self._input_fault(at, code)
        return Fault(*faults.inputs_too_large(MAX_INPUT_BYTES), id_)

    # -- reading results -------------------------------------------------------------------------------------------

    def absorb(self, results: Sequence[Encoded]) -> None:
        """Take in the results of the last wave, in any order. Raises `DvuError` if they are not complete."""
        if results and not self._flying:
            raise DvuError("results for a packet that was not sent")
        parts: dict[int, list[Results]] = {number: [] for number in self._flying}
        most = max((len(flying.nodes) for flying in self._flying.values()), default=0)
        for data in results:
            part = Results.decode(data, most)
            if part.number not in parts or (len(part.nodes) and part.nodes[-1] >= len(self._flying[part.number].nodes)):
                raise DvuError("results for a packet that was not sent")
            parts[part.number].append(part)
        for found in parts.values():
            found.sort(key=lambda part: part.part)
            if [part.part for part in found] != list(range(len(found))) or not found or not found[-1].last:
                raise DvuError("results of a packet are not complete")
        for number, flying in self._flying.items():
            for part in parts[number]:
                self._absorb_part(flying, part)
        for flying in self._flying.values():
            self._where[flying.nodes] = _SETTLED
        self._flying = {}

    def _absorb_part(self, flying: _Flying, part: Results) -> None:
        found, values = self._found, part.values
        at = flying.nodes[part.nodes]
        failed = values.kinds == FAULT
        good = at[~failed]
        found.changed[good], found.kinds[good], found.bits[good] = True, values.kinds[~failed], values.bits[~failed]
        for place in np.flatnonzero(values.kinds == OTHER).tolist():
            found.others[int(at[place])] = value = values.others[place]  # type: ignore[assignment] # no digest
            if self._weights is not None:
                self._weights[1][at[place]] = estimated_size(value)  # type: ignore[arg-type]
        self._wake(good)
        for node, raw in zip(at[failed].tolist(), part.faults, strict=True):
            self._settle_fault(node, self._fault(flying, node, raw))

    def _fault(self, flying: _Flying, at: int, raw: NodeFault) -> Fault:
        """The words for what a worker said in slots."""
        if not isinstance(raw, int):
            return Fault(*raw, self._id(at))
        base = len(flying.codes)
        if not 0 <= raw < base + len(flying.nodes):
            raise DvuError("a worker blames a value that there is not")
        return self._input_fault(at, int(flying.nodes[raw - base] if raw >= base else flying.codes[raw]))

    def _id(self, code: int) -> str:
        """The id at a position, or of constant `-code - 1`."""
        found = self._graph
        return self._columns.ids[int(found.rows[code] if code >= 0 else found.outside[-code - 1])]

    def _input_fault(self, at: int, code: int) -> Fault:
        columns, input_id = self._columns, self._id(code)
        row = int(self._graph.rows[code] if code >= 0 else self._graph.outside[-code - 1])
        if not columns.state[row]:
            return faults.missing_input(self._id(at), input_id)
        fresh = code >= 0 and bool(self._found.changed[code])
        fault = self._found.faults.get(code) if fresh else columns.faults.get(row)
        if fault is None:
            raise DvuError(f"a worker calls {faults.quote(input_id)} failed, and it is not")
        return faults.failed_input(input_id, fault)

    def _settle_fault(self, at: int, fault: Fault) -> None:
        self._where[at] = _SETTLED
        row = int(self._graph.rows[at])
        if self._columns.state[row] != ERROR or self._columns.faults.get(row) != fault:
            found = self._found
            found.changed[at], found.kinds[at], found.faults[at] = True, FAULT, fault
            self._wake(np.array([at], np.int32))

    def _wake(self, changed: subgraph.Ints) -> None:
        if len(self._parts):  # else everything is in a packet already, and its worker wakes what it must
            self._run.wake(changed, self._graph.sptr, self._graph.sidx, self._graph.dirty)


def _shape_weight(shape: Template) -> int:
    return _SHAPE_BYTES + estimated_size(dict(shape.params)) + sum([len(name) for name, _ in shape.inputs])


def _distinct(numbers: subgraph.Ints, interpreted_max: int) -> tuple[subgraph.Ints, subgraph.Ints]:
    """The numbers there are, ascending, and for each of `numbers` the place of it among them."""
    if len(numbers) > interpreted_max:
        values, places = np.unique(numbers, return_inverse=True)
        return values, places.astype(np.int32)
    listed = numbers.tolist()
    found = sorted(set(listed))
    place = {value: at for at, value in enumerate(found)}
    return np.array(found, np.int32), np.array([place[value] for value in listed], np.int32)

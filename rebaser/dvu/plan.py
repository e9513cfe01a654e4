"""What a dependent values update has to compute, cut into packets.

Invariant: pure, and about one `View`; cost grows with the affected part. A packet needs nothing from another packet of
its wave; what it needs of earlier waves is in it as a constant. `computed()` holds only what differs from the stored
cells, and does not depend on how the work was cut.

Usual case: one wave of one packet. An island (weakly connected part) that does not fit is filled level by level, and
what waits for a packet of this wave goes into the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rebaser.dvu import faults, graph
from rebaser.dvu.filling import Filling, item_weight, old_item
from rebaser.dvu.functions.registry import Registry, registry
from rebaser.dvu.packet import IN_ERROR, NOT_THERE, Item, Mark, RawFault, Results
from rebaser.dvu.sweep import MAX_INPUT_BYTES
from rebaser_core.commit import Computed
from rebaser_core.errors import DvuError
from rebaser_core.state import View
from rebaser_core.updates import Derive
from rebaser_core.values import Fault, State

_SETTLED, _WAITING = 0, -1  # other numbers: the packet of this wave that computes the node


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How work is cut. `packet_bytes` bounds a packet (a single value with more inputs than that goes alone);
    `parallelism` is how many tasks run at once, and `task_work` (nodes and edges) what a task of its own must be worth:
    a second task costs 30 to 45 ms before it helps."""

    packet_bytes: int = 8 * 1024 * 1024
    parallelism: int = 2
    task_work: int = 150_000


DEFAULT_PLAN_LIMITS = PlanLimits()


def plan(view: View, limits: PlanLimits = DEFAULT_PLAN_LIMITS, functions: Registry | None = None) -> "Plan":
    """Plan the update that `view` owes. The view must stay open until the plan is done."""
    return Plan(view, limits, functions or registry())


class Plan:
    """Iterate `while packets := plan.next_wave(): plan.absorb(results of these packets)`, then read `computed()`."""

    def __init__(self, view: View, limits: PlanLimits, functions: Registry) -> None:
        self._view = view
        self._limits = limits
        self._functions = functions
        self._graph = found = graph.affected(view)
        self._found: dict[int, Computed] = {}  # what changed, by position
        self._where = [_WAITING] * len(found.ids)
        self._place = [0] * len(found.ids)  # in its packet
        self._filled = 0
        self._flying: dict[int, Filling] = {}
        self._islands = [found.order] if found.order else []
        self._cut = False  # whether `_islands` are islands yet
        for members in found.cycles:
            fault = faults.cycle(found.ids[at] for at in members)
            for at in members:
                self._settle_fault(at, fault)

    @property
    def size(self) -> int:
        """How many values are affected."""
        return len(self._graph.ids)

    def computed(self) -> tuple[Computed, ...]:
        """What changed against the stored cells. Complete once `next_wave` has returned nothing."""
        return tuple(self._found.values())

    def next_wave(self) -> list[bytes]:
        """Packets that can be computed now, in any order and place; none when all is done."""
        if self._flying:
            raise DvuError("the results of the last wave are not absorbed yet")
        while self._islands:
            filled = self._fill_wave()
            if filled:
                self._flying = {one.packet.number: one for one in filled}
                for one in filled:
                    one.packet.functions = self._functions.fingerprints({shape.function for shape in one.packet.shapes})
                return [one.packet.encode() for one in filled]
        return []

    # -- filling packets -------------------------------------------------------------------------------------------

    def _fill_wave(self) -> list[Filling]:
        """Fill packets with all that waits for nothing in this wave; the rest becomes `_islands` of the next."""
        if not self._cut and self._work(self._islands) < 2 * self._limits.task_work:
            filling = self._new()
            deferred, rest = self._fill(filling, self._islands[0])
            if not rest:
                self._islands = [deferred] if deferred else []
                return [filling] if filling.nodes else []
            self._put_back(filling, (0, 0, 0, 0))
        if not self._cut:
            self._islands = graph.islands(self._graph.order, self._graph.successors)
            self._cut = True
        return self._fill_islands()

    def _fill_islands(self) -> list[Filling]:
        left = self._work(self._islands)
        enough = -(-left // min(self._limits.parallelism, left // self._limits.task_work + 1))
        filled = [self._new()]
        later: list[list[int]] = []
        for island in self._islands:
            if filled[-1].work >= enough and left > self._limits.task_work // 4:  # crumbs are worth no task
                filled.append(self._new())
            left -= self._work([island])
            mark = filled[-1].mark()
            deferred, rest = self._fill(filled[-1], island)
            if rest and mark[0]:  # it does not fit into what is left of this packet: it gets one of its own
                self._put_back(filled[-1], mark)
                rest, deferred = island, []
            while rest:
                filled.append(self._new())
                more, rest = self._fill(filled[-1], rest)
                deferred += more
            if deferred:
                later.append(deferred)
        self._islands = later
        return [one for one in filled if one.nodes]

    def _work(self, islands: list[list[int]]) -> int:
        cells = self._graph.cells
        return sum([1 + len(cells[at].inputs) for island in islands for at in island])

    def _new(self) -> Filling:
        self._filled += 1
        return Filling(self._filled)

    def _put_back(self, filling: Filling, mark: tuple[int, int, int, int]) -> None:
        for at in filling.undo(mark):
            self._where[at] = _WAITING

    def _fill(self, filling: Filling, nodes: list[int]) -> tuple[list[int], list[int]]:
        """Add `nodes` in order. Returns those that wait for another packet, and those left when the packet is full."""
        where, dirty, cells = self._where, self._graph.dirty, self._graph.cells
        packet, number, budget = filling.packet, filling.packet.number, self._limits.packet_bytes
        deferred: list[int] = []
        for done, at in enumerate(nodes):
            if where[at] == _SETTLED:
                continue
            cell = cells[at]
            definition: Derive = cell.definition  # type: ignore[assignment] # everything affected is derived
            inputs = self._inputs(filling, definition)
            if inputs is None:
                deferred.append(at)
                continue
            refs, fresh, items, inside = inputs
            if not inside and not dirty[at]:
                where[at] = _SETTLED  # nothing it depends on changed
                continue
            size = 16 + 4 * len(refs) + sum(map(item_weight, items))
            if size > MAX_INPUT_BYTES:
                if inside:
                    deferred.append(at)  # whether one of these fails comes before what they weigh
                else:
                    self._settle_fault(at, self._too_large(at, definition))
                continue
            if filling.nodes and filling.bytes + size > budget:
                return deferred, nodes[done:]
            packet.refs += refs
            packet.constants += items
            filling.constants.update(fresh)
            packet.shape.append(filling.shape(definition))
            packet.dirty.append(dirty[at])
            packet.old.append(old_item(cell))
            where[at] = number
            self._place[at] = len(filling.nodes)
            filling.nodes.append(at)
            filling.bytes += size
            filling.work += 1 + len(cell.inputs)
        return deferred, []

    def _inputs(
        self, filling: Filling, definition: Derive
    ) -> tuple[list[int], dict[str, int], list[Item], bool] | None:
        """Refs of all inputs; places and values of the constants new to the packet; whether any ref is a node.

        None if an input is computed elsewhere in this wave, or later.
        """
        index, where, number, constants = self._graph.index, self._where, filling.packet.number, filling.constants
        refs: list[int] = []
        fresh: dict[str, int] = {}
        items: list[Item] = []
        inside = False
        for ids in definition.inputs.values():
            for id_ in (ids,) if isinstance(ids, str) else ids:
                at = index.get(id_)
                if at is not None and where[at] != _SETTLED:
                    if where[at] != number:
                        return None
                    refs.append(self._place[at])
                    inside = True
                    continue
                place = constants.get(id_)
                if place is None:
                    place = fresh.get(id_)
                if place is None:
                    place = fresh[id_] = len(constants) + len(items)
                    items.append(self._item(id_, at))
                refs.append(~place)
        return refs, fresh, items, inside

    def _item(self, id_: str, at: int | None) -> Item:
        """What an input is, its value being settled."""
        if at is not None and at in self._found:
            computed = self._found[at]
            return computed.value if computed.fault is None else IN_ERROR
        cell = self._view.cell(id_)
        if cell is None:
            return NOT_THERE
        return IN_ERROR if cell.state is State.ERROR else cell.value  # an unset one has the value None

    def _too_large(self, at: int, definition: Derive) -> Fault:
        """The fault of a value whose inputs, all settled, are too large to send; as a worker would find it."""
        if definition.function not in self._functions.functions:
            return Fault(*faults.unknown_function(definition.function), definition.id)
        for id_ in definition.input_ids():
            item = self._item(id_, self._graph.index.get(id_))
            if type(item) is Mark:
                return self._input_fault(at, id_, missing=item is NOT_THERE)
        return Fault(*faults.inputs_too_large(MAX_INPUT_BYTES), definition.id)

    # -- reading results -------------------------------------------------------------------------------------------

    def absorb(self, results: Sequence[bytes]) -> None:
        """Take in the results of the last wave, in any order. Raises `DvuError` if they are not complete."""
        parts: dict[int, list[Results]] = {number: [] for number in self._flying}
        for data in results:
            part = Results.decode(data)
            if part.number not in parts:
                raise DvuError("results for a packet that was not sent")
            parts[part.number].append(part)
        for found in parts.values():
            found.sort(key=lambda part: part.part)
            if [part.part for part in found] != list(range(len(found))) or not found or not found[-1].last:
                raise DvuError("results of a packet are not complete")
        for number, filling in self._flying.items():
            for part in parts[number]:
                self._absorb_part(filling, part)
            for at in filling.nodes:
                self._where[at] = _SETTLED
        self._flying = {}

    def _absorb_part(self, filling: Filling, part: Results) -> None:
        raw = iter(part.faults)
        for node, value in zip(part.nodes.tolist(), part.values, strict=True):
            at = filling.nodes[node]
            if value is IN_ERROR:
                self._settle_fault(at, self._fault(filling, at, next(raw)))
            else:
                self._found[at] = Computed(self._graph.ids[at], value)  # type: ignore[arg-type] # else it is JSON
                self._wake(at)

    def _fault(self, filling: Filling, at: int, raw: RawFault) -> Fault:
        """The words for what a worker said in slots."""
        if not isinstance(raw, int):
            return Fault(*raw, self._graph.ids[at])
        base = len(filling.packet.constants)
        if raw >= base:
            return self._input_fault(at, self._graph.ids[filling.nodes[raw - base]], missing=False)
        return self._input_fault(at, filling.constant_id(raw), missing=filling.packet.constants[raw] is NOT_THERE)

    def _input_fault(self, at: int, input_id: str, *, missing: bool) -> Fault:
        if missing:
            return faults.missing_input(self._graph.ids[at], input_id)
        position = self._graph.index.get(input_id)
        if position is not None and position in self._found:
            fault = self._found[position].fault
        else:
            cell = self._view.cell(input_id)
            fault = cell.fault if cell is not None else None
        if fault is None:
            raise DvuError(f"a worker calls {faults.quote(input_id)} failed, and it is not")
        return faults.failed_input(input_id, fault)

    def _settle_fault(self, at: int, fault: Fault) -> None:
        self._where[at] = _SETTLED
        cell = self._graph.cells[at]
        if cell.state is not State.ERROR or cell.fault != fault:
            self._found[at] = Computed(self._graph.ids[at], fault=fault)
            self._wake(at)

    def _wake(self, at: int) -> None:
        if not self._islands:
            return  # everything is in a packet already, and its worker wakes what it must
        dirty = self._graph.dirty
        for reached in self._graph.successors[at]:
            dirty[reached] = 1

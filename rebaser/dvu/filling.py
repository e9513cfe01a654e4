"""A packet in the making.

Invariant: what was added after a mark can be taken out again, and costs no byte then.
"""

from rebaser.dvu import faults, fingerprint
from rebaser.dvu.packet import IN_ERROR, NEVER, Item, Mark, Packet, Shape, weight
from rebaser.dvu.same import own_fault, remember
from rebaser_core.state import Cell
from rebaser_core.updates import Derive
from rebaser_core.values import State, canonical


class Filling:
    """`packet`, and what the planner needs to undo the last island or to read the results."""

    def __init__(self, number: int) -> None:
        self.packet = Packet(number, fingerprint.code())
        self.nodes: list[int] = []  # positions in the plan, by place in the packet
        self.constants: dict[str, int] = {}  # id -> place
        self.shapes: dict[object, int] = {}
        self._constant_ids: list[str] = []
        self.bytes = 0
        self.work = 0

    def shape(self, definition: Derive) -> int:
        """The place of the shape of `definition` among the packet's shapes."""
        inputs = tuple([(name, -1 if isinstance(ids, str) else len(ids)) for name, ids in definition.inputs.items()])
        params = dict(definition.params)
        key = (definition.function, inputs, canonical(params) if params else b"")
        place = self.shapes.get(key)
        if place is None:
            place = self.shapes[key] = len(self.packet.shapes)
            self.packet.shapes.append(Shape(definition.function, inputs, params))
            self.bytes += 64 + weight(params)
        return place

    def constant_id(self, place: int) -> str:
        """The id behind a constant."""
        if len(self._constant_ids) != len(self.constants):
            self._constant_ids = list(self.constants)
        return self._constant_ids[place]

    def mark(self) -> tuple[int, int, int, int]:
        return len(self.nodes), len(self.packet.constants), self.bytes, self.work

    def undo(self, mark: tuple[int, int, int, int]) -> list[int]:
        """Take out what came after `mark` and return those nodes. Nothing may be added any more."""
        count, constants, self.bytes, self.work = mark
        packet = self.packet
        refs = sum(packet.shapes[shape].arity for shape in packet.shape[count:])
        out = self.nodes[count:]
        for column in (self.nodes, packet.shape, packet.dirty, packet.old):
            del column[count:]
        del packet.refs[len(packet.refs) - refs :]
        del packet.constants[constants:]
        return out


def item_weight(item: Item) -> int:
    """About how many bytes a constant takes."""
    return 1 if isinstance(item, Mark) else weight(item)  # type: ignore[arg-type] # a digest is no constant


def old_item(cell: Cell) -> Item:
    """What stood there, as a worker needs it to tell whether it changed."""
    if cell.state is State.STALE:
        return NEVER
    if cell.fault is not None:
        return IN_ERROR if cell.fault.code in faults.FROM_INPUTS else own_fault(cell.fault.code, cell.fault.message)
    return remember(cell.value)

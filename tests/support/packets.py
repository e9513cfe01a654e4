"""Packets that take long, or that a worker refuses."""

from dataclasses import replace

from rebaser.dvu.planning.packet_plan import PacketPlan
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.wire.packet import Packet
from rebaser_core.updates import Derive, Set
from tests.support.graphs import Book

ELEMENTS = 9_000  # elements of a list; a macro over it takes seconds, because its cost grows with their square


def small(value: int = 1) -> tuple[PacketPlan, list[bytes]]:
    """Return a plan that adds 1 to `value`, and its packet."""
    book = Book([Set("a", value), Derive("b", "cel", {"a": "a"}, {"expr": "a + 1"})])
    made = plan(book.state.view())
    return made, made.next_wave()  # type: ignore[return-value]


def slow(values: int) -> list[bytes]:
    """Return one packet that keeps a worker busy for some seconds per value."""
    derived = [Derive(f"v{at}", "cel", {"l": "l"}, {"expr": f"size(l.map(x, x)) + {at}"}) for at in range(values)]
    return plan(Book([Set("l", list(range(ELEMENTS))), *derived]).state.view()).next_wave()


def foreign() -> list[bytes]:
    """Return one packet of another release."""
    _, [data] = small()
    return [replace(Packet.decode(data), code="another").encode()]

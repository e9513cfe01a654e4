"""Packets that take as long, or go as wrong, as a test needs."""

from dataclasses import replace

from rebaser.dvu.planning.packet_plan import PacketPlan
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.wire.packet import Packet
from rebaser_core.updates import Derive, Set
from tests.support.graphs import Book

ELEMENTS = 9_000  # a macro over so many takes seconds: its cost grows with their square


def small(value: int = 1) -> tuple[PacketPlan, list[bytes]]:
    """A plan that adds 1 to `value`, and its packet."""
    book = Book([Set("a", value), Derive("b", "cel", {"a": "a"}, {"expr": "a + 1"})])
    made = plan(book.state.view())
    return made, made.next_wave()  # type: ignore[return-value]


def slow(values: int) -> list[bytes]:
    """One packet that keeps a worker busy for some seconds a value."""
    derived = [Derive(f"v{at}", "cel", {"l": "l"}, {"expr": f"size(l.map(x, x)) + {at}"}) for at in range(values)]
    return plan(Book([Set("l", list(range(ELEMENTS))), *derived]).state.view()).next_wave()


def foreign() -> list[bytes]:
    """One packet of another release."""
    _, [data] = small()
    return [replace(Packet.decode(data), code="another").encode()]

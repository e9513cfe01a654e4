"""Values that are sums, and plans of their updates."""

import numpy as np

from rebaser.dvu.planning.planner import plan
from rebaser.dvu.wire.packet import Packet
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Derive, Set, Update
from rebaser_core.values import Value
from tests.support.graphs import Book


def total(id_: str, *inputs: str) -> Derive:
    return Derive(id_, "sum", {"values": inputs})


def after(*updates: Update) -> dict[str, Value]:
    book = Book(updates)
    book.update()
    return book.values()


def cut(book: Book, limits: Thresholds) -> list[list[int]]:
    """Run an update, and return the number of nodes in each packet of each wave."""
    shape: list[list[int]] = []
    with book.state.view() as view:
        made = plan(view, limits)
        told = 0
        while packets := made.next_wave():
            sizes = [len(Packet.decode(packet).template) for packet in packets]
            shape.append(sizes)
            done = made.done_after  # the progress that operators see
            assert np.diff(done).tolist() == sizes
            assert done[0] >= told
            told = done[-1]
            assert told <= made.size
            made.absorb([result for packet in packets for result in evaluate_packet(packet)])
        book.commit(made.computed(), view.sequence)
    return shape


# -- graphs and how they are divided into packets ----------------------------------------------------------------------


def islands(count: int, size: int) -> list[Update]:
    return [
        update  # type: ignore[misc]
        for island in range(count)
        for update in (
            Set(f"{island}/0", island),
            *(total(f"{island}/{at}", f"{island}/{at - 1}") for at in range(1, size + 1)),
        )
    ]

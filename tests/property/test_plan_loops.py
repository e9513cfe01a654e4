"""The loops of planning give the same packets when they are compiled and when Python runs them."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rebaser.dvu.planning.planner import plan
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_core.state.change_set import View
from rebaser_core.thresholds import NEVER, Thresholds
from rebaser_core.updates import Derive, Remove, Set, Update
from tests.support.forcing import forcing
from tests.support.graphs import Book
from tests.support.random_input import examples

IDS = [f"v{at}" for at in range(12)]
LIMITS = forcing(Thresholds(packet_bytes=150, parallelism=2, task_min_elements=4), Thresholds(packet_bytes=1))

ids = st.sampled_from(IDS)
updates: st.SearchStrategy[Update] = st.one_of(
    st.builds(Set, ids, st.sampled_from([1, 2.5, "text", None])),
    st.builds(Remove, ids),
    st.builds(lambda id_, given: Derive(id_, "sum", {"values": tuple(given)}), ids, st.lists(ids, max_size=4)),
    st.builds(lambda at: Derive(IDS[at], "sum", {"values": tuple(IDS[:at])}), st.integers(1, len(IDS) - 1)),
)


def packets(view: View, limits: Thresholds) -> list[list[bytes]]:
    made = plan(view, limits)
    waves = []
    while wave := made.next_wave():
        waves.append(wave)
        made.absorb([result for packet in wave for result in evaluate_packet(packet)])
    return waves


@examples(0.6)
@given(st.lists(st.lists(updates, min_size=1, max_size=20), min_size=1, max_size=3), LIMITS)
def test_compiled_or_not_the_packets_are_the_same(edits: list[list[Update]], limits: Thresholds) -> None:
    book = Book()
    for some in edits:
        book.edit(*some)
        with book.state.view() as view:
            plain = packets(view, replace(limits, full_plan_min_values=NEVER, interpreted_max=NEVER))
            assert packets(view, replace(limits, full_plan_min_values=NEVER, interpreted_max=-1)) == plain
        book.update()

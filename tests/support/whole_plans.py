"""Updates with a full plan, for change sets of any size."""

from dataclasses import replace

from rebaser.dvu.planning.full_plan import FullGraphPlan
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser.dvu.worker.structure_cache import StructureCache
from rebaser_core.thresholds import Thresholds
from tests.support.graphs import Book

WHOLE = Thresholds(full_plan_min_values=0, full_plan_reach_divisor=1 << 30, full_plan_max_python_share=1.0)
COMPILED = replace(WHOLE, interpreted_max=-1)


def update(book: Book, limits: Thresholds, kept: StructureCache) -> int:
    """Run one update with a full plan, and return the number of its packets."""
    with book.state.view() as view:
        made = plan(view, limits)
        assert isinstance(made, FullGraphPlan)
        count = 0
        while packets := made.next_wave():
            count += 1
            made.absorb([part for packet in packets for part in evaluate_packet(packet, structures=kept)])
        book.commit(made.computed(), view.sequence)
    return count

"""Compiles the loops of planning, and the code with which workers compute numbers, before their first use.

A server runs `python -m rebaser.dvu.planning.warm_up` as a separate process at low priority.
"""

import os
from dataclasses import replace

import numpy as np

from rebaser.dvu.compiled import loader
from rebaser.dvu.planning.layout import IdText
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_core.commit import Commit, Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Derive, Match, Set


def warm() -> None:
    """Run every loop of planning once. Loops that were never compiled on this machine are compiled and stored."""
    state = ChangeSetState()
    edits = (
        Set("a", 1),
        Derive("c", "sum", {"values": ("b",)}),
        Derive("b", "sum", {"values": ("a",)}),
        Derive("d", "sum", {"values": Match("a*")}),
    )
    state.fold(1, Commit("", 0, Kind.REBASE, 0, "", None, 0, delta=edits))
    compiled = Thresholds(interpreted_max=-1)
    with state.view() as view:
        for limits in (
            replace(compiled, packet_bytes=1, task_min_elements=1),
            replace(compiled, full_plan_min_values=0, full_plan_reach_divisor=1 << 30),
        ):
            made = plan(view, limits)
            while packets := made.next_wave():
                made.absorb([part for packet in packets for part in evaluate_packet(packet)])
    IdText.of(["b"]).lines(np.zeros(1, np.int32), -1)


if __name__ == "__main__":
    os.nice(10)
    loader.load()
    warm()

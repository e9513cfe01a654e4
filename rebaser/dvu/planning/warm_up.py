"""Compiles ahead of time what planning and workers run compiled: `python -m rebaser.dvu.planning.warm_up`, beside a
server."""

import os

import numpy as np

from rebaser.dvu.compiled import linker
from rebaser.dvu.planning import layout
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_core.commit import Commit, Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Derive, Match, Set


def warm() -> None:
    """Have all compiled code that planning needs made, where nobody has yet."""
    state = ChangeSetState()
    edits = (
        Set("a", 1),
        Derive("c", "sum", {"values": ("b",)}),
        Derive("b", "sum", {"values": ("a",)}),
        Derive("d", "sum", {"values": Match("a*")}),
    )
    state.fold(1, Commit("", 0, Kind.REBASE, 0, "", None, 0, delta=edits))
    with state.view() as view:
        for limits in (Thresholds(packet_bytes=1, task_work=1, few=-1), Thresholds(few=-1, whole=0, share=1 << 30)):
            made = plan(view, limits)
            while packets := made.next_wave():
                made.absorb([part for packet in packets for part in evaluate_packet(packet)])
    layout.Names.of(["b"]).lines(np.zeros(1, np.int32), -1)


if __name__ == "__main__":
    os.nice(10)
    linker.load()
    warm()

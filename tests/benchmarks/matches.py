"""Measures the cost of inputs by pattern in an update, in this process without Spark: plan, packets, evaluation,
results.

    python -m tests.benchmarks.matches [--sizes 1000,100000,1000000] [--runs 5] [--json]

Figures are medians of CPU time in ms. `sum` is one sum over `cart/*/price`, with as many matches as the size. `islands`
are sums of 9 values each, with a pattern for each sum. `beside` is a random DAG with one pattern that matches little of
it, and `alone` the same DAG without the pattern. `first` is the update after loading, `one` after one edit, `all` after
an edit of every value that is set (of one in each island), `new` after one value was added that a pattern matches, and
another one removed.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from rebaser.dvu.planning.planner import plan
from rebaser.dvu.planning.warm_up import warm
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser.dvu.worker.structure_cache import StructureCache
from rebaser_core.commit import Commit, Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Match, Remove, Set, Update
from tests.benchmarks.dvu.loaded import FOLDED_AT_ONCE, Model, fold, medians, updates
from tests.benchmarks.machine import machine

SHAPES = ("sum", "islands", "beside", "alone")
FOLDER = 9  # values that the pattern of an island matches
Edits = Callable[[int], Iterator[Update]]


def _total(id_: str, glob: str) -> Derive:
    return Derive(id_, "sum", {"values": (Match(glob),)})


def model(shape: str, size: int) -> tuple[Iterator[Update], dict[str, Edits]]:
    """Return the updates that make about `size` values, and, by kind of edit, the edits of each turn."""
    if shape == "sum":
        return _sum(size)
    if shape == "islands":
        return _islands(size)
    return _dag(size, beside=shape == "beside")


def _sum(size: int) -> tuple[Iterator[Update], dict[str, Edits]]:
    def first() -> Iterator[Update]:
        yield _total("total", "cart/*/price")
        yield from (Set(f"cart/{at}/price", at) for at in range(size - 2))

    return first(), {
        "one": lambda turn: iter([Set("cart/0/price", turn)]),
        "all": lambda turn: (Set(f"cart/{at}/price", at + turn) for at in range(size - 2)),
        "new": lambda turn: iter([Set(f"cart/new{turn}/price", turn), Remove(f"cart/new{turn - 1}/price")]),
    }


def _islands(size: int) -> tuple[Iterator[Update], dict[str, Edits]]:
    def first() -> Iterator[Update]:
        for island in range(size // (FOLDER + 1)):
            yield _total(f"isle/{island}", f"isle/{island}/*")
            yield from (Set(f"isle/{island}/{at}", at) for at in range(FOLDER))

    return first(), {
        "one": lambda turn: iter([Set("isle/0/0", turn)]),
        "all": lambda turn: (Set(f"isle/{island}/0", turn) for island in range(size // (FOLDER + 1))),
        "new": lambda turn: iter([Set(f"isle/0/new{turn}", turn), Remove(f"isle/0/new{turn - 1}")]),
    }


def _dag(size: int, *, beside: bool) -> tuple[Iterator[Update], dict[str, Edits]]:
    dag = Model("dag", size)

    def first() -> Iterator[Update]:
        yield from updates(dag.work)
        yield Set("cart/1/price", 1)
        if beside:
            yield _total("total", "cart/*/price")

    return first(), {
        "one": lambda turn: iter([Set(f"v{dag.base - 1}", 1 + turn / 1000)]),
        "all": lambda _: iter(dag.edit("all")),
        "new": lambda turn: iter([Set(f"cart/new{turn}/price", turn), Remove(f"cart/new{turn - 1}/price")]),
    }


class Loaded:
    """A change set, and its updates."""

    def __init__(self, shape: str, size: int) -> None:
        first, self.edits = model(shape, size)
        self.state = ChangeSetState()
        self._kept = StructureCache(None)
        while some := list(islice(first, FOLDED_AT_ONCE)):
            fold(self.state, some)

    def edit(self, which: str, turn: int) -> None:
        fold(self.state, list(self.edits[which](turn)))

    def update(self) -> dict[str, float]:
        """Run one update. Return its CPU time in ms (`plan` is the part up to its first packets), and how many values
        changed."""
        with self.state.view() as view:
            began = time.process_time()
            made = plan(view)
            packets = made.next_wave()
            planned = time.process_time()
            while packets:
                made.absorb([part for packet in packets for part in evaluate_packet(packet, structures=self._kept)])
                packets = made.next_wave()
            computed = made.computed()
            done = time.process_time()
        state = self.state
        state.fold(state.last + 1, Commit("", state.last, Kind.DVU, 0, "", None, state.last, delta=computed))
        return {"cpu": 1000 * (done - began), "plan": 1000 * (planned - began), "changed": len(computed)}


def measure(shape: str, size: int, runs: int) -> Iterator[dict[str, Any]]:
    """Yield the medians of each kind of edit."""
    loaded = Loaded(shape, size)
    yield {"shape": shape, "size": size, "edit": "first"} | medians([loaded.update()])
    for which in loaded.edits:
        taken = []
        for turn in range(1, runs + 2):  # the first turn is not counted
            loaded.edit(which, turn)
            taken.append(loaded.update())
        yield {"shape": shape, "size": size, "edit": which} | medians(taken[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,100000,1000000")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warm()
    print(machine(), file=sys.stderr)
    for size in map(int, options.sizes.split(",")):
        for shape in options.shapes.split(","):
            for line in measure(shape, size, options.runs):
                words = "{shape:8} {size:8} {edit:6} {cpu:10.2f} ms, plan {plan:10.2f}, {changed:.0f} changed"
                print(json.dumps(line) if options.json else words.format(**line), flush=True)


if __name__ == "__main__":
    main()

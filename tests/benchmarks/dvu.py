"""What a dependent values update takes: plan, Spark, results; beside an empty one-packet job and an update of nothing.

    python -m tests.benchmarks.dvu [--sizes 1000,100000,1000000] [--shapes chain,dag] [--runs 5] [--json]

Shapes are those of `tests.benchmarks.evaluate`, loaded as a change set. Edits: `all` sets every value that is set,
`root` the first one, `same` sets all to what they were (everything is computed, nothing comes out other than it was).
Medians in ms, all of one run: `plan` and `rest` (packets in, results in) are the owner's share, `spark` is what the
engine took; `ratio` is the whole over the empty job. Aims: 1.3 for a thousand values, 1.8 for 100 thousand, 3 for a
million. Building the change set is not timed here, nor is writing the commit.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pyspark

from rebaser.dvu.engine import Engine, EngineSettings
from rebaser.dvu.packet import Work
from rebaser.dvu.plan import plan
from rebaser_core.commit import Commit, Kind
from rebaser_core.state import ChangeSetState
from rebaser_core.updates import Derive, Set, Update
from tests.benchmarks.evaluate import SHAPES, graph

EDITS = ("all", "root", "same")


def updates(work: Work) -> Iterator[Update]:
    """The change set that a packet would come from."""
    base = len(work.constants)
    for at, value in enumerate(work.constants):
        yield Set(f"v{at}", value)  # type: ignore[arg-type] # doubles
    at = 0
    refs, shapes = work.refs.tolist(), work.shapes
    for node, shape in enumerate(work.shape.tolist()):
        inputs: dict[str, str | tuple[str, ...]] = {}
        for name, count in shapes[shape].inputs:
            ids = tuple([f"v{slot}" for slot in refs[at : at + abs(count)]])
            inputs[name] = ids[0] if count < 0 else ids
            at += abs(count)
        yield Derive(f"v{base + node}", shapes[shape].function, inputs, shapes[shape].params)


class Loaded:
    """A change set at rest, and its edits."""

    def __init__(self, shape: str, size: int) -> None:
        work = graph(shape, size)
        self.values: Sequence[Any] = work.constants.tolist()
        self.state = ChangeSetState()
        self._fold(Kind.REBASE, list(updates(work)), covers=0)
        self._turn = 0

    def _fold(self, kind: Kind, delta: Sequence[Any], covers: int) -> None:
        state = self.state
        state.fold(state.last + 1, Commit("", state.last, kind, 0, "", None, covers, delta=delta))

    def edit(self, which: str) -> None:
        self._turn += which != "same"
        values = self.values[:1] if which == "root" else self.values
        self._fold(
            Kind.REBASE,
            [Set(f"v{at}", value + 0.001 * self._turn) for at, value in enumerate(values)],
            self.state.covers,
        )

    async def update(self, engine: Engine) -> dict[str, float]:
        """One update; ms of its parts, and how many values changed."""
        with self.state.view() as view:
            times = [time.perf_counter()]
            made = plan(view)
            packets = made.next_wave()
            times.append(time.perf_counter())
            spark = sent = 0.0
            while packets:
                sent += sum(map(len, packets))
                began = time.perf_counter()
                results = await engine.evaluate(packets, label="bench")
                spark += time.perf_counter() - began
                made.absorb([part for one in results for part in one])
                packets = made.next_wave()
            computed = made.computed()
            times.append(time.perf_counter())
            sequence = view.sequence
        self._fold(Kind.DVU, computed, sequence)
        whole = times[2] - times[0]
        return {
            "all": 1000 * whole,
            "plan": 1000 * (times[1] - times[0]),
            "spark": 1000 * spark,
            "rest": 1000 * (times[2] - times[1] - spark),
            "mb": sent / 1e6,
            "affected": made.size,
            "changed": len(computed),
        }


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}


async def measure(engine: Engine, shape: str, size: int, runs: int) -> Iterator[dict[str, Any]]:
    loaded, empty = Loaded(shape, size), Loaded("chain", 2)
    await loaded.update(engine)
    await empty.update(engine)
    found = []
    for which in EDITS:
        taken, floor = [], []
        for _ in range(runs + 1):  # the first of each is not counted
            empty.edit("all")
            floor.append(await empty.update(engine))
            loaded.edit(which)
            taken.append(await loaded.update(engine))
        one, none = medians(taken[1:]), medians(floor[1:])
        found.append(
            {"shape": shape, "size": size, "edit": which}
            | one
            | {"empty": none["all"], "ratio": round(one["all"] / none["all"], 2)}
        )
    return iter(found)


async def run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Engine("local[*]", EngineSettings(scratch=Path(folder), parallelism=2)) as engine:
            await engine.ready.wait()
            for _ in range(20):  # the JVM compiles what it runs often
                await Loaded("chain", 2).update(engine)
            for size in map(int, options.sizes.split(",")):
                for shape in options.shapes.split(","):
                    for one in await measure(engine, shape, size, options.runs):
                        print(json.dumps(one) if options.json else _line(one), flush=True)


def _line(one: dict[str, Any]) -> str:
    return (
        f"{one['size']:8} {one['shape']:8} {one['edit']:5} {one['affected']:9.0f} {one['changed']:9.0f} {one['mb']:7}"
        f" {one['plan']:8} {one['spark']:8} {one['rest']:8} {one['all']:8} {one['empty']:7} {one['ratio']:6}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,100000,1000000")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.json:
        print(f"{platform.machine()}, Python {platform.python_version()}, PySpark {pyspark.__version__}")
        print("    size shape    edit   affected   changed   MB in     plan    spark     rest      all   empty  ratio")
    anyio.run(run, options)


if __name__ == "__main__":
    main()

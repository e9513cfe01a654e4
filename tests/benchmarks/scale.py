"""Measures a change set of 10 million values and 30 million dependencies: load, edits, updates; time and memory of
each.

    python -m tests.benchmarks.scale [--values 10000000] [--inputs 30000000] [--edits 1,10000,all] [--json]

A tenth of the values are set. Each of the others is the mean of three or four values drawn from all before it. This
process is the owner; Spark runs embedded beside it with its workers. Memory is resident memory, sampled all the time:
the peak of each process, and of all together, with shared pages counted in each. Aim: 8 GB in total. At the end, every
value is checked against a recompute.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import structlog
import uvloop
from numba import njit
from numpy.typing import NDArray

from rebaser.dvu.spark.engine import Engine, EngineSettings
from rebaser.dvu.update import PacketEngine
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Set, Update
from tests.benchmarks import machine
from tests.benchmarks.dvu.loaded import fold, timed_update

AT_ONCE = 50_000  # updates in a commit while the change set is loaded
SAMPLE = 0.2  # seconds
GB = 1e9


class Graph:
    """The values by number, first those that are set. The graph is generated in pieces on demand, so it takes no
    memory."""

    def __init__(self, values: int, inputs: int) -> None:
        self.base = max(values // 10, 4)
        self.nodes = values - self.base
        self.inputs = inputs
        self.held = np.random.default_rng(7).uniform(0.5, 1.5, self.base)

    def pieces(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield pieces: the first node, where the inputs of each node begin (with the end of all), and the inputs."""
        for first in range(0, self.nodes, AT_ONCE):
            nodes = np.arange(first, min(first + AT_ONCE, self.nodes))
            starts = np.append(nodes, nodes[-1] + 1) * self.inputs // self.nodes
            counts = np.diff(starts)
            draw = np.random.default_rng([7, first]).random(counts.sum())
            yield first, starts - starts[0], (draw * np.repeat(nodes + self.base, counts)).astype(np.int64)

    def updates(self) -> Iterator[list[Update]]:
        for first in range(0, self.base, AT_ONCE):
            some = self.held[first : first + AT_ONCE].tolist()
            yield [Set(f"v{at}", value) for at, value in enumerate(some, first)]
        for first, starts, inputs in self.pieces():
            ids = [f"v{one}" for one in inputs.tolist()]
            cuts = starts.tolist()
            yield [
                Derive(f"v{self.base + first + at}", "mean", {"values": tuple(ids[begin:end])})
                for at, (begin, end) in enumerate(pairwise(cuts))
            ]

    def computed(self) -> NDArray[np.float64]:
        values = np.concatenate((self.held, np.zeros(self.nodes)))
        for first, starts, inputs in self.pieces():
            means(self.base + first, starts, inputs, values)
        return values


@njit(cache=True)  # type: ignore[untyped-decorator]
def means(first: Any, starts: Any, inputs: Any, values: Any) -> None:
    for at in range(len(starts) - 1):
        total = 0.0
        for place in range(starts[at], starts[at + 1]):
            total += values[inputs[place]]
        values[first + at] = total / (starts[at + 1] - starts[at])


class Memory:
    """Peaks of resident memory in bytes: of this process, the JVM, the Python workers, and all together."""

    def __init__(self) -> None:
        self.peaks = dict.fromkeys(("owner", "jvm", "workers", "all"), 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def now(self) -> dict[str, int]:
        found = dict.fromkeys(self.peaks, 0)
        todo = [os.getpid()]
        while todo:
            pid = todo.pop()
            try:
                resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                name = Path(f"/proc/{pid}/comm").read_text()
                for task in Path(f"/proc/{pid}/task").iterdir():
                    todo += map(int, (task / "children").read_text().split())
            except OSError:
                continue  # the process has ended
            found["owner" if pid == os.getpid() else "jvm" if name.startswith("java") else "workers"] += resident
            found["all"] += resident
        return found

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE):
            for name, size in self.now().items():
                self.peaks[name] = max(self.peaks[name], size)


class Scale:
    """The steps of a run. `say` is called with a line for each step."""

    def __init__(self, graph: Graph, engine: PacketEngine, memory: Memory, say: Any) -> None:
        self._graph = graph
        self._engine = engine
        self._memory = memory
        self._say = say
        self._turn = 0
        self.state = ChangeSetState()

    def load(self) -> None:
        started = time.perf_counter()
        for some in self._graph.updates():
            fold(self.state, some)
        self._tell("load", started, values=len(self.state.cells))

    async def edit(self, which: str) -> None:
        graph = self._graph
        count = graph.base if which == "all" else min(int(which), graph.base)
        at = np.arange(count) * graph.base // count
        self._turn += 1
        graph.held[at] = np.random.default_rng([8, self._turn]).uniform(0.5, 1.5, count)
        edits = [Set(f"v{one}", value) for one, value in zip(at.tolist(), graph.held[at].tolist(), strict=True)]
        started = time.perf_counter()
        fold(self.state, edits)
        self._tell(f"edit {which}", started)
        await self.update(f"update {which}")

    async def update(self, name: str) -> None:
        started = time.perf_counter()
        found = await timed_update(self.state, self._engine)
        self._tell(name, started, **{key: round(value, 2) for key, value in found.items()})

    def check(self) -> None:
        started = time.perf_counter()
        columns, expected = self.state.cells.columns, self._graph.computed()
        assert columns.size == len(expected)
        numbers = np.fromiter((int(id_[1:]) for id_ in columns.ids), np.int64, len(columns.ids))
        found = columns.bits[: len(numbers)].view(np.float64)
        np.testing.assert_allclose(found, expected[numbers], rtol=1e-9, atol=0)
        self._tell("check", started)

    def _tell(self, step: str, started: float, **more: Any) -> None:
        taken = time.perf_counter() - started
        resident = {f"{name}_gb": round(size / GB, 2) for name, size in self._memory.now().items()}
        self._say({"step": step, "s": round(taken, 3)} | more | resident)


async def run(graph: Graph, edits: list[str], say: Any) -> dict[str, int]:
    with Memory() as memory, tempfile.TemporaryDirectory() as folder:
        async with Engine("local[*]", EngineSettings(scratch=Path(folder), parallelism=2)) as engine:
            await engine.ready.wait()
            scale = Scale(graph, engine, memory, say)
            scale.load()
            gc.freeze()  # as an owner does
            await scale.update("update, first")
            for which in edits:
                await scale.edit(which)
            peaks = dict(memory.peaks)
            scale.check()
        return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=10_000_000)
    parser.add_argument("--inputs", type=int, default=30_000_000)
    parser.add_argument("--edits", default="1,10000,all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )

    def say(line: dict[str, Any]) -> None:
        text = json.dumps(line) if options.json else "  ".join(f"{name} {value}" for name, value in line.items())
        print(text, flush=True)

    if not options.json:
        print(machine.machine(), machine.versions(), f"load {machine.load():.1f}")
    peaks = uvloop.run(run(Graph(options.values, options.inputs), options.edits.split(","), say))
    say({"step": "peak", **{f"{name}_gb": round(size / GB, 2) for name, size in peaks.items()}, "aim_gb": 8})


if __name__ == "__main__":
    main()

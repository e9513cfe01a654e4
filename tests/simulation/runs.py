"""Runs many seeds, one after the other or in several processes."""

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from tests.simulation.setup import Mode
from tests.simulation.story import simulate
from tests.simulation.ways import Counts


@dataclass(frozen=True)
class Run:
    """The result of one seed. `report` is empty if there was no violation. `ways` has how often each way was taken, if
    that was counted."""

    seed: int
    requests: int
    commits: int
    faults: int
    digest: str
    report: str
    ways: Counter[str]


def run(mode: Mode | None, count: bool, seed: int) -> Run:
    counts = Counts()
    try:
        with counts.counting() if count else nullcontext():
            result = simulate(seed, mode)
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return Run(
        seed,
        result.requests,
        result.commits,
        sum(result.counts.values()),
        result.trace.digest(),
        result.report() if result.violation is not None else "",
        counts.taken,
    )


def run_all(seeds: Iterable[int], mode: Mode | None, jobs: int, *, count: bool = False) -> Iterator[Run]:
    """Run the seeds in `jobs` processes, and yield the results in order. With `count`, count the ways that are
    taken."""
    if jobs == 1:
        yield from map(partial(run, mode, count), seeds)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        try:
            yield from pool.map(partial(run, mode, count), seeds)
        finally:
            pool.shutdown(cancel_futures=True)

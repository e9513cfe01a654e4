"""Many seeds, one after the other or in several processes."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from tests.simulation.setup import Mode
from tests.simulation.story import simulate


@dataclass(frozen=True)
class Run:
    """What is left of the run of one seed. `report` is empty if nothing was violated."""

    seed: int
    requests: int
    commits: int
    faults: int
    digest: str
    report: str


def run(mode: Mode | None, seed: int) -> Run:
    try:
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
    )


def run_all(seeds: Iterable[int], mode: Mode | None, jobs: int) -> Iterator[Run]:
    """In order, in `jobs` processes."""
    if jobs == 1:
        yield from map(partial(run, mode), seeds)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        try:
            yield from pool.map(partial(run, mode), seeds)
        finally:
            pool.shutdown(cancel_futures=True)

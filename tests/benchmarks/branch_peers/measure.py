"""Measures one side for one size. The results are dictionaries with `ms` (the median) or `bytes`.

A side has the methods of `workload.Side`; steps whose methods are missing are not measured. After each step, a check
shows that the side did what was asked.
"""

import itertools
import statistics
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from tests.benchmarks.branch_peers.workload import Case

Line: TypeAlias = dict[str, Any]

BRANCHES = 100  # branches whose bytes are counted
SINGLY = 20  # branches that are created one after the other
TURNS = itertools.count()  # numbers the edits, so that each sets a new value
HISTORY = 50  # commits of one edit each on main before the measurements


@asynccontextmanager
async def running(name: str, folder: Path) -> AsyncIterator[Any]:
    """Start a side, and yield it ready to be loaded."""
    async with AsyncExitStack() as stack:
        if name == "rebaser":
            from tests.benchmarks.branch_peers.rebaser_side import Rebaser

            yield await stack.enter_async_context(Rebaser.running(folder))
        elif name == "git":
            from tests.benchmarks.branch_peers.git_side import Git

            yield Git(folder)
        elif name == "doltlite":
            from tests.benchmarks.branch_peers.doltlite_side import Doltlite

            yield Doltlite(folder)
        else:
            from tests.benchmarks.branch_peers.icechunk_side import Icechunk

            yield Icechunk(folder)


async def measure(
    name: str, folder: Path, values: int, edits: list[int], runs: int, *, collect: bool = False
) -> AsyncIterator[Line]:
    """Yield the lines of the side `name` for graphs of `values`, with branches of each number of `edits`.

    With `collect`, garbage is collected even if that starts Spark.
    """
    async with running(name, folder) as side:
        about = {"side": name, "version": side.version, "values": values}
        yield about | {"what": "load", "ms": round(await _ms(side.load(values)), 1)}
        for turn in range(HISTORY):
            await side.edit("main", {1: turn})
        async for line in _whole(side, runs):
            yield about | line
        for count in edits:
            for shared in (0, max(count // 100, 1)):
                case = Case(values, count, shared)
                if case.fits and (hasattr(side, "merge") or not shared):
                    async for line in _branches(side, case, runs):
                        yield about | {"edits": count, "shared": shared} | line
        if collect or name != "rebaser":
            yield about | {"what": "collect", "ms": round(await _ms(side.collect()), 1)}


async def _whole(side: Any, runs: int) -> AsyncIterator[Line]:
    """Measure what does not depend on the edits of a branch."""
    yield {"what": "branch", "ms": _median([await _ms(side.branch(f"single{turn}")) for turn in range(SINGLY)])}
    at = await side.position()
    await side.edit("main", {1: -5})
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        assert await side.read(1, at) == HISTORY - 1
        taken.append(1000 * (time.perf_counter() - began))
    yield {"what": "read as of", "ms": _median(taken)}
    if hasattr(side, "blame"):
        yield {"what": "blame", "ms": _median([await _ms(side.blame(1)) for _ in range(runs)])}
    if hasattr(side, "log"):
        taken = []
        for _ in range(runs):
            began = time.perf_counter()
            assert await side.log(1) == HISTORY + 2, "the first definition, the history, and the edit above"
            taken.append(1000 * (time.perf_counter() - began))
        yield {"what": "log of one", "ms": _median(taken)}
    before = await side.size()
    for number in range(BRANCHES):
        await side.branch(f"many{number}")
        await side.edit(f"many{number}", {number + 1: -number})
    yield {"what": "100 branches", "bytes": await side.size() - before}


async def _branches(side: Any, case: Case, runs: int) -> AsyncIterator[Line]:
    """Measure a branch after its target was edited, too: its difference, its merge or conflicts, and the revert."""
    taken: dict[str, list[float]] = {}
    for turn in itertools.islice(TURNS, runs):
        ours, theirs = case.both(turn)
        name = f"b{turn}"
        await side.branch(name)
        taken.setdefault("commit", []).append(await _ms(side.edit(name, ours)))
        await side.edit("main", theirs)
        began = time.perf_counter()
        assert await side.diff(name) == case.edits
        taken.setdefault("diff", []).append(1000 * (time.perf_counter() - began))
        if not hasattr(side, "merge"):
            continue
        began = time.perf_counter()
        conflicts = await side.merge(name)
        taken.setdefault("merge" if not case.shared else "find conflicts", []).append(
            1000 * (time.perf_counter() - began)
        )
        assert conflicts == case.shared, conflicts
        for part, ms in getattr(side, "parts", {}).items():
            taken.setdefault(part, []).append(ms)
        if case.shared:
            began = time.perf_counter()
            assert await side.conflicts(name) == conflicts
            taken.setdefault("list conflicts", []).append(1000 * (time.perf_counter() - began))
            if hasattr(side, "give_up"):
                await side.give_up()
            continue
        edited = next(iter(ours))
        assert await side.read(edited, await side.position()) == ours[edited]
        taken.setdefault("revert", []).append(await _ms(side.revert()))
        assert await side.read(edited, await side.position()) != ours[edited]
    for what, found in taken.items():
        yield {"what": what, "ms": _median(found)}


async def _ms(doing: Awaitable[object]) -> float:
    began = time.perf_counter()
    await doing
    return 1000 * (time.perf_counter() - began)


def _median(taken: list[float]) -> float:
    return round(statistics.median(taken), 3)

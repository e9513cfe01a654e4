"""Checks that the simulation finds planted bugs, reports them so that a developer can follow, and repeats runs
exactly."""

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS, Bug
from tests.simulation.loop import SimLoop
from tests.support.draws import drawing

pytestmark = pytest.mark.timeout(960)  # generous, because a busy machine is not a defect

ROOT = Path(__file__).parents[2]
PARTS = 24


def run(*arguments: str, expected: int, cache: str = "") -> str:
    """Return the output of a process of its own, because a seed repeats exactly only under the same hash seed."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"} | ({"NUMBA_CACHE_DIR": cache} if cache else {}),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == expected, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("one", BUGS, ids=lambda one: one.name)
def test_the_source_still_has_what_a_planted_bug_replaces(one: Bug) -> None:
    sources: dict[str, str] = {}
    for module, old, new in one.changes:
        if module not in sources:
            spec = importlib.util.find_spec(module)
            assert spec is not None, module
            assert spec.origin is not None, module
            sources[module] = Path(spec.origin).read_text()
        assert sources[module].count(old) == 1, f"{module}: {old}"
        sources[module] = sources[module].replace(old, new)
    for module, source in sources.items():
        compile(source, module, "exec")


@pytest.mark.long  # ten minutes of computing; the short form draws some of the bugs in each run
def test_the_simulation_finds_each_planted_bug() -> None:
    found = run("tests.simulation.bugs", expected=0)
    assert found.count(": seed ") == len(BUGS) >= 20


def test_the_simulation_finds_some_planted_bugs(record_property: Callable[[str, object], None]) -> None:
    part = f"{drawing('planted bugs').randint(1, PARTS)}/{PARTS}"
    record_property("told", f"simulation: planted bugs, part {part}")
    assert run("tests.simulation.bugs", "--part", part, expected=0).count(": seed ") >= len(BUGS) // PARTS


def test_a_violation_is_told_with_its_seed_and_a_trace() -> None:
    told = run("tests.simulation", "--bug", "the reply is sent before the commit", "--seed", "1", expected=1)
    *trace, _, violation, again = told.strip().splitlines()
    assert "!!!" in "".join(trace)
    assert "starts" in trace[0]
    assert violation.startswith("seed 1, harsh: ")
    assert "no commit has this outcome" in violation
    assert again.strip() == "PYTHONHASHSEED=0 python -m tests.simulation --seed 1 --mode harsh"


@pytest.mark.parametrize(
    ("compiled", "before"),
    [(True, 1), pytest.param(False, 2, marks=pytest.mark.long)],  # compiling everything takes a minute
    ids=["compiled code is there", "nothing is compiled"],
)
def test_a_seed_gives_the_same_trace_again(tmp_path: Path, compiled: bool, before: int) -> None:
    """Also after `before` other runs in the same process, and on machines with and without cached compiled code."""
    cache, runs = "" if compiled else str(tmp_path), str(2 * before)
    first = run("tests.simulation", "--seed", "5", "--runs", runs, "--digest", expected=0, cache=cache).splitlines()
    then = ("--seed", str(5 + before), "--runs", str(before))
    second = run("tests.simulation", *then, "--digest", expected=0).splitlines()
    assert first[before : 2 * before] == second[:before]
    assert len({line.split()[1] for line in first[: 2 * before]}) == 2 * before


def test_tasks_and_futures_are_walked_in_the_same_order_in_every_run() -> None:
    """Cancellation iterates over sets of tasks. Their order must not depend on what ran before in the process."""

    async def walked() -> list[int]:
        tasks = [asyncio.ensure_future(asyncio.sleep(0)) for _ in range(5)]
        order = [tasks.index(task) for task in set(tasks)]
        await asyncio.gather(*tasks)
        return order

    orders = []
    for _ in range(8):
        loop = SimLoop()
        orders.append(loop.run_until_complete(walked()))
        loop.close()
    assert orders == orders[:1] * 8

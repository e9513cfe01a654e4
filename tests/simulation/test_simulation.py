"""Runs some new seeds of the simulation in each run of the tests; `python -m tests.simulation` runs any number."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.draws import drawing

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(600)  # generous, because a busy machine is not a defect


def run(*arguments: str) -> None:
    """Run the simulation in a process of its own, because a seed repeats exactly only under the same hash seed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--keep-going", *arguments],
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=570,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    assert "no violation" in done.stdout


@pytest.mark.long  # the same seeds each time: they find what a change of the simulation breaks, and little else
def test_forty_seeds_take_every_way_that_there_is() -> None:
    run("--seed", "1", "--runs", "40", "--ways")


def test_no_seed_breaks_a_promise(record_property: Callable[[str, object], None]) -> None:
    """The seeds were never run before. They are printed at the end of the test run."""
    first, runs = drawing("simulation").randrange(10**12), 24
    record_property("told", f"simulation: seeds {first} to {first + runs - 1}")
    run("--seed", f"{first}", "--runs", f"{runs}")


def test_nothing_that_is_needed_is_collected_over_virtual_days(record_property: Callable[[str, object], None]) -> None:
    first, runs = drawing("simulation of garbage").randrange(10**12), 2
    record_property("told", f"simulation: garbage, seeds {first} to {first + runs - 1}")
    run("--mode", "garbage", "--seed", f"{first}", "--runs", f"{runs}")

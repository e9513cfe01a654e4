"""Some seeds of the simulation, the same ones and fresh ones; `python -m tests.simulation` runs any number."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    """What a process of its own prints of seeds that break no promise: one repeats exactly only under its hash seed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--keep-going", *arguments],
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    assert "no violation" in done.stdout
    return done.stdout


def test_no_seed_breaks_a_promise() -> None:
    run("--seed", "1", "--runs", "40")


def test_no_fresh_seed_breaks_a_promise(record_property: Callable[[str, object], None]) -> None:
    """Nobody ran them before. What they are is told at the end of the run, and by whoever fails."""
    record_property("told", f"simulation: {run('--fresh', '--runs', '60').splitlines()[0]}")

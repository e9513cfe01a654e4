"""A few seeds of the simulation; `python -m tests.simulation` runs any number."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_seed_breaks_a_promise() -> None:
    """In a process of its own: a seed repeats exactly only under the same hash seed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", "1", "--runs", "40"],
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    assert "no violation" in done.stdout

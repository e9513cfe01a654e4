"""The benchmark of branches beside others; `python -m tests.benchmarks.branch_peers --help` tells what it measures.

`workload` generates the values and the edits, the modules of `SIDES` have one side each, `measure` takes the figures,
and `__main__` runs each side in a process of its own and prints them beside each other.
"""

from importlib.util import find_spec
from shutil import which

SIDES = ("rebaser", "git", "doltlite", "icechunk")


def missing(side: str) -> str | None:
    """How to get a side that is not there; None for one that is."""
    if side == "git":
        return None if which("git") else "not installed: apt install git"
    if side == "rebaser" or find_spec(side):
        return None
    return f"not installed: uv sync --group peers, or pip install {side}"

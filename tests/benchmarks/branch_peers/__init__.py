"""The benchmark that compares branches with those of other products; `python -m tests.benchmarks.branch_peers --help`
explains it.

`workload` generates the values and the edits, each module in `SIDES` is one product, `measure` measures, and `__main__`
runs each side in a process of its own and prints the figures side by side.
"""

from importlib.util import find_spec
from shutil import which

SIDES = ("rebaser", "git", "doltlite", "icechunk")


def missing(side: str) -> str | None:
    """Return how to install a side that is missing; None if it is installed."""
    if side == "git":
        return None if which("git") else "not installed: apt install git"
    if side == "rebaser" or find_spec(side):
        return None
    return f"not installed: uv sync --group peers, or pip install {side}"

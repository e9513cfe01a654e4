"""Runs the simulation with a planted bug."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from tests.simulation.bugs.bug import Bug
from tests.simulation.planting import planted

SEEDS = 1000  # maximum seeds for each bug: a change of the protocol may shift what a seed does


def seeds(first: int) -> Iterator[int]:
    return itertools.chain((first,), (seed for seed in range(1, SEEDS) if seed != first))


def find(one: Bug, tries: Sequence[int] | None = None) -> tuple[int, str]:
    """Return the seed that finds the bug (0: none does), and the text of the violation."""
    with planted(one.changes) as story:
        for seed in tries or seeds(one.seed):
            result = story.simulate(seed, story.Mode(one.mode))
            if result.violation is not None:
                return seed, f"{result.violation}"
    return 0, ""


def plant(one: Bug, seed: int) -> Any:
    """Run one seed with the bug planted, and return its `Result`."""
    with planted(one.changes) as story:
        return story.simulate(seed, story.Mode(one.mode), plain=True)

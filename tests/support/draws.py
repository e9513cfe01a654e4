"""Random draws of a run of the tests. They follow from one seed, which the run prints at its end. What does not matter
to the result is drawn without it: ports, the bytes of blobs, and what benchmarks measure."""

import os
import random
from collections.abc import MutableMapping

VARIABLE = "TESTS_SEED"


def choose_seed(environment: MutableMapping[str, str]) -> str:
    """Return the seed that the environment names. If it names none, draw one for this process and its children."""
    return environment.setdefault(VARIABLE, str(random.SystemRandom().randrange(10**12)))


def drawing(purpose: str) -> random.Random:
    """Return a random generator that gives the same numbers for the same seed and purpose."""
    return random.Random(f"{choose_seed(os.environ)} {purpose}")

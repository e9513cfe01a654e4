"""Checks that each threshold of the log, the state and checkpoints is forced in both directions by some test or run."""

import re
from pathlib import Path

import pytest

from rebaser_core import thresholds
from tests.simulation.ways import ELSEWHERE, FORCED, WAYS

ROOT = Path(__file__).parents[2]
GROUPS = ("requests and the log", "the state in columns", "checkpoints", "branches")


def of_log_and_state() -> list[str]:
    source = Path(thresholds.__file__).read_text()
    parts = re.split(r"    # -- (.+?) -+\n", source)
    groups = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [name for group in GROUPS for name in re.findall(r"^    (\w+): int = _from", groups[group], re.MULTILINE)]


def test_each_threshold_of_log_and_state_is_listed_once() -> None:
    assert sorted(FORCED) == sorted(of_log_and_state())


@pytest.mark.parametrize(("threshold", "places"), FORCED.items())
def test_what_a_threshold_chooses_is_counted_or_a_test_names_it(threshold: str, places: tuple[str, ...]) -> None:
    ways = {way.name for way in WAYS}
    assert places
    for place in places:
        assert place in ways or re.search(rf"\b{threshold}\b", (ROOT / place).read_text()), place


@pytest.mark.parametrize("test", ELSEWHERE.values())
def test_what_the_simulation_leaves_to_a_test_is_there(test: str) -> None:
    assert (ROOT / test).exists()

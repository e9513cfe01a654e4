"""The cost of an update depends on what it touches, and not on the size of the change set. Times are only printed."""

import pytest

from tests.benchmarks.apply_size import filled, measure, touched

pytestmark = pytest.mark.bench


def test_an_update_touches_as_much_of_a_large_change_set_as_of_a_small_one() -> None:
    small, large = filled(1000), filled(100_000)
    for number in range(50):
        assert touched(small, number) == touched(large, number) == 1
    assert len(small.roots) == len(large.roots) == 50
    assert len(small.stale()) == len(large.stale()) == 50


@pytest.mark.long
def test_the_figures_of_a_million_values() -> None:
    print(measure(1000, 1_000_000, 2000, 1_000_000))

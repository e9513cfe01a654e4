"""The ScaledObject makes a fleet follow its work: it grows at once, shrinks slowly, and never to zero."""

from itertools import pairwise
from typing import Any

import pytest

from tests.kubernetes.chart import render
from tests.kubernetes.hpa import SYNC, pods_over_time, recommended
from tests.kubernetes.matrix import SCALED

MINUTE = 60 // SYNC


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    return render(SCALED).get("ScaledObject")["spec"]  # type: ignore[no-any-return]


def test_a_step_is_met_within_a_minute(spec: dict[str, Any]) -> None:
    assert list(pods_over_time(spec, [20_000] * MINUTE, 3)) == [7, 14, 28, 28]  # 714 change sets for each server


def test_bursts_do_not_make_the_fleet_flap(spec: dict[str, Any]) -> None:
    """With two minutes of much work and two of little, the fleet stays as large as the bursts need it."""
    bursts = ([9_000] * 2 * MINUTE + [100] * 2 * MINUTE) * 10
    found = list(pods_over_time(spec, bursts, 3))
    assert found[-1] == 13
    assert all(before <= after for before, after in pairwise(found))


def test_work_that_ends_leaves_the_fleet_time_to_hand_over(spec: dict[str, Any]) -> None:
    """The fleet stays for five minutes, and then shrinks by a tenth each minute, down to the lowest number."""
    found = list(pods_over_time(spec, [0.0] * 60 * MINUTE, 40))
    assert set(found[: 5 * MINUTE]) <= {40, 36}
    for before, after in zip(found, found[MINUTE:], strict=False):
        assert after >= before - max(before * 0.1, 1) - 1
    assert found[-1] == spec["minReplicaCount"] == 3
    assert min(found) == 3


def test_noise_of_a_tenth_changes_nothing(spec: dict[str, Any]) -> None:
    noise = [7_000 * (1 + 0.09 * (-1) ** number) for number in range(100)]
    assert set(pods_over_time(spec, noise, 10)) == {10}


def test_more_work_than_the_largest_fleet_takes_no_more(spec: dict[str, Any]) -> None:
    assert list(pods_over_time(spec, [10**6] * 3 * MINUTE, 30))[-1] == spec["maxReplicaCount"] == 40
    assert recommended(10, 10**6, 700) == 1429

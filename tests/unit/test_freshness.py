"""The computed age of a blob is never too low, whichever clock is right."""

import time

import pytest

from rebaser_client.blobs.freshness import Freshness
from rebaser_core.blobs.garbage import FRESH_FOR


@pytest.mark.parametrize(
    ("boot", "wall", "age"),
    [
        (FRESH_FOR, FRESH_FOR, FRESH_FOR),
        (FRESH_FOR + 1, -3600.0, FRESH_FOR + 1),  # the wall clock was set back
        (5.0, FRESH_FOR + 1, FRESH_FOR + 1),  # the machine was suspended, and has no clock that counts that time
    ],
)
def test_it_is_as_old_as_the_clock_says_that_went_on_longest(
    boot: float, wall: float, age: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = {"boot": 1000.0, "wall": 5000.0}
    monkeypatch.setattr("rebaser_client.blobs.freshness.boot_time", lambda: now["boot"])
    monkeypatch.setattr(time, "time", lambda: now["wall"])
    freshness = Freshness()
    assert (freshness.age, freshness.is_fresh) == (0.0, True)
    now = {"boot": 1000.0 + boot, "wall": 5000.0 + wall}
    assert (freshness.age, freshness.is_fresh) == (age, age <= FRESH_FOR)

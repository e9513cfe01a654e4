"""For how long a failure is shown."""

from rebaser.runtime.health import SHOWN_FOR, HealthStatus
from rebaser_core.errors import TransientError

AWAY = TransientError("the blob store is away")


def test_a_failure_is_shown_until_it_counts_as_over() -> None:
    health = HealthStatus()
    assert health.current(100.0) == ""
    health.record(100.0, AWAY)
    assert health.current(100.0 + SHOWN_FOR) == AWAY.message
    assert health.current(101.0 + SHOWN_FOR) == ""


def test_one_that_lasts_is_shown_as_long_and_one_that_is_short_no_shorter() -> None:
    health = HealthStatus()
    health.record(100.0, AWAY, 10 * SHOWN_FOR)
    assert health.current(100.0 + 10 * SHOWN_FOR) == AWAY.message
    health = HealthStatus()
    health.record(100.0, AWAY, 1.0)
    assert health.current(100.0 + SHOWN_FOR) == AWAY.message


def test_the_newest_is_shown() -> None:
    health = HealthStatus()
    health.record(100.0, TransientError("before"))
    health.record(101.0, AWAY)
    assert health.current(102.0) == AWAY.message

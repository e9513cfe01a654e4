"""The clock of NATS as metrics see it, and the lateness of the event loop."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser.telemetry import feeds
from rebaser.telemetry.catalogue import QUEUE_SECONDS
from rebaser.telemetry.clocks import NATS_CLOCK, RecentLag
from rebaser_client.jetstream import Message

YEAR = 365 * 86_400


def message(age: float) -> Message:
    """Return a message that NATS stored `age` seconds ago."""
    return cast("Message", SimpleNamespace(timestamp_ns=time.time_ns() - int(age * 1e9)))


def observed(message: Message) -> float:
    """Return the age that is observed for the message, in seconds."""

    def total() -> float:
        series = QUEUE_SECONDS.series()
        series.fold()
        return series.total

    before = total()
    feeds.requests_answered([message], time.monotonic_ns())
    return total() - before


@pytest.mark.parametrize("wrong", [-YEAR, -600.0, 600.0, YEAR])
def test_requests_are_no_older_because_the_clock_of_the_server_is_wrong(
    wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, real = message(100.0), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + int(wrong * 1e9))
    assert observed(stored) == pytest.approx(100, abs=50), "the clock has jumped, and nobody has compared it yet"
    NATS_CLOCK.compare(wrong)
    try:
        assert observed(stored) == pytest.approx(100, abs=50)
    finally:
        monkeypatch.undo()
        NATS_CLOCK.compare(0.0)


def test_after_a_suspend_ages_are_too_low_until_the_next_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 600 * 10**9)  # the monotonic clock has stood still
    stored = message(100.0)
    try:
        assert observed(stored) == 0
        NATS_CLOCK.compare(0.0)
        assert observed(stored) == pytest.approx(100, abs=50)
    finally:
        monkeypatch.undo()
        NATS_CLOCK.compare(0.0)


def test_a_slow_answer_is_not_taken_for_a_wrong_clock() -> None:
    NATS_CLOCK.compare(1.5)
    try:
        assert abs(NATS_CLOCK.now_ns() - time.time_ns()) < 1e9
    finally:
        NATS_CLOCK.compare(0.0)


def test_one_late_timer_is_not_a_busy_loop() -> None:
    lag: Any = RecentLag()
    lag.note(1.0)
    assert 0 < lag.seconds < 0.25
    for _ in range(8):
        lag.note(1.0)
    assert lag.seconds > 0.8
    for _ in range(20):
        lag.note(0.0)
    assert lag.seconds < 0.05

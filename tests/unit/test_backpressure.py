"""The time after which a client is told to retry."""

from rebaser_client.jetstream import ApiError
from rebaser_client.requests.backpressure import FORGET, RETRY_MAX, Backpressure
from rebaser_core.ids import ChangeSetKey

ONE, TWO = ChangeSetKey("ws", "one"), ChangeSetKey("ws", "two")
SUBJECT_FULL = ApiError(503, 10077, "maximum messages per subject exceeded")
STREAM_FULL = ApiError(503, 10077, "maximum bytes exceeded")


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def test_the_wait_grows_with_the_time_it_has_been_full_not_with_the_callers() -> None:
    clock = Clock()
    pressure = Backpressure(clock)
    assert all(0.3 < pressure.refused(ONE, SUBJECT_FULL).retry_after < 0.7 for _ in range(100))
    clock.time += 8
    waits = {pressure.refused(ONE, SUBJECT_FULL).retry_after for _ in range(100)}
    assert all(6 <= wait <= 10 for wait in waits)
    assert len(waits) > 50
    for _ in range(10):
        clock.time += 30
        assert pressure.refused(ONE, SUBJECT_FULL).retry_after <= RETRY_MAX * 1.25
    assert pressure.refused(TWO, SUBJECT_FULL).retry_after < 1


def test_a_queue_that_took_a_request_begins_anew() -> None:
    clock = Clock()
    pressure = Backpressure(clock)
    for error in (SUBJECT_FULL, STREAM_FULL):
        pressure.refused(ONE, error)
    clock.time += 20
    pressure.accepted(ONE)
    for error in (SUBJECT_FULL, STREAM_FULL):
        assert pressure.refused(ONE, error).retry_after < 1
    clock.time += FORGET + 1
    assert pressure.refused(ONE, SUBJECT_FULL).retry_after < 1


def test_the_queue_of_all_is_one_for_all_change_sets() -> None:
    clock = Clock()
    pressure = Backpressure(clock)
    assert pressure.refused(ONE, STREAM_FULL).scope == "all"
    clock.time += 8
    assert pressure.refused(TWO, STREAM_FULL).retry_after > 5

"""Tests how a puller handles the rest of a pull: credits come back, and messages that did not fit are pulled for
again."""

from rebaser_client.jetstream.pull.actions import (
    PullWarning,
    ResumeAfter,
)
from rebaser_client.jetstream.pull.state import BATCH_OF_BYTES, PullState  # type: ignore[attr-defined]
from tests.support.pulls import consume, pulls, wait


def test_a_pull_that_ends_gives_back_what_the_server_says() -> None:
    state = PullState()
    state.grant(5)
    state.message()
    state.message()
    assert pulls(state.status(1, "408", "Request Timeout", 3)) == [(2, 3, 0)]


def test_a_message_that_was_counted_for_the_wrong_pull_is_moved() -> None:
    state = PullState()
    state.grant(2)
    state.grant(4)
    state.message()  # counted for the older pull, delivered by the younger one
    state.status(1, "408", "Request Timeout", 2)
    assert (state.free, state.outstanding) == (2, 3)
    state.status(2, "408", "Request Timeout", 3)
    assert state.outstanding == 5  # the next pull asks for all of it


def test_a_pull_we_thought_was_answered_may_still_say_what_it_left() -> None:
    state = PullState()
    state.grant(2)
    state.grant(4)
    state.message()
    state.message()  # both delivered by the younger pull: two messages of each are left
    state.status(1, "408", "Request Timeout", 2)
    assert (state.free, state.outstanding) == (0, 4)  # 2 still expected, and 2 in a new pull


def test_a_status_of_a_pull_that_was_given_up_means_nothing() -> None:
    state = consume()
    state.reconnected()
    assert not state.status(1, "408", "Request Timeout", 10)
    assert not state.status(1, "409", "Consumer Deleted", None)
    assert not state.status(99, "409", "Consumer Deleted", None)
    assert not state.status(0, "409", "Consumer Deleted", None)
    assert (state.free, state.outstanding) == (0, 10)


def test_a_pull_that_brought_all_while_another_was_thought_to_is_not_waited_for() -> None:
    state = consume(heartbeat=1.0)
    for _ in range(5):
        state.message()
    assert pulls(state.grant(5)) == [(2, 5, 0)]
    for _ in range(6):
        state.message()  # five delivered by the second pull, one by the first
    assert not state.status(1, "408", "Request Timeout", 4)
    assert (state.free, state.outstanding) == (4, 0)
    assert not wait(state, 5), "nothing is asked for: nobody has to answer"


def test_what_came_unasked_is_paid_for_by_the_next_credits() -> None:
    state = PullState()
    state.grant(1)
    state.message()
    state.message()
    assert (state.free, state.outstanding) == (-1, 0)
    assert not state.grant(1)
    assert pulls(state.grant(1)) == [(2, 1, 0)]


def test_what_did_not_fit_is_pulled_for_when_there_is_more_room() -> None:
    state = PullState(limit=1000, threshold=500, by_bytes=True)
    state.start(0.0)
    state.message(600)
    assert not state.status(1, "409", "Message Size Exceeds MaxBytes", 400)
    assert pulls(state.grant(200)) == [(2, BATCH_OF_BYTES, 600)]
    # The next pull would be refused at once, too.
    assert not state.status(2, "409", "Message Size Exceeds MaxBytes", 600)
    assert pulls(state.grant(400)) == [(3, BATCH_OF_BYTES, 1000)]


def test_once_what_did_not_fit_has_come_the_threshold_counts_again() -> None:
    state = PullState(limit=1000, threshold=800, by_bytes=True)
    state.start(0.0)
    state.message(600)
    assert not state.status(1, "409", "Message Size Exceeds MaxBytes", 400)
    assert pulls(state.grant(400)) == [(2, BATCH_OF_BYTES, 800)]
    state.message(700)
    assert pulls(state.grant(200)) == [(3, BATCH_OF_BYTES, 200)]


def test_what_did_not_fit_is_not_pulled_for_at_once_if_the_status_does_not_say_what_was_left() -> None:
    state = PullState(limit=1000, threshold=500, by_bytes=True)
    state.start(0.0)
    state.message(300)
    assert not state.status(1, "409", "Message Size Exceeds MaxBytes", None)
    assert pulls(state.grant(300)) == [(2, BATCH_OF_BYTES, 1000)]


def test_a_buffer_that_is_empty_is_pulled_for_whatever_was_said_to_be_left() -> None:
    state = PullState(limit=1000, threshold=500, by_bytes=True)
    state.start(0.0)
    state.message(300)
    assert not state.status(1, "409", "Message Size Exceeds MaxBytes", 5000)
    assert pulls(state.grant(300)) == [(2, BATCH_OF_BYTES, 1000)]


def test_what_did_not_fit_is_what_the_status_says_not_what_we_thought_was_left() -> None:
    state = PullState(limit=1000, threshold=1000, by_bytes=True)
    state.start(0.0)
    state.message(600)
    assert pulls(state.grant(600)) == [(2, BATCH_OF_BYTES, 600)]
    state.message(200)  # counted for the first pull, delivered by the second
    assert not state.status(1, "409", "Message Size Exceeds MaxBytes", 400)
    assert state.free == 400
    assert pulls(state.grant(1)) == [(3, BATCH_OF_BYTES, 401)]


def test_what_did_not_fit_into_a_rest_is_pulled_for_at_once_and_not_told_of() -> None:
    state = PullState(limit=1000, threshold=100, by_bytes=True)
    state.start(0.0)
    state.message(600)
    assert not state.grant(600)
    assert pulls(state.status(1, "409", "Message Size Exceeds MaxBytes", 400)) == [(2, BATCH_OF_BYTES, 1000)]


def test_a_message_that_never_fits_is_told_of_and_waited_for() -> None:
    state = consume(1000, 500, by_bytes=True)
    warned, later = state.status(1, "409", "Message Size Exceeds MaxBytes", 1000)
    assert isinstance(warned, PullWarning)
    assert "larger than the 1000 bytes" in warned.reason
    assert isinstance(later, ResumeAfter)
    assert pulls(state.resume()) == [(2, BATCH_OF_BYTES, 1000)]

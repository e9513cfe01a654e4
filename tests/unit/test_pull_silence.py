"""A puller without answers: missed heartbeats, lost connections, and fetches that have to end in time."""

import pytest

from rebaser_client.jetstream.pull.actions import (
    EndPulling,
    PullWarning,
    RenewInbox,
    ResumeAfter,
)
from rebaser_client.jetstream.pull.state import GRACE, PullState
from rebaser_client.nats.errors import NoAnswerError, NotConnectedError
from tests.support.pulls import consume, fetch, pulls, wait


def test_missed_heartbeats_warn_and_pull_again() -> None:
    state = consume(heartbeat=5.0)
    warned, renew = wait(state, 11)
    assert isinstance(warned, PullWarning)
    assert warned.event == "pull_heartbeats_missed"
    assert renew == RenewInbox()
    assert not state.grant(0)
    assert pulls(state.renewed()) == [(2, 10, 0)]


@pytest.mark.parametrize("event", ["message", "heartbeat", "status"])
def test_whatever_comes_resets_the_timer(event: str) -> None:
    state = consume(heartbeat=5.0)
    for _ in range(3):
        assert not wait(state, 9)
        if event == "message":
            state.message()
        elif event == "heartbeat":
            state.status(state._tokens, "100", "Idle Heartbeat", None)
        else:
            state.status(state._tokens, "408", "Request Timeout", 10)
    assert wait(state, 11)


def test_silence_means_nothing_while_nothing_is_asked_for() -> None:
    state = PullState(heartbeat=1.0)
    assert not wait(state, 60)
    state.grant(1)
    assert not wait(state, 2)
    assert wait(state, 1)


def test_a_process_that_was_paused_has_not_been_waiting() -> None:
    state = consume(heartbeat=5.0, expires=30.0)
    assert not state.tick(0.5)
    assert not state.tick(1000.0)


def test_a_pull_that_is_never_answered_is_given_up_after_its_time() -> None:
    state = consume(expires=30.0)
    assert not wait(state, 30 + GRACE)
    warned, again = wait(state, 1)
    assert isinstance(warned, PullWarning)
    assert warned.event == "pull_unanswered"
    assert pulls([again]) == [(2, 10, 0)]
    assert not state.status(1, "408", "Request Timeout", 10)
    assert state.outstanding == 10


def test_without_a_connection_nothing_is_pulled_for_and_no_timer_runs() -> None:
    state = consume(heartbeat=0.5)
    assert not state.disconnected()
    assert not wait(state, 60)
    assert not state.grant(5)
    assert pulls(state.reconnected()) == [(2, 15, 0)]
    assert not wait(state, 1)
    assert [type(action) for action in wait(state, 1)] == [PullWarning, RenewInbox]


def test_a_reconnect_pulls_whatever_is_free_and_waits_for_nothing() -> None:
    state = consume()
    for _ in range(7):
        state.message()
    assert pulls(state.reconnected()) == [(2, 3, 0)]
    _, later = state.status(2, "503", "", None)
    assert isinstance(later, ResumeAfter)
    assert not state.disconnected()
    assert pulls(state.reconnected()) == [(3, 3, 0)]


def test_missed_heartbeats_pull_for_whatever_is_free() -> None:
    state = consume(heartbeat=1.0)
    for _ in range(8):
        state.message()
    assert [type(action) for action in wait(state, 3)] == [PullWarning, RenewInbox]
    assert pulls(state.renewed()) == [(2, 2, 0)]


def test_a_pull_that_was_given_up_before_it_was_sent_is_known() -> None:
    state = consume()
    assert state.is_current(1)
    state.disconnected()
    state.reconnected()
    assert (state.is_current(1), state.is_current(2), state.is_current(3)) == (False, True, False)


def test_a_connection_that_was_lost_unnoticed_is_pulled_on_again() -> None:
    state = consume()
    state.message()
    assert pulls(state.reconnected()) == [(2, 9, 0)]


def test_what_could_not_be_sent_is_tried_again() -> None:
    state = consume()
    (later,) = state.failed(1, NotConnectedError("broken"))
    assert isinstance(later, ResumeAfter)
    assert pulls(state.resume()) == [(2, 10, 0)]


def test_a_fetch_ends_with_its_time_its_heartbeats_or_its_connection() -> None:
    (late,) = wait(fetch(), 10)
    (silent,) = wait(fetch(heartbeat=0.5), 2)
    (cut,) = fetch().disconnected()
    (cut_unnoticed,) = fetch().reconnected()
    errors = [end.error for end in (late, silent, cut, cut_unnoticed) if isinstance(end, EndPulling)]
    assert [type(error) for error in errors] == [NoAnswerError] * 2 + [NotConnectedError] * 2


def test_a_fetch_that_has_no_connection_yet_waits_for_one() -> None:
    state = PullState(limit=3, threshold=0, single_pull=True)
    assert not state.disconnected()
    assert pulls(state.start(0.0)) == []
    assert not wait(state, 20)
    assert pulls(state.reconnected()) == [(1, 3, 0)]


def test_a_fetch_that_gets_no_connection_is_over_after_its_time() -> None:
    state = PullState(limit=3, threshold=0, single_pull=True, expires=2.0)
    state.disconnected()
    state.start(0.0)
    assert not wait(state, 2)
    (end,) = wait(state, 2)
    assert isinstance(end, EndPulling)
    assert isinstance(end.error, NotConnectedError)


def test_a_fetch_that_could_not_be_sent_is_over() -> None:
    broken = NotConnectedError("broken")
    assert fetch().failed(1, broken) == (EndPulling(broken),)

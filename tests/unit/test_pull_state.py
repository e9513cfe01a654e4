"""What a puller decides, rule by rule (ADR-37, ADR-42), and that no credit is lost or made up on the way."""

from collections.abc import Sequence

import pytest

from rebaser_client.errors import NotConnectedError
from rebaser_client.jetstream.errors import ConsumerDeletedError, PullRefusedError
from rebaser_client.jetstream.pull.actions import (
    Action,
    EndPulling,
    NotifyPinned,
    NotifyUnpinned,
    PullWarning,
    RenewInbox,
    ResumeAfter,
    SendPull,
    meaning,
)
from rebaser_client.jetstream.pull.state import BACKOFF_MAX, BATCH_OF_BYTES, GRACE, PullState  # type: ignore[attr-defined]
from rebaser_client.nats.errors import NoAnswerError, NoRespondersError


def pulls(actions: Sequence[Action]) -> list[tuple[int, int, int]]:
    return [(action.token, action.batch, action.max_bytes) for action in actions if isinstance(action, SendPull)]


def consume(limit: int = 10, threshold: int = 5, **more: object) -> PullState:
    """A state that has sent its first pull, for all of `limit`."""
    state = PullState(limit=limit, threshold=threshold, **more)  # type: ignore[arg-type]
    assert pulls(state.start(0.0))
    return state


def wait(state: PullState, seconds: float) -> list[Action]:
    """`seconds` pass, with the ticks of a connection."""
    actions: list[Action] = []
    began = state._now
    for half in range(int(seconds * 2)):
        actions += state.tick(began + (half + 1) / 2)
    return actions


# -- when to pull, and for how much ------------------------------------------------------------------------------------


def test_the_first_pull_fills_the_buffer() -> None:
    state = PullState(limit=10, threshold=5)
    assert state.start(0.0) == (SendPull(1, 10, 0, ""),)
    assert (state.free, state.outstanding) == (0, 10)


def test_the_next_pull_goes_out_at_the_threshold_and_fills_the_buffer_again() -> None:
    state = consume()
    sent: list[Action] = []
    for _ in range(4):
        sent += [*state.message(), *state.grant(1)]
    assert not sent
    assert pulls([*state.message(), *state.grant(1)]) == [(2, 5, 0)]
    assert (state.free, state.outstanding) == (0, 10)


def test_what_waits_in_the_buffer_counts_as_pending() -> None:
    state = consume()
    assert not [action for _ in range(10) for action in state.message()]
    assert (state.free, state.outstanding) == (0, 0)
    assert not [action for _ in range(4) for action in state.grant(1)]
    assert pulls(state.grant(1)) == [(2, 5, 0)]


@pytest.mark.parametrize("threshold", [0, 1])
def test_one_message_at_a_time_never_stalls(threshold: int) -> None:
    state = consume(1, threshold)
    for turn in range(5):
        assert not state.message()
        assert pulls(state.grant(1)) == [(turn + 2, 1, 0)]


def test_a_threshold_as_high_as_the_limit_pulls_for_each_message() -> None:
    state = consume(10, 10)
    state.message()
    assert pulls(state.grant(1)) == [(2, 1, 0)]


def test_where_bytes_are_the_limit_the_batch_is_large_and_sizes_are_counted() -> None:
    state = PullState(limit=1000, threshold=500, by_bytes=True)
    assert pulls(state.start(0.0)) == [(1, BATCH_OF_BYTES, 1000)]
    for _ in range(2):
        state.message(200)
        assert not state.grant(200)
    state.message(200)
    assert pulls(state.grant(200)) == [(2, BATCH_OF_BYTES, 600)]


def test_credits_are_pulled_for_at_once_but_not_one_by_one() -> None:
    state = PullState()
    assert pulls(state.grant(1000)) == [(1, 1000, 0)]
    count = sum(len(pulls([*state.message(), *state.grant(1)])) for _ in range(1000))
    assert count <= 3
    assert state.free + state.outstanding == 1000


def test_after_stop_nothing_is_pulled_for() -> None:
    state = consume()
    assert state.stop() == (EndPulling(None),)
    state.message()
    assert not state.grant(10)
    assert not state.status(1, "408", "Request Timeout", 9)
    assert not state.stop()


# -- what a status means -----------------------------------------------------------------------------------------------

SILENT = [
    ("404", "No Messages"),
    ("408", "Request Timeout"),
    ("408", "Interest Expired"),
    ("409", "Message Size Exceeds MaxBytes"),
    ("409", "Batch Completed"),
    ("409", "Batch-Completed"),
    ("423", "Nats-Wrong-Pin-Id"),
    ("423", "Nats-Pin-Id mismatch"),
]
WARNED = [
    ("409", "Exceeded MaxRequestBatch of 5"),
    ("409", "Exceeded MaxRequestExpires of 1s"),
    ("409", "Exceeded MaxRequestMaxBytes of 5"),
    ("409", "Exceeded MaxWaiting"),
    ("409", "Leadership Change"),
    ("409", "Server Shutdown"),
    ("503", ""),
    ("499", "something new"),
]
FINAL = [("409", "Consumer Deleted"), ("409", "Consumer is push based")]


@pytest.mark.parametrize(("status", "text"), SILENT)
def test_a_pull_that_ends_well_is_followed_by_another_without_a_word(status: str, text: str) -> None:
    state = consume()
    state.message()
    state.message()
    assert state.status(1, status, text, 8) == [SendPull(2, 8, 0, "")]
    assert not state.grant(2)
    assert (state.free, state.outstanding) == (2, 8)


@pytest.mark.parametrize(("status", "text"), [*WARNED, ("400", "Bad Request - ")])
def test_a_pull_that_is_refused_is_told_of_and_tried_again_later(status: str, text: str) -> None:
    state = consume()
    event = "pull_failed" if status == "400" else "pull_refused"
    warned, later = state.status(1, status, text, None)
    assert warned == PullWarning(event, status, text)
    assert isinstance(later, ResumeAfter)
    assert (state.free, state.outstanding) == (10, 0)
    assert not state.tick(0.5)
    assert pulls(state.resume()) == [(2, 10, 0)]


@pytest.mark.parametrize(("status", "text"), FINAL)
def test_a_consumer_that_is_gone_ends_it(status: str, text: str) -> None:
    state = consume()
    (end,) = state.status(1, status, text, None)
    assert isinstance(end, EndPulling)
    assert isinstance(end.error, PullRefusedError)
    assert isinstance(end.error, ConsumerDeletedError) == (text == "Consumer Deleted")
    assert not state.grant(10)


def test_a_consumer_that_may_come_back_is_waited_for() -> None:
    state = PullState(survives_delete=True)
    state.grant(2)
    state.message()
    state.grant(4)
    assert state.outstanding == 5
    assert [type(action) for action in state.status(1, "409", "Consumer Deleted", None)] == [PullWarning, ResumeAfter]
    assert (state.free, state.outstanding) == (5, 0)  # the other pull is over, too
    assert not state.status(2, "409", "Consumer Deleted", None)
    assert pulls(state.resume()) == [(3, 5, 0)]


def test_refusals_in_a_row_wait_longer_and_a_message_ends_that() -> None:
    state = consume()
    waits = []
    for token in range(1, 12):
        _, later = state.status(token, "503", "", None)
        assert isinstance(later, ResumeAfter)
        waits.append(later.seconds)
        assert pulls(state.resume())
    assert waits == sorted(waits)
    assert waits[-1] == BACKOFF_MAX
    state.message()
    _, later = state.status(12, "503", "", None)
    assert later == ResumeAfter(waits[0])


def test_a_heartbeat_changes_nothing() -> None:
    state = consume()
    assert not state.status(1, "100", "Idle Heartbeat", None)
    assert (state.free, state.outstanding) == (0, 10)


def test_an_unknown_conflict_is_a_warning() -> None:
    assert meaning("409", "Something New") == "warning"


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
    state.message()  # counted for the older, brought by the younger
    state.status(1, "408", "Request Timeout", 2)
    assert (state.free, state.outstanding) == (2, 3)
    state.status(2, "408", "Request Timeout", 3)
    assert state.outstanding == 5  # all of it in the next pull


def test_a_pull_we_thought_was_answered_may_still_say_what_it_left() -> None:
    state = PullState()
    state.grant(2)
    state.grant(4)
    state.message()
    state.message()  # both brought by the younger: two of each are left
    state.status(1, "408", "Request Timeout", 2)
    assert (state.free, state.outstanding) == (0, 4)  # 2 still to come, 2 in a new pull


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
        state.message()  # five brought by the second, one by the first
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
    assert not state.status(2, "409", "Message Size Exceeds MaxBytes", 600)  # and would be refused at once again
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
    state.message(200)  # counted for the first pull, brought by the second
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


# -- pins --------------------------------------------------------------------------------------------------------------


def test_a_pin_is_named_in_later_pulls_until_it_is_refused() -> None:
    state = consume(1, 0)
    state.message()
    assert state.pinned("a") == (NotifyPinned("a"),)
    assert not state.pinned("a")
    assert state.grant(1) == (SendPull(2, 1, 0, "a"),)
    assert state.status(2, "423", "Nats-Pin-Id mismatch", None) == [NotifyUnpinned(), SendPull(3, 1, 0, "")]
    assert state.status(3, "423", "Nats-Wrong-Pin-Id", 1) == [SendPull(4, 1, 0, "")]


def test_a_pin_that_is_none_is_given_up() -> None:
    """Anybody can publish a message with the header of a pin, to a consumer that pins nobody."""
    state = consume(1, 0)
    state.message()
    state.pinned("forged")
    assert state.grant(1) == (SendPull(2, 1, 0, "forged"),)
    text = "Bad Request - Not a Pinned Client Priority consumer"
    unpinned, warned, later = state.status(2, "400", text, None)
    assert (unpinned, warned) == (NotifyUnpinned(), PullWarning("pull_failed", "400", text))
    assert isinstance(later, ResumeAfter)
    assert state.resume() == (SendPull(3, 1, 0, ""),)


def test_a_refusal_of_an_older_pin_leaves_the_new_one() -> None:
    state = consume(2, 2)
    state.message()
    state.pinned("a")
    assert state.grant(1) == (SendPull(2, 1, 0, "a"),)
    state.message()
    state.pinned("b")
    assert state.grant(1) == (SendPull(3, 1, 0, "b"),)
    state._sent[0].pin = "a"
    assert not [
        action for action in state.status(2, "423", "Nats-Wrong-Pin-Id", 1) if isinstance(action, NotifyUnpinned)
    ]
    assert state.pin == "b"


# -- time and connection -----------------------------------------------------------------------------------------------


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


# -- one pull (fetch) --------------------------------------------------------------------------------------------------


def fetch(**more: object) -> PullState:
    return consume(3, 0, single_pull=True, expires=2.0, **more)


def test_a_fetch_is_over_when_all_came() -> None:
    state = fetch()
    assert not [*state.message(), *state.grant(1), *state.message()]
    assert state.message() == (EndPulling(None),)


def test_a_fetch_of_bytes_is_over_when_they_came() -> None:
    state = consume(300, 0, single_pull=True, by_bytes=True)
    assert not state.message(200)
    assert state.message(100) == (EndPulling(None),)


def test_a_fetch_of_messages_and_bytes_is_over_when_either_came() -> None:
    state = PullState(limit=300, threshold=0, single_pull=True, by_bytes=True, batch=2)
    assert pulls(state.start(0.0)) == [(1, 2, 300)]
    assert not state.message(100)
    assert state.message(100) == (EndPulling(None),)
    state = PullState(limit=300, threshold=0, single_pull=True, by_bytes=True, batch=3)
    assert pulls(state.start(0.0)) == [(1, 3, 300)]
    assert not state.message(200)
    assert state.message(100) == (EndPulling(None),)


@pytest.mark.parametrize(("status", "text"), SILENT)
def test_a_fetch_is_over_when_its_pull_is(status: str, text: str) -> None:
    assert fetch().status(1, status, text, None) == [EndPulling(None)]


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        ("400", "Bad Request - ", PullRefusedError),
        ("409", "Exceeded MaxWaiting", PullRefusedError),
        ("409", "Leadership Change", PullRefusedError),
        ("409", "Consumer Deleted", ConsumerDeletedError),
        ("409", "Consumer is push based", PullRefusedError),
        ("503", "", NoRespondersError),
    ],
)
def test_a_fetch_that_is_refused_says_why(status: str, text: str, error: type[Exception]) -> None:
    (end,) = fetch().status(1, status, text, None)
    assert isinstance(end, EndPulling)
    assert type(end.error) is error
    assert text in str(end.error)


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

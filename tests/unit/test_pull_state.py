"""The decisions of a puller, rule by rule (ADR-37, ADR-42); no credit is lost or invented."""

import pytest

from rebaser_client.jetstream.errors import ConsumerDeletedError, PullRefusedError
from rebaser_client.jetstream.pull.actions import (
    Action,
    EndPulling,
    NotifyPinned,
    NotifyUnpinned,
    PullWarning,
    ResumeAfter,
    SendPull,
    meaning,
)
from rebaser_client.jetstream.pull.state import BACKOFF_MAX, BATCH_OF_BYTES, PullState  # type: ignore[attr-defined]
from rebaser_client.nats.errors import NoRespondersError
from tests.support.pulls import consume, fetch, pulls


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
    assert (state.free, state.outstanding) == (5, 0)  # the other pull has ended, too
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


def test_a_pin_is_named_in_later_pulls_until_it_is_refused() -> None:
    state = consume(1, 0)
    state.message()
    assert state.pinned("a") == (NotifyPinned("a"),)
    assert not state.pinned("a")
    assert state.grant(1) == (SendPull(2, 1, 0, "a"),)
    assert state.status(2, "423", "Nats-Pin-Id mismatch", None) == [NotifyUnpinned(), SendPull(3, 1, 0, "")]
    assert state.status(3, "423", "Nats-Wrong-Pin-Id", 1) == [SendPull(4, 1, 0, "")]


def test_a_pin_that_is_none_is_given_up() -> None:
    """Anybody can publish a message with the header of a pin to a consumer that pins no client."""
    state = consume(1, 0)
    state.message()
    state.pinned("forged")
    assert state.grant(1) == (SendPull(2, 1, 0, "forged"),)
    text = "Bad Request - Not a Pinned Client Priority consumer"
    unpinned, warned, later = state.status(2, "400", text, None)
    assert (unpinned, warned) == (NotifyUnpinned(), PullWarning("pull_failed", "400", text))
    assert isinstance(later, ResumeAfter)
    assert state.resume() == (SendPull(3, 1, 0, ""),)


def test_a_refusal_of_a_pull_that_was_thought_to_be_over_ends_the_pin_too() -> None:
    state = consume(1, 0)
    state.message()
    state.pinned("a")
    assert state.grant(1) == (SendPull(2, 1, 0, "a"),)
    state.message()  # delivered by an older pull, but counted for this one
    assert state.status(2, "423", "Nats-Wrong-Pin-Id", 1)[0] == NotifyUnpinned()
    assert not state.pin


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

"""Tests how long a request is held after others that were given up."""

import pytest

from rebaser.change_set.attempts.retry_budget import RetryBudget
from rebaser_core.commit import Decision, Outcome
from rebaser_core.ids import RequestId
from rebaser_core.state.change_set import RecordedOutcome

RETRY_FOR = 30
GIVEN_UP = 1000


@pytest.mark.parametrize(
    ("stored", "now", "waited"),
    [
        (900, 1000, 30),  # from before the wait of the other request: not longer than that
        (980, 1000, 20),  # stored while the other one was held
        (980, 1025, 20),  # time in which no request was held does not count
        (1010, 1025, 0),
        (900, 1059, 30),  # the queue was held for another reason meanwhile
        (900, 1060, 0),  # long ago
        (900, 990, 0),  # clocks that differ
    ],
)
def test_the_time_behind_one_that_was_given_up_counts(stored: int, now: int, waited: int) -> None:
    budget = RetryBudget(RETRY_FOR, ())
    budget.record_exhausted("newer", GIVEN_UP)
    assert now - budget.wait_start("newer", stored, now) == waited
    assert budget.wait_start("other", stored, now) == now


def test_the_newest_one_that_the_log_knows_counts() -> None:
    def recorded(at: int, outcome: Outcome) -> RecordedOutcome:
        return RecordedOutcome(Decision(1, RequestId(f"r{at}"), outcome, code="newer"), 1, at)

    known = [recorded(GIVEN_UP, Outcome.DEAD), recorded(900, Outcome.DEAD), recorded(1050, Outcome.ERROR)]
    assert RetryBudget(RETRY_FOR, known).wait_start("newer", 0, GIVEN_UP + 1) == GIVEN_UP + 1 - RETRY_FOR


def test_requests_that_come_one_after_the_other_wait_no_longer_than_the_first() -> None:
    """Each request is given up `retry_for` after it was stored, if there was always another one before it."""
    budget = RetryBudget(RETRY_FOR, ())
    now = 0
    for stored in range(0, 300, 7):
        now = max(now, stored)
        now = max(now, budget.wait_start("newer", stored, now) + RETRY_FOR)
        assert now == stored + RETRY_FOR
        budget.record_exhausted("newer", now)

"""Bounds the time for which requests that cannot be decided yet may block their change set.

Such a request has a newer version or an unavailable blob: a newer server, or time, may fix that.

Invariant: such a request is given up `retry_for` after its first recorded attempt. If another request was given up for
the same reason shortly before, the time that this request spent in the queue behind the other one counts as well,
because a newer server could have read it in that time. So, however many such requests there are, the requests behind
them wait for `retry_for` in total, not for `retry_for` each.
"""

from collections.abc import Iterable

from rebaser_core.commit import Outcome
from rebaser_core.state.change_set import RecordedOutcome


class RetryBudget:
    """The budget of one change set. Times are Unix milliseconds; `outcomes`: those that the log still holds."""

    def __init__(self, retry_for: int, outcomes: Iterable[RecordedOutcome]) -> None:
        self._retry_for = retry_for
        self._exhausted: dict[str, int] = {}  # by error code: when the newest request with it was given up
        for recorded in outcomes:
            if recorded.decision.outcome is Outcome.DEAD:
                self.record_exhausted(recorded.decision.code, recorded.at_ms)

    def record_exhausted(self, code: str, now: int) -> None:
        """Record that a request with the error `code` was given up at `now`."""
        self._exhausted[code] = max(now, self._exhausted.get(code, 0))

    def wait_start(self, code: str, stored: int, now: int) -> int:
        """Return the time at which the wait of a request is taken to have begun.

        The request was stored at `stored`, its first attempt is at `now`, and it failed with `code`. If another request
        with this code was given up recently, the time for which both waited counts for this one, too.
        """
        given_up = self._exhausted.get(code)
        # Twice `retry_for`, because the queue may have been blocked for another reason in between.
        if given_up is None or not 0 <= now - given_up < 2 * self._retry_for:
            return now
        return now - min(max(given_up - stored, 0), self._retry_for)

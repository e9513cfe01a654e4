"""Bounds the time for which requests that cannot be decided yet may block their change set.

Such a request was written in a newer version, which only a newer server can read, or it refers to a blob that is not
available yet.

Invariant: such a request is given up `retry_for` after its first recorded attempt. If another request was given up for
the same reason shortly before, the time that this request waited behind it also counts, because a newer server could
have read this request in that time. So even if there are many such requests, the requests behind them wait for
`retry_for` in total, not for `retry_for` each.
"""

from collections.abc import Iterable

from rebaser_core.commit import Outcome
from rebaser_core.state.change_set import RecordedOutcome


class RetryBudget:
    """A limit on the total time that requests of one change set may spend waiting, for each error code.

    `retry_for` is in milliseconds, times are in Unix milliseconds. `outcomes` are the recorded outcomes of the change
    set's requests.
    """

    def __init__(self, retry_for: int, outcomes: Iterable[RecordedOutcome]) -> None:
        self._retry_for = retry_for
        self._exhausted: dict[str, int] = {}  # the time of the last request that was given up, by error code
        for recorded in outcomes:
            if recorded.decision.outcome is Outcome.DEAD:
                self.record_exhausted(recorded.decision.code, recorded.at_ms)

    def record_exhausted(self, code: str, now: int) -> None:
        """Record that a request with the error `code` was given up at `now`."""
        self._exhausted[code] = max(now, self._exhausted.get(code, 0))

    def wait_start(self, code: str, stored: int, now: int) -> int:
        """Return the time from which a request's wait is counted.

        The request was stored at `stored`. It was first attempted at `now`, and failed with `code`. If another request
        with this code was given up recently, the time during which both requests waited also counts.
        """
        given_up = self._exhausted.get(code)
        # "Recently" is twice `retry_for`, because the queue may have been blocked for another reason in between.
        if given_up is None or not 0 <= now - given_up < 2 * self._retry_for:
            return now
        return now - min(max(given_up - stored, 0), self._retry_for)

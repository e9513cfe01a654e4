"""How long a request that time may mend (a newer version, a blob that is away) holds up its change set.

Invariant: it is given up `retry_for` after its first recorded try. Where one of its kind was given up shortly before,
the time that it stood in the queue behind that one counts as well: a newer server could have come for it then. So
however many of them there are, what stands behind them waits for `retry_for` in all, not for each.
"""

from collections.abc import Iterable

from rebaser_core.commit import Outcome
from rebaser_core.state.change_set import RecordedOutcome


class RetryBudget:
    """Times are Unix milliseconds. `outcomes`: what the log still knows of earlier requests."""

    def __init__(self, retry_for: int, outcomes: Iterable[RecordedOutcome]) -> None:
        self._retry_for = retry_for
        self._exhausted: dict[str, int] = {}  # by code: when that of the newest such request was
        for one in outcomes:
            if one.decision.outcome is Outcome.DEAD:
                self.record_exhausted(one.decision.code, one.at_ms)

    def record_exhausted(self, code: str, at: int) -> None:
        """A request was given up because of `code`."""
        self._exhausted[code] = max(at, self._exhausted.get(code, 0))

    def wait_start(self, code: str, stored: int, now: int) -> int:
        """When the wait of a request began that was `stored` then, and is tried for the first time now."""
        until = self._exhausted.get(code)
        # Twice, since the queue may have been held for something else in between.
        if until is None or not 0 <= now - until < 2 * self._retry_for:
            return now
        return now - min(max(until - stored, 0), self._retry_for)

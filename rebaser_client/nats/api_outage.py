"""Notices that JetStream answers nothing although the connection is alive, and says so, loudly but not endlessly.

Nothing has to be rebuilt for it by hand: consumers miss their heartbeats and begin anew until that succeeds.
"""

from rebaser_client.logs import get_logger

log = get_logger(__name__)

ENOUGH = 3  # calls in a row without an answer, until it is worth an error
AGAIN = 30.0  # seconds until it is said again


class ApiOutage:
    """Told of every call of JetStream's API on one connection. Times are seconds of any clock."""

    def __init__(self) -> None:
        self._unanswered = 0
        self._since = 0.0
        self._said_at: float | None = None

    def timed_out(self, now: float, timeout: float) -> None:
        """A call got no answer within `timeout`, and the connection was there all the time."""
        if not self._unanswered:
            self._since = now - timeout
        self._unanswered += 1
        if self._unanswered >= ENOUGH and (self._said_at is None or now - self._said_at >= AGAIN):
            self._said_at = now
            log.error("jetstream_silent", calls=self._unanswered, seconds=round(now - self._since, 1))

    def answered(self, now: float) -> None:
        if self._said_at is not None:
            log.warning("jetstream_answers", calls=self._unanswered, seconds=round(now - self._since, 1))
        self._unanswered = 0
        self._said_at = None

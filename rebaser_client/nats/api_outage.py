"""Logs an error, at most every 30 seconds, while JetStream does not answer although the connection works.

Logging is sufficient: consumers that miss their heartbeats are recreated, with retries until that succeeds.
"""

from rebaser_client.logs import get_logger

log = get_logger(__name__)

MIN_UNANSWERED = 3  # consecutive calls without an answer before the error is logged
REPEAT_AFTER = 30.0  # seconds before the error is logged again


class ApiOutage:
    """Counts unanswered calls of the JetStream API on one connection. All times are in seconds, and from the same
    clock."""

    def __init__(self) -> None:
        self._unanswered = 0
        self._since = 0.0
        self._logged_at: float | None = None

    def timed_out(self, now: float, timeout: float) -> None:
        """Record that a call got no answer within `timeout`, although the connection worked during that time."""
        if not self._unanswered:
            self._since = now - timeout
        self._unanswered += 1
        if self._unanswered >= MIN_UNANSWERED and (self._logged_at is None or now - self._logged_at >= REPEAT_AFTER):
            self._logged_at = now
            log.error("jetstream_silent", calls=self._unanswered, seconds=round(now - self._since, 1))

    def answered(self, now: float) -> None:
        """Record that a call got an answer."""
        if self._logged_at is not None:
            log.warning("jetstream_answers", calls=self._unanswered, seconds=round(now - self._since, 1))
        self._unanswered = 0
        self._logged_at = None

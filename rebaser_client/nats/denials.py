"""Logs the operations that NATS denied to one connection, if no caller waits for their results."""

from rebaser_client.logs import get_logger
from rebaser_client.nats.errors import NotAllowed

log = get_logger(__name__)

REPEAT_AFTER = 30.0  # seconds before the same denial is logged again
MAX_SUBJECTS = 1000  # maximum number of denied subjects that are remembered


class Denials:
    """The denials of one connection.

    A connection that may not subscribe to its inbox is unusable. `refuse` records the denial of this subscription, and
    `check` raises it.
    """

    def __init__(self) -> None:
        self._refused: NotAllowed | None = None
        self._logged: dict[tuple[str, str], float] = {}

    def refuse(self, error: NotAllowed) -> None:
        """Record that the subscription to the inbox was denied."""
        self._refused = error

    def check(self) -> None:
        """Raise the error that `refuse` recorded, if any, and forget it."""
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def log(self, error: NotAllowed, now: float) -> None:
        """Log a denial, at most once every `REPEAT_AFTER` seconds for the same operation on a subject.

        `now` is a time in seconds. All calls must use the same clock.
        """
        key = (error.operation, error.subject)
        if now - self._logged.get(key, now - REPEAT_AFTER) >= REPEAT_AFTER:
            if len(self._logged) >= MAX_SUBJECTS:
                self._logged.clear()
            self._logged[key] = now
            log.error("nats_not_allowed", operation=error.operation, subject=error.subject)

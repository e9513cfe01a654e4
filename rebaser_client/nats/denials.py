"""What NATS does not let us do, and nobody of us waits for."""

from rebaser_client.errors import NotAllowed
from rebaser_client.logs import get_logger

log = get_logger(__name__)

AGAIN = 30.0  # seconds until a right that is missing is told again
MOST = 1000  # subjects that are remembered


class Denials:
    """Of one connection. Without answers a connection is none: `refuse` notes that, `check` raises it."""

    def __init__(self) -> None:
        self._refused: NotAllowed | None = None
        self._said: dict[tuple[str, str], float] = {}

    def refuse(self, error: NotAllowed) -> None:
        self._refused = error

    def check(self) -> None:
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def log(self, error: NotAllowed, now: float) -> None:
        """Say so, once a while for each subject."""
        what = (error.operation, error.subject)
        if now - self._said.get(what, now - AGAIN) >= AGAIN:
            if len(self._said) >= MOST:
                self._said.clear()
            self._said[what] = now
            log.error("nats_not_allowed", operation=error.operation, subject=error.subject)

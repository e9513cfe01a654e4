"""Keeps the last failure of this server for `rebaser status`: it is logged, too, but few people read the log."""

from rebaser_core.errors import RebaserError

SHOWN_FOR = 60.0  # seconds; if a failure does not recur for this long, it counts as over


class HealthStatus:
    """Keeps the newest failure that kept a change set from making progress. Times are of the server's clock."""

    def __init__(self) -> None:
        self._newest: tuple[float, str] | None = None  # the time until which it is shown, and its message

    def record(self, now: float, error: RebaserError, lasts: float = SHOWN_FOR) -> None:
        """Record `error`, which will last for `lasts` seconds. It is shown for that time, but at least `SHOWN_FOR`."""
        self._newest = now + max(lasts, SHOWN_FOR), error.message

    def current(self, now: float) -> str:
        """Return the message of the newest failure while it is to be shown, else an empty string."""
        if self._newest is None or now > self._newest[0]:
            return ""
        return self._newest[1]

"""What went wrong last on this server, for `rebaser status`: the log says it all, but who reads it?"""

from rebaser_core.errors import RebaserError

TOLD_FOR = 60.0  # seconds; what has not happened again for that long is over


class HealthStatus:
    """Keeps the newest failure that kept a change set from going on. Times are those of the server's clock."""

    def __init__(self) -> None:
        self._newest: tuple[float, str] | None = None  # until when it is told, and what

    def record(self, now: float, error: RebaserError, lasts: float = TOLD_FOR) -> None:
        """`lasts`: seconds for which it is known to go on; told for `TOLD_FOR` at least."""
        self._newest = now + max(lasts, TOLD_FOR), error.message

    def current(self, now: float) -> str:
        """The newest one, if it is not long ago; else empty."""
        if self._newest is None or now > self._newest[0]:
            return ""
        return self._newest[1]

"""Keeps the last failure of this server for `rebaser status`, because few people read the log.

It also keeps the last failure of each change set, for `rebaser explain`.
"""

from collections import OrderedDict

from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey

SHOWN_FOR = 60.0  # seconds; if a failure does not recur for this long, it counts as over
MAX_KEPT = 1000  # change sets whose last failure is kept: those that failed most recently


class HealthStatus:
    """Keeps the newest failure that stopped the progress of a change set. Times are those of the server's clock."""

    def __init__(self) -> None:
        self._newest: tuple[float, str] | None = None  # the time until which it is shown, and its message
        self._of: OrderedDict[ChangeSetKey, tuple[float, float, RebaserError]] = OrderedDict()  # since, until

    def record(
        self, now: float, error: RebaserError, lasts: float = SHOWN_FOR, key: ChangeSetKey | None = None
    ) -> None:
        """Record `error`, which will last for `lasts` seconds. It is shown for that time, but at least for `SHOWN_FOR`
        seconds.

        `key` is the change set that failed.
        """
        self._newest = now + max(lasts, SHOWN_FOR), error.message
        if key is not None:
            self.record_of(key, now, error, lasts)

    def record_of(self, key: ChangeSetKey, now: float, error: RebaserError, lasts: float = SHOWN_FOR) -> None:
        """Record `error` as the newest failure of the change set `key`. The newest failure of the server stays as it
        is."""
        self._of[key] = now, now + max(lasts, SHOWN_FOR), error
        self._of.move_to_end(key)
        if len(self._of) > MAX_KEPT:
            self._of.popitem(last=False)

    def current(self, now: float) -> str:
        """Return the message of the newest failure; empty once the failure is no longer to be shown."""
        if self._newest is None or now > self._newest[0]:
            return ""
        return self._newest[1]

    def of(self, key: ChangeSetKey, now: float) -> tuple[float, RebaserError] | None:
        """Return the age (seconds) and the newest failure of the change set; None once it is no longer to be shown."""
        recorded = self._of.get(key)
        return None if recorded is None or now > recorded[1] else (now - recorded[0], recorded[2])

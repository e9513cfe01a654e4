"""Keeps the last failure of this server for `rebaser status`, and the last failure of each change set for `rebaser
explain`.
"""

from collections import OrderedDict

from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey

SHOWN_FOR = 60.0  # seconds after which a failure that has not recurred counts as over
MAX_KEPT = 1000  # maximum number of change sets whose last failure is kept; the most recent failures are kept


class HealthStatus:
    """The newest failures that stopped the progress of a change set. Times are in seconds on the server's clock."""

    def __init__(self) -> None:
        self._newest: tuple[float, str] | None = None  # the time until which the failure is shown, and its message
        # The newest failure of each change set: when it occurred, the time until which it is shown, and the error.
        self._of: OrderedDict[ChangeSetKey, tuple[float, float, RebaserError]] = OrderedDict()

    def record(
        self, now: float, error: RebaserError, lasts: float = SHOWN_FOR, key: ChangeSetKey | None = None
    ) -> None:
        """Record `error` as the newest failure of this server, and of the change set `key` if that is not None.

        The failure is expected to last for `lasts` seconds. It is shown for that time, or for `SHOWN_FOR` seconds if
        that is longer.
        """
        self._newest = now + max(lasts, SHOWN_FOR), error.message
        if key is not None:
            self.record_of(key, now, error, lasts)

    def record_of(self, key: ChangeSetKey, now: float, error: RebaserError, lasts: float = SHOWN_FOR) -> None:
        """Record `error` as the newest failure of the change set `key`, but not of the server. For `lasts`, see
        `record`."""
        self._of[key] = now, now + max(lasts, SHOWN_FOR), error
        self._of.move_to_end(key)
        if len(self._of) > MAX_KEPT:
            self._of.popitem(last=False)

    def current(self, now: float) -> str:
        """Return the message of the newest failure of this server; empty if there is none, or it counts as over."""
        if self._newest is None or now > self._newest[0]:
            return ""
        return self._newest[1]

    def of(self, key: ChangeSetKey, now: float) -> tuple[float, RebaserError] | None:
        """Return the age, in seconds, and the error of the newest failure of the change set `key`; None if there is
        none, or if it counts as over."""
        recorded = self._of.get(key)
        return None if recorded is None or now > recorded[1] else (now - recorded[0], recorded[2])

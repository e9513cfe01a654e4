"""What a client remembers of queues that were full, to tell its callers when to try again."""

import random
from collections.abc import Callable

from rebaser_client.errors import QueueFull, Scope
from rebaser_client.jetstream import ApiError
from rebaser_client.jetstream.errors import is_subject_full
from rebaser_core.ids import ChangeSetKey

RETRY_MIN, RETRY_MAX = 0.5, 30.0  # seconds
FORGET = 60.0  # seconds without a refusal, after which the next one is news
MAX_KNOWN = 10_000  # change sets


class Backpressure:
    """Since when (`now` is a clock in seconds) each queue has been full; None stands for that of all requests.

    A queue that has been full for a while will be for about as long again, however many callers ask. So the wait is the
    time since its first refusal, and the number of callers in flight does not drive it up.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[ChangeSetKey | None, tuple[float, float]] = {}  # first refusal, newest refusal

    def refused(self, key: ChangeSetKey, error: ApiError) -> QueueFull:
        """The error for a caller whose request for `key` met a full queue."""
        scope: Scope = "change set" if is_subject_full(error) else "all"
        queue = key if scope == "change set" else None
        if len(self._since) >= MAX_KNOWN:
            self._since.clear()
        now = self._now()
        first, newest = self._since.get(queue, (now, now))
        if now - newest > FORGET:
            first = now
        self._since[queue] = first, now
        wait = min(max(now - first, RETRY_MIN), RETRY_MAX) * (0.75 + 0.5 * random.random())  # noqa: S311 - jitter
        return QueueFull(key, scope, wait, error.description)

    def accepted(self, key: ChangeSetKey) -> None:
        """Note that a request for `key` was stored, so that neither its queue nor that of all is full."""
        if self._since:
            self._since.pop(key, None)
            self._since.pop(None, None)

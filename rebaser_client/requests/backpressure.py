"""Remembers which request queues were full, and computes when callers should retry.

Invariant: the delay depends on how long a queue has been full, not on how many callers try. The delay is about as long
as the queue has been full so far, because a full queue will probably stay full for about as long again.
"""

import random
from collections.abc import Callable

from rebaser_client.errors import QueueFull, Scope
from rebaser_client.jetstream import ApiError
from rebaser_client.jetstream.errors import is_subject_full
from rebaser_core.ids import ChangeSetKey

RETRY_MIN, RETRY_MAX = 0.5, 30.0  # seconds, before jitter
FORGET = 60.0  # a queue counts as no longer full after this number of seconds without a refusal
MAX_KNOWN = 10_000  # maximum number of queues that are remembered


class Backpressure:
    """Remembers, for each full queue, the times of its first and its newest refusal.

    `now` returns the time of a clock, in seconds. Each change set has a queue. The key None stands for the queue of all
    requests together.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._refusals: dict[ChangeSetKey | None, tuple[float, float]] = {}

    def refused(self, key: ChangeSetKey, error: ApiError) -> QueueFull:
        """Record that a full queue refused a request for `key`. Return the error to raise to the caller."""
        scope: Scope = "change set" if is_subject_full(error) else "all"
        queue = key if scope == "change set" else None
        if len(self._refusals) >= MAX_KNOWN:
            self._refusals.clear()
        now = self._now()
        first, newest = self._refusals.get(queue, (now, now))
        if now - newest > FORGET:
            first = now
        self._refusals[queue] = first, now
        jitter = 0.75 + 0.5 * random.random()  # noqa: S311 - jitter need not be secret
        retry_after = min(max(now - first, RETRY_MIN), RETRY_MAX) * jitter
        return QueueFull(key, scope, retry_after, error.description)

    def accepted(self, key: ChangeSetKey) -> None:
        """Record that a request for `key` was stored, which shows that neither its queue nor the queue of all requests
        is full."""
        if self._refusals:
            self._refusals.pop(key, None)
            self._refusals.pop(None, None)

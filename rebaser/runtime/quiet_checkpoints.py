"""Decides which quiet change sets write a checkpoint before they are released, and which of them wait for their turn.

Invariant: a change set that waits has no work in flight, so that its owner can be stopped at once.
"""

from collections.abc import Callable

from rebaser_core.ids import ChangeSetKey

SHARE = 32  # before a release, a checkpoint is due for this share of the weight for which it is otherwise due
MAX_WRITERS = 4  # if thousands of change sets wrote their checkpoints at once, requests to others would take seconds
PAUSE = 60.0  # seconds for which change sets are released without a checkpoint after one could not be written


class QuietCheckpoints:
    """The turns in which quiet change sets of one server write checkpoints. `now` is the time in monotonic seconds."""

    def __init__(self) -> None:
        self._writing: set[ChangeSetKey] = set()
        self._waiting: dict[ChangeSetKey, Callable[[], None]] = {}  # what wakes each, in the order of their turns
        self._paused_until = 0.0

    def is_paused(self, now: float) -> bool:
        """Return whether quiet change sets are to be released without a new checkpoint, because `pause` was called less
        than `PAUSE` seconds ago."""
        return now < self._paused_until

    def enter(self, key: ChangeSetKey, wake: Callable[[], None]) -> bool:
        """Return whether `key` may write its checkpoint now. If so, the caller must call `leave` afterwards. If not,
        `wake` is called once it is the turn of `key`."""
        if len(self._writing) >= MAX_WRITERS:
            self._waiting.setdefault(key, wake)
            return False
        self._waiting.pop(key, None)
        self._writing.add(key)
        return True

    def leave(self, key: ChangeSetKey) -> None:
        """Let the next change set write, because `key` has written its checkpoint, or will not write one."""
        self._writing.discard(key)
        self._waiting.pop(key, None)
        if self._waiting and len(self._writing) < MAX_WRITERS:
            self._waiting.pop(next(iter(self._waiting)))()

    def pause(self, now: float) -> None:
        """Let change sets be released without a checkpoint for `PAUSE` seconds, because one could not be written."""
        self._paused_until = now + PAUSE
        waiting, self._waiting = self._waiting, {}
        for wake in waiting.values():
            wake()

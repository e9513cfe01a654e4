"""Reports code that blocks the event loop: a thread watches the loop, and logs the stack of the loop if it is blocked.

Invariant: the thread never acts on the loop. It only reads the loop's stack, and one number that the loop sets. It ends
before `watched_loop` exits.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from rebaser.telemetry.feeds import loop_was_late

log = structlog.get_logger(__name__)

MIN_PAUSE = 30.0  # minimum seconds between reports, because code that blocks repeatedly is a single bug
MAX_FRAMES = 30  # maximum number of frames in a logged stack, the innermost ones


class _Watch(threading.Thread):
    """A thread that watches `beat`, which the loop regularly sets to the current time (monotonic seconds), until `done`
    is set."""

    def __init__(self, thread_id: int, threshold: float) -> None:
        super().__init__(name="loop-watchdog", daemon=True)
        self.beat = time.monotonic()
        self.done = threading.Event()
        self._thread_id = thread_id
        self._threshold = threshold

    def run(self) -> None:
        pause = self._threshold / 4
        blocked_at: float | None = None  # the last beat before the reported block; None if that block is over
        quiet_until = checked_at = time.monotonic()
        used = time.process_time()
        while not self.done.wait(pause):
            beat, now, used_before, used = self.beat, time.monotonic(), used, time.process_time()
            # This thread may itself be late, either because the loop held the interpreter lock while it computed, or
            # because the whole process was paused or got no CPU time. In the second case, the loop is not at fault.
            gap, checked_at = now - checked_at, now
            paused = gap > self._threshold and used - used_before < gap / 2
            if blocked_at is not None and beat != blocked_at:
                log.warning("loop_resumed", seconds=round(beat - blocked_at, 1))
                blocked_at = None
            late = now - beat
            if late < self._threshold or paused or blocked_at is not None or now < quiet_until:
                continue
            frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - the documented access to another thread
            if frame is None:
                continue
            stack = traceback.extract_stack(frame)[-MAX_FRAMES:]
            del frame  # otherwise, this thread keeps the local variables of the frame alive
            log.error("loop_blocked", seconds=round(late, 1), stack="".join(traceback.format_list(stack)))
            blocked_at, quiet_until = beat, now + MIN_PAUSE


@contextmanager
def watched_loop(threshold: float) -> Iterator[None]:
    """Enter a context in which `loop_blocked` is logged, with the event loop's stack, each time a callback blocks the
    loop for `threshold` seconds."""
    loop = asyncio.get_running_loop()
    watch = _Watch(threading.get_ident(), threshold)

    timer: asyncio.TimerHandle
    due = time.monotonic()

    def beat() -> None:
        nonlocal timer, due
        watch.beat = time.monotonic()
        loop_was_late(max(watch.beat - due, 0.0))
        due = watch.beat + threshold / 4
        timer = loop.call_later(threshold / 4, beat)

    beat()
    watch.start()
    try:
        yield
    finally:
        timer.cancel()
        watch.done.set()
        watch.join(threshold)

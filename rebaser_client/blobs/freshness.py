"""Measures how long ago a blob was stored, or its address was read in a message.

Some time after a blob was stored, garbage collection removes the blob unless a message refers to it. A message that
refers to the blob must therefore be sent before that time.

Invariant: the measured age is never less than the real age. The measured age includes the time while the machine slept
or the process was stopped, and does not shrink when the wall clock is set back.
"""

import time

from rebaser_core.blobs import garbage


class Freshness:
    """A stopwatch, which starts when it is created."""

    __slots__ = ("_boot", "_wall")

    def __init__(self) -> None:
        self._boot, self._wall = boot_time(), time.time()

    @property
    def age(self) -> float:
        """The seconds since the stopwatch was started."""
        return max(boot_time() - self._boot, time.time() - self._wall)

    @property
    def is_fresh(self) -> bool:
        """Whether a message may still refer to blobs that were stored after the stopwatch was started."""
        return self.age <= garbage.FRESH_FOR


def boot_time() -> float:
    """Return the seconds since the machine started, including the time while it slept."""
    return time.clock_gettime(_BOOT_CLOCK)


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # on macOS, CLOCK_MONOTONIC includes sleep

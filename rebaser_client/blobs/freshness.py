"""How long ago a blob was stored, or its address was read in a message, before a message that names it is sent.

A blob that no message names yet counts as garbage. So a message that names it must be sent soon after it was put.

Invariant: the age is never less than the real one. It counts the time in which the machine was asleep, or the process
stopped, and a wall clock that is set back does not make it smaller.
"""

import time

from rebaser_core import garbage


class Freshness:
    """Measures the time since it was created."""

    __slots__ = ("_boot", "_wall")

    def __init__(self) -> None:
        self._boot, self._wall = boot_time(), time.time()

    @property
    def age(self) -> float:
        """Seconds since the start."""
        return max(boot_time() - self._boot, time.time() - self._wall)

    @property
    def lasts(self) -> bool:
        """Whether what was put since the start may be named in a message."""
        return self.age <= garbage.FRESH_FOR


def boot_time() -> float:
    """Seconds since the machine started, with those in which it slept."""
    return time.clock_gettime(_BOOT_CLOCK)


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # on macOS, CLOCK_MONOTONIC counts sleep, too

"""Measures time for metrics: the clock of NATS, and how late the event loop is."""

import time
from typing import TypeAlias

# An append to a log: its sequence, when it began and ended (`clock`), and the id and the size of the commit in bytes.
Append: TypeAlias = tuple[int, float, float, str, int]

clock = time.perf_counter
WRONG = 2.0  # seconds; a smaller difference of clocks may be due to a slow answer or a busy event loop
WEIGHT = 0.2  # of the newest value in the average lateness


class NatsClock:
    """The clock of NATS, with which the ages of requests are measured.

    It is the clock of this machine as of the last comparison, unless that is clearly wrong. Between comparisons, it
    goes on with the monotonic clock. So a clock that is wrong, or jumps, does not make requests look slow.

    The monotonic clock may stand still while the machine is suspended. After that, ages may be too low until the next
    comparison.

    `offset` is the difference to the monotonic clock in nanoseconds.
    """

    def __init__(self) -> None:
        self.offset = 0
        self.compare(0.0)

    def compare(self, ahead: float) -> None:
        """Record that the clock of this machine is `ahead` seconds ahead of that of NATS; negative if it is behind."""
        wrong = int(ahead * 1e9) if abs(ahead) > WRONG else 0
        self.offset = time.time_ns() - time.monotonic_ns() - wrong

    def now_ns(self) -> int:
        """Return the time in Unix nanoseconds."""
        return time.monotonic_ns() + self.offset


class RecentLag:
    """By how many seconds timers of the event loop were late in the last seconds: an average in which recent values
    weigh more."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        self.seconds += WEIGHT * (seconds - self.seconds)


NATS_CLOCK = NatsClock()
RECENT_LAG = RecentLag()

"""Delays between retries: exponential backoff with jitter.

Clients may fail at the same moment, for example when a server restarts. Jitter keeps them from retrying at the same
moment.

Invariant: this module neither sleeps nor reads a clock. All randomness comes from the argument `draw`. By default,
`draw` is `random.random`, which the simulation seeds.
"""

import math
import random
from collections.abc import Callable

from rebaser_core.backoff import exponential_delay

JITTER = 0.5  # a delay is shortened or lengthened by at most this share of it


def jittered(delay: float, draw: Callable[[], float] = random.random) -> float:
    """Return `delay` times a random factor from 1 - `JITTER` to 1 + `JITTER`. `draw` returns numbers from 0 to 1."""
    return delay * (1 - JITTER + 2 * JITTER * draw())


class Backoff:
    """The delays between the attempts of one operation: `base` seconds, doubled each time, at most `cap`.

    Jitter then shortens or lengthens each delay by up to half, so a delay can exceed `cap`. `attempt` is the number of
    delays since the beginning or the last `reset`.

        backoff = Backoff(0.05, 2.0)
        while not await attempt_it():
            await anyio.sleep(backoff.next_delay())
    """

    __slots__ = ("_base", "_cap", "_draw", "attempt")

    def __init__(self, base: float, cap: float = math.inf, draw: Callable[[], float] = random.random) -> None:
        self.attempt = 0
        self._base = base
        self._cap = cap
        self._draw = draw

    def next_delay(self) -> float:
        """Return the seconds to wait before the next attempt, and count that attempt."""
        delay = jittered(exponential_delay(self.attempt, self._base, self._cap), self._draw)
        self.attempt += 1
        return delay

    def reset(self) -> None:
        """Start again from `base`, because an attempt succeeded."""
        self.attempt = 0

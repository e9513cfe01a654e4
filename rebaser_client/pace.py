"""Leaves the processor to others most of the time while a long piece of background work is done."""

import time
from collections.abc import Awaitable, Callable

import anyio

TURN = 0.001  # seconds of work without a rest: others on the same processor wait no longer than this
REST = 2.0  # seconds of rest for each second of work, unless a caller chooses another number
MAX_REST = 0.1  # seconds; the longest rest, after a turn with one long piece of work
MAX_RESTED = 900.0  # seconds of rest in total, after which it works without rests, so that the work has an end


class Pace:
    """Divides work into short turns, and rests `rest` times as long after each, until it has rested for `MAX_RESTED`.

    Call `begin` before work that follows a wait, and `rest` after each small piece of work. Pieces that together take
    less than `TURN` are done without a rest. `clock` returns seconds of work; the default is `time.thread_time`, which
    stands still while the thread waits, such as for a blob.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
        *,
        rest: float = REST,
    ) -> None:
        self._clock = clock or time.thread_time  # looked up now, because the simulation replaces it
        self._sleep = sleep
        self._rest = rest
        self._worked = 0.0
        self._rested = 0.0
        self._since = self._clock()

    def begin(self) -> None:
        """Do not count the time since the last call as work."""
        self._since = self._clock()

    async def rest(self) -> None:
        """Count the time since the last call as work, and rest if enough of it was done."""
        now = self._clock()
        self._worked += now - self._since
        self._since = now
        if self._worked >= TURN and self._rested < MAX_RESTED:
            seconds = min(self._worked * self._rest, MAX_REST)
            await self._sleep(seconds)
            self._rested += seconds
            self._worked = 0.0
            self._since = self._clock()

"""Keeps the rounds of the event loop short, however many want to compute at once.

Without it a thousand owners, or loads of long logs, would each take their share in the same round, which would last for
seconds: answers of NATS would stand unread until they count as missing, and leases would run out.

Invariant: in each round those who come pass until `ROUND` is used up; the others wait in line, and the first of it are
let through in the next round: as many as lately used up less than that, at least one. What counts is processor time: a
machine that has none to give is not computing.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar

from rebaser_core import thresholds

ROUND = 0.02  # seconds of computing until sockets and timers are looked at again
TOGETHER = 16  # of the line let through at once, at most: a round costs something too
THREADS = 2  # for what takes longer than `ROUND`

T = TypeVar("T")

_here = threading.local()
_threads: RunVar[anyio.CapacityLimiter] = RunVar("threads")


class Rounds:
    """The rounds of the running event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._open = False  # as long as anybody waits
        self._ends = 0.0
        self._together = 1

    async def turn(self) -> float:
        """Return when there is time to compute; until when (`time.thread_time`), to ask again then."""
        if not self._waiting:
            now = time.thread_time()
            if not self._open:
                self._begin(now)
            if now < self._ends:
                return self._ends
        await self._wait()
        return self._ends

    def _begin(self, now: float) -> None:
        self._open, self._ends = True, now + ROUND
        self.loop.call_soon(self._over)  # that is in the next round, behind the sockets

    async def _wait(self) -> None:
        future = self.loop.create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._let_through()  # the one behind has our turn
            raise

    def _over(self) -> None:
        self._open = False
        if not self._waiting:
            return
        now = time.thread_time()
        used = now - self._ends + ROUND
        if used > ROUND:
            self._together = max(self._together // 2, 1)
        elif used < ROUND / 2:
            self._together = min(2 * self._together, TOGETHER)
        passed = [self._let_through() for _ in range(self._together)]
        if passed[0]:
            self._begin(now)

    def _let_through(self) -> bool:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return True
        return False


async def turn() -> float:
    """`Rounds.turn` of the running event loop."""
    rounds: Rounds | None = getattr(_here, "rounds", None)
    if rounds is None or rounds.loop is not asyncio.get_running_loop():
        rounds = _here.rounds = Rounds()
    return await rounds.turn()


async def aside(size: int, function: Callable[..., T], *args: object) -> T:
    """`function(*args)`, which works on `size` bytes: at once if they are few, else in another thread.

    There it goes on if the caller is cancelled, and nobody gets the result.
    """
    if size <= thresholds.now.here:
        await turn()
        return function(*args)
    try:
        threads = _threads.get()
    except LookupError:
        threads = anyio.CapacityLimiter(THREADS)
        _threads.set(threads)
    return await to_thread.run_sync(function, *args, abandon_on_cancel=True, limiter=threads)

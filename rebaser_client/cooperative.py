"""Lets long computations share the event loop: they call `cooperate` between steps, or run through `run_offloaded`.

Without this module, a thousand tasks could all compute in the same iteration of the event loop, which would then last
for seconds. Answers from NATS would be read only after their timeouts, and leases would expire.

Invariant: in each iteration of the loop, tasks are admitted until `TIME_SLICE` of processor time is used up. Further
tasks wait in a queue, and the next iteration admits a batch of them, first come, first served. The size of the batch
doubles while batches use less than half of a time slice, and halves when a batch takes longer than a time slice. A
batch has at least one task. Slices are measured in processor time, not in wall-clock time, so a task is not charged for
the time while the machine runs other processes.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar

from rebaser_core import thresholds

TIME_SLICE = 0.02  # seconds of computing until the loop returns to sockets and timers
MAX_BATCH = 16  # tasks admitted from the queue in one iteration; more than one, because each iteration has a cost
THREADS = 2  # the number of threads for functions that process large inputs

T = TypeVar("T")

_of_thread = threading.local()
_thread_limiter: RunVar[anyio.CapacityLimiter] = RunVar("threads")


class TimeSlices:
    """Divides the time of the running event loop among the tasks that want to compute."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._queue: deque[asyncio.Future[None]] = deque()
        self._running = False  # whether a time slice has begun, so that its end is scheduled
        self._ends_at = 0.0  # the end of the time slice, as a value of `time.thread_time`
        self._lasts_until = 0.0  # a value of `time.monotonic` before which the time slice cannot end
        self._batch_size = 1

    async def cooperate(self) -> float:
        """Wait until the caller may compute. Return the end of its time slice as a value of `time.thread_time`.

        At that time, a caller that still computes has to call this method again.
        """
        end = self.end_if_running()
        if end is not None:
            return end
        if not self._queue:
            now = time.thread_time()
            if not self._running:
                self._begin_slice(now)
            if now < self._ends_at:
                self._lasts_until = time.monotonic() + (self._ends_at - now)
                return self._ends_at
        await self._enqueue()
        return self._ends_at

    def end_if_running(self) -> float | None:
        """Return what `cooperate` returns, or None unless it would certainly return at once.

        Only the wall clock is read, because reading the processor time is a system call. The wall clock always advances
        by at least as much as the processor time.
        """
        if self._running and not self._queue and time.monotonic() < self._lasts_until:
            return self._ends_at
        return None

    def _begin_slice(self, now: float) -> None:
        self._running = True
        self._ends_at = now + TIME_SLICE
        self.loop.call_soon(self._end_slice)  # runs in the next iteration, after the callbacks of the sockets

    def _end_slice(self) -> None:
        """Admit tasks from the queue, and begin a slice for them.

        If the queue is empty, no slice begins until the next call of `cooperate`.
        """
        self._running = False
        if not self._queue:
            return
        now = time.thread_time()
        self._adapt_batch_size(used=now - (self._ends_at - TIME_SLICE))
        if self._admit_batch():
            self._begin_slice(now)

    def _adapt_batch_size(self, used: float) -> None:
        """Halve the batch size if the tasks took longer than a slice; double it if they used less than half of one."""
        if used > TIME_SLICE:
            self._batch_size = max(self._batch_size // 2, 1)
        elif used < TIME_SLICE / 2:
            self._batch_size = min(self._batch_size * 2, MAX_BATCH)

    def _admit_batch(self) -> bool:
        """Admit up to `_batch_size` tasks. Return whether there were any."""
        admitted = 0
        while admitted < self._batch_size and self._admit_next():
            admitted += 1
        return admitted > 0

    def _admit_next(self) -> bool:
        while self._queue:
            future = self._queue.popleft()
            if not future.done():  # the future is done if the waiting task was cancelled
                future.set_result(None)
                return True
        return False

    async def _enqueue(self) -> None:
        future = self.loop.create_future()
        self._queue.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._admit_next()  # this task was admitted, but is cancelled, so another task can take its place
            raise


async def cooperate() -> float:
    """Call `TimeSlices.cooperate` for the running event loop."""
    slices: TimeSlices | None = getattr(_of_thread, "slices", None)
    if slices is None or slices.loop is not asyncio.get_running_loop():
        slices = _of_thread.slices = TimeSlices()
    end = slices.end_if_running()
    return await slices.cooperate() if end is None else end


async def run_in_steps(steps: Iterator[None]) -> None:
    """Run all `steps`, and let other tasks run between them. If the caller is cancelled, run the remaining steps
    without pauses."""
    try:
        for _ in steps:
            await cooperate()
    finally:
        for _ in steps:
            pass


async def run_offloaded(size: int, function: Callable[..., T], *args: object) -> T:
    """Return `function(*args)`. `size` is the number of bytes that the function processes.

    If `size` is small, the function runs on the event loop; otherwise, it runs in a thread. If the caller is cancelled,
    the thread continues, and its result is dropped.
    """
    if size <= thresholds.now.on_loop_max_bytes:
        await cooperate()
        return function(*args)
    try:
        limiter = _thread_limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(THREADS)
        _thread_limiter.set(limiter)
    return await to_thread.run_sync(function, *args, abandon_on_cancel=True, limiter=limiter)

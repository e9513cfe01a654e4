"""An asyncio event loop in virtual time. Its simulated processes can be paused and killed.

Invariants: time passes only when no callback is ready, and then jumps to the next timer; callbacks run in the order in
which they became ready. Callbacks of a paused process wait until it continues. Callbacks of a dead process never run,
until `reap` cancels its remaining tasks. So the same program with the same seed gives the same run.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from typing import Any, TypeVar

from anyio._backends._asyncio import CancelScope

T = TypeVar("T")

PROCESS: ContextVar["Process | None"] = ContextVar("simulated_process", default=None)


class Livelock(Exception):  # noqa: N818 - what it is
    """A run has executed more callbacks than any correct program needs."""


class State(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"
    REAPED = "reaped"  # its remaining tasks run again to end, and nothing that they send leaves the process


class Process:
    """A simulated process: everything that runs in `context` belongs to it. `clock` is the error of its clock in
    milliseconds."""

    def __init__(self, loop: "SimLoop", name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.clock = 0
        self.parked: deque[asyncio.Handle] = deque()
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self._loop = loop

    def __str__(self) -> str:
        return self.name

    def start(self, main: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        return self._loop.create_task(main, context=self.context)

    def forget(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.pop(task, None)

    def pause(self) -> None:
        if self.state is State.RUNNING:
            self.state = State.PAUSED

    def resume(self) -> None:
        if self.state is State.PAUSED:
            self.state = State.RUNNING
            self._loop.unpark(self)

    def kill(self) -> None:
        """End the process: none of its callbacks runs any more, not even those that would clean up."""
        if self.state is not State.REAPED:
            self.state = State.DEAD


class SimLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time. `max_steps` bounds the callbacks of a run."""

    def __init__(self, max_steps: int = 2_000_000) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()
        self.numbers = itertools.count(1)  # numbers of futures and tasks; each run begins at 1
        self._max_steps = max_steps
        self.steps = 0
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_closed()  # type: ignore[attr-defined]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_future(self) -> "asyncio.Future[Any]":
        return SimFuture(loop=self)

    def unpark(self, process: Process) -> None:
        self._ready.extend(process.parked)  # type: ignore[attr-defined]
        process.parked.clear()

    def reap(self, process: Process) -> None:
        """Cancel the remaining tasks of a dead process, so that none outlives the run. Nothing that they do has an
        effect."""
        process.state = State.REAPED
        self.steps = 0
        self.unpark(process)
        for _ in range(1000):
            if not process.tasks:
                return
            for task in list(process.tasks):
                task.cancel()
            self.run_until_complete(_yield())
        raise Livelock(f"{process} cannot be ended: {list(process.tasks)[:3]}")

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise Livelock("everything waits, and no timer runs")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is not None and (process.state is State.PAUSED or process.state is State.DEAD):
                process.parked.append(handle)
                continue
            self.steps += 1
            handle._run()
        if self.steps > self._max_steps:
            raise Livelock(f"{self.steps} callbacks were run until {self._now:.3f} s")

    # Methods that asyncio requires for the outside world, which does not exist here.

    def _process_events(self, event_list: Any) -> None: ...

    def _write_to_self(self) -> None: ...

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...


class SimFuture(asyncio.Future[Any]):
    """A future whose hash is a number instead of its address, so that sets of futures have the same order in each
    run."""

    def __init__(self, *, loop: SimLoop) -> None:
        super().__init__(loop=loop)
        self._number = next(loop.numbers)

    def __hash__(self) -> int:
        return self._number


class SimTask(asyncio.Task[Any]):
    """A task whose hash is a number, like that of `SimFuture`, because anyio keeps sets of tasks."""

    def __init__(self, coro: Any, *, loop: SimLoop, **named: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(coro, loop=loop, **named)

    def __hash__(self) -> int:
        return self._number


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **named: Any) -> SimTask:
    assert isinstance(loop, SimLoop)
    task = SimTask(coro, loop=loop, **named)
    context: Context | None = named.get("context")
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(process.forget, context=process.context)
    return task


def scope_hash(scope: CancelScope) -> int:
    """Replace `CancelScope.__hash__` during a run. The scopes of a task differ by identity alone, and keep their
    order."""
    host = scope._host_task
    return host._number if isinstance(host, SimTask) else 0


async def _yield() -> None:
    await asyncio.sleep(0)

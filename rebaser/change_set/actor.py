"""Runs a lifecycle: events in, effects out, one after the other, each acted on where it is posted.

Invariant: `step` is never entered twice at once, and `run` returns only when the lifecycle is done and everything that
it started has ended. Between the arrival of a request and its commit there is one task switch.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import anyio
from anyio.abc import TaskGroup

from rebaser.change_set.lifecycle import INITIAL_EFFECTS, Effect, Event, OwnerState, Phase, Tick, Timing, step


class Actor:
    """A life and its clock. A subclass says what effects do; `changed` is called when the life takes or frees a slot.

    `group` and `resources` are there while `run` runs: effects start children in the one and open things in the other.
    """

    def __init__(self, now: Callable[[], float], timing: Timing, changed: Callable[[bool], None]) -> None:
        self.state = OwnerState(active_at=now())
        self.group: TaskGroup | None = None
        self.resources = AsyncExitStack()
        self._now = now
        self._timing = timing
        self._changed = changed
        self._events: deque[Event] = deque()
        self._stepping = False
        self._done = anyio.Event()
        self._failure: Exception | None = None
        self._timer: tuple[float, asyncio.TimerHandle] | None = None
        self._rang = asyncio.Event()
        self._work: set[anyio.CancelScope] = set()
        self._work_cancelled = False

    def perform(self, effects: tuple[Effect, ...]) -> None:
        """Begin the effects, in order; must not wait. Each reports by `post`."""
        raise NotImplementedError

    async def run(self) -> None:
        """Own the change set until it is released, given back or lost."""
        try:
            async with anyio.create_task_group() as self.group, self.resources:
                self.group.start_soon(self._clock)
                self.perform(INITIAL_EFFECTS)
                self._step_all()
                await self._done.wait()
                if self._failure is not None:
                    raise self._failure
                self.cancel_work()
        finally:
            self._set_timer(None)

    def post(self, event: Event) -> None:
        self._events.append(event)
        if not self._stepping and self.group is not None:
            self._step_all()

    def _step_all(self) -> None:
        """Act on what happened, in order. What an effect posts right away comes after it, never inside it."""
        self._stepping = True
        try:
            while self._events and self.state.phase is not Phase.DONE:
                held = self.state.holds_slot
                self.state, effects = step(self.state, self._events.popleft(), self._now(), self._timing)
                self.perform(effects)
                if self.state.holds_slot is not held:
                    self._changed(not held)
        except Exception as error:  # noqa: BLE001 - whoever posted is not to blame: `run` raises it
            self._failure = error
        finally:
            self._stepping = False
        if self._failure is not None or self.state.phase is Phase.DONE:
            self._done.set()
        self._set_timer(self.state.next_tick(self._timing))

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            if self._timer[0] == at:
                return
            self._timer[1].cancel()
            self._timer = None
        if at is not None and not self._done.is_set():
            delay = max(at - self._now(), 0)
            self._timer = at, asyncio.get_running_loop().call_later(delay, self._rang.set)

    async def _clock(self) -> None:
        """Post the ticks that the timer asks for; a timer's own callback belongs to no task and could start none."""
        with self.cancelled_with_work():
            while True:
                await self._rang.wait()
                self._rang.clear()
                self._timer = None
                self.post(Tick())

    @contextmanager
    def cancelled_with_work(self) -> Iterator[None]:
        """What runs inside ends quietly when the lifecycle says `CANCEL_WORK`."""
        with anyio.CancelScope() as scope:
            self._work.add(scope)
            try:
                if self._work_cancelled:
                    scope.cancel()
                yield
            finally:
                self._work.discard(scope)

    def cancel_work(self) -> None:
        self._work_cancelled = True
        for scope in self._work:
            scope.cancel()

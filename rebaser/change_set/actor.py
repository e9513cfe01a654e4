"""Runs the lifecycle of one owner: feeds it events, and performs the effects that it returns.

Invariant: calls to `step` never overlap. `run` returns only when the lifecycle is done and every task that `run`
started has ended. An event is handled within the call that posts it, so that there is only one task switch, after the
round (`rebaser.runtime.round`), between the arrival of a request and its commit.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
from anyio.abc import TaskGroup

from rebaser.change_set.lifecycle import INITIAL_EFFECTS, Dvu, Effect, Event, OwnerState, Phase, Tick, Timing, step
from rebaser_client.signal import Signal

_ACTIVE, _DONE, _IDLE = Phase.ACTIVE, Phase.DONE, Dvu.IDLE  # a lookup of an enum member takes 0.1 µs in Python 3.11


class Actor:
    """A base class that holds the `lifecycle` and the timer of one owner. The subclass performs the effects.

    `changed` is called with True when the owner takes one of the server's slots, and with False when it frees the slot.
    While `run` runs, effects start their tasks in `group`.

    Since a server may have ten thousand owners, an owner is kept small: it has no queue that would usually be empty,
    and it has `__slots__`, because an object with more than 30 attributes takes more memory without them.
    """

    __slots__ = (
        *("__weakref__", "_changed", "_done", "_events", "_failure", "_holds_slot", "_now", "_stepping", "_tick_due"),
        *("_timer", "_timing", "_wake", "_work", "_work_cancelled", "group", "lifecycle"),
    )

    def __init__(self, now: Callable[[], float], timing: Timing, changed: Callable[[bool], None]) -> None:
        self.lifecycle = OwnerState(active_at=now())
        self._holds_slot = self.lifecycle.holds_slot  # the argument of the last call to `changed`
        self.group: TaskGroup | None = None
        self._now = now
        self._timing = timing
        self._changed = changed
        self._events: list[Event] = []
        self._stepping = False
        self._done = False
        self._failure: Exception | None = None
        self._timer: tuple[float, asyncio.TimerHandle] | None = None
        self._tick_due = False
        self._wake = Signal()  # set when `run` has something to do: a tick is due, or the lifecycle is done
        self._work: set[anyio.CancelScope] = set()
        self._work_cancelled = False

    def perform(self, effects: tuple[Effect, ...]) -> None:
        """Start the effects in order, without waiting for them to end. Each effect reports its result to `post`."""
        raise NotImplementedError

    def before_tick(self, *, quiet: bool) -> bool:
        """Begin what has to be done before a tick. `quiet` tells whether the tick will release the change set, unless a
        job is started now. Return False if the tick has to wait until `tick_soon` is called."""
        del quiet
        return True

    async def close(self) -> None:
        """Close what the effects have opened. This may be called several times."""

    async def run(self) -> None:
        """Own the change set until it is released, given back, or lost."""
        try:
            async with anyio.create_task_group() as self.group:
                try:
                    self.perform(INITIAL_EFFECTS)
                    self._step_all()
                    await self._post_ticks()
                    if self._failure is not None:
                        raise self._failure
                    self.cancel_work()
                finally:
                    await self.close()
        finally:
            self._cancel_timer()

    def post(self, event: Event) -> None:
        """Handle `event`, after any events that are already being handled."""
        self._events.append(event)
        if not self._stepping and self.group is not None:
            self._step_all()

    def _step_all(self) -> None:
        """Handle the posted events in order. An event that is posted while effects are being performed is handled after
        those effects."""
        self._stepping = True
        try:
            while (events := self._events) and self.lifecycle.phase is not _DONE:
                state, effects = step(self.lifecycle, events.pop(0), self._now(), self._timing)
                self.lifecycle = state
                self.perform(effects)
                usual = state.phase is _ACTIVE and state.dvu is _IDLE and self._holds_slot  # the slot is kept
                if not usual and state.holds_slot is not self._holds_slot:
                    self._holds_slot = not self._holds_slot
                    self._changed(self._holds_slot)
        except Exception as error:  # noqa: BLE001 - `run` raises it, because the caller of `post` is not at fault
            self._failure = error
        finally:
            self._stepping = False
        state = self.lifecycle
        if self._failure is not None or state.phase is _DONE:
            self._done = True
            self._wake.set()
        if not state.busy or state.cancel_at is not None:
            deadline = state.next_tick(self._timing)
            # Every commit postpones the deadline. To avoid setting the timer for every commit, a timer that is set for
            # an earlier time is kept. When that timer fires, it is set again.
            if deadline is not None and not self._done and (self._timer is None or self._timer[0] > deadline):
                self._set_timer(deadline)

    def fail(self, error: Exception) -> None:
        """Make `run` raise `error`."""
        self._failure = error
        self._done = True
        self._wake.set()

    def _set_timer(self, deadline: float) -> None:
        self._cancel_timer()
        delay = max(deadline - self._now(), 0)
        self._timer = deadline, asyncio.get_running_loop().call_later(delay, self._fire_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None

    def _fire_timer(self) -> None:
        """Make `run` post a tick. It is not posted here, because `run` has to raise the errors of effects.

        If the deadline has been postponed, only set the timer again: waking ten thousand owners for nothing would take
        1 % of a server's CPU time.
        """
        deadline = self.lifecycle.next_tick(self._timing)
        if deadline is not None and deadline > self._now():
            self._set_timer(deadline)
            return
        self.tick_soon()

    def tick_soon(self) -> None:
        """Make `run` post a tick."""
        self._tick_due = True
        self._wake.set()

    def _is_quiet(self) -> bool:
        state, deadline = self.lifecycle, self.lifecycle.next_tick(self._timing)
        return state.phase is _ACTIVE and state.dvu is _IDLE and deadline is not None and deadline <= self._now()

    async def _post_ticks(self) -> None:
        """Post a tick each time the timer fires. Return once the lifecycle is done."""
        while not self._done:
            await self._wake.wait()
            self._wake.clear()
            if self._tick_due:
                self._tick_due, self._timer = False, None
                if self.before_tick(quiet=self._is_quiet()):
                    self.post(Tick())

    @contextmanager
    def cancelled_with_work(self) -> Iterator[None]:
        """Enter a context whose body is cancelled when the lifecycle commands `CANCEL_WORK`. Code after the context is
        not cancelled."""
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

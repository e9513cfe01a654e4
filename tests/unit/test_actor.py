"""The driver of an owner's life cycle: its timer, its work, the slot that it reports, and its end."""

import math
import time
from collections.abc import Callable

import anyio
import pytest

from rebaser.change_set.actor import Actor
from rebaser.change_set.lifecycle import (
    Arrived,
    Command,
    Decided,
    DvuEnded,
    DvuFailed,
    Effect,
    Event,
    Loaded,
    Reason,
    Rechecked,
    Released,
    Stop,
    Tick,
    Timing,
)

pytestmark = pytest.mark.anyio

REPLIES: dict[Effect, Event] = {
    Command.LOAD: Loaded(owes=False),
    Command.ACK: Released(),
    Command.RECHECK: Rechecked(work_left=False),
}


class Scripted(Actor):
    """Records each effect and performs it at once."""

    def __init__(self, timing: Timing, now: Callable[[], float] = time.monotonic) -> None:
        self.slots: list[bool] = []
        super().__init__(now, timing, self.slots.append)
        self.seen: list[Effect] = []
        self.on: dict[Effect, Callable[[], None]] = {}

    def perform(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            self.seen.append(effect)
            if reply := REPLIES.get(effect):
                self.post(reply)
            if effect in self.on:
                self.on[effect]()


async def test_a_tick_that_comes_too_early_is_followed_by_another() -> None:
    """Each commit moves the time of release, but the timer keeps its time."""
    looked = 0

    def now() -> float:
        nonlocal looked
        looked += 1
        return 0.0 if looked < 20 else 1.0

    actor = Scripted(Timing(quiescent_period=0.001), now)
    with anyio.fail_after(60):
        await actor.run()
    assert looked >= 20
    assert actor.seen[-1] is Command.RECHECK


async def test_a_timer_that_fires_too_early_is_set_again_without_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    actor = Scripted(Timing(quiescent_period=0.001), lambda: now)
    posted: list[type[Event]] = []
    post = actor.post

    def note(event: Event) -> None:
        posted.append(type(event))
        post(event)

    monkeypatch.setattr(actor, "post", note)
    async with anyio.create_task_group() as group:
        group.start_soon(actor.run)
        await anyio.wait_all_tasks_blocked()
        assert actor._timer is not None
        for _ in range(3):
            before = actor._timer
            actor._fire_timer()
            await anyio.wait_all_tasks_blocked()
            assert actor._timer[1] is not before[1]
        assert Tick not in posted
        now = 1.0
    assert posted.count(Tick) == 1


async def test_an_earlier_time_moves_the_timer() -> None:
    actor = Scripted(Timing(quiescent_period=600, dvu_retry=0.001, dvu_retry_max=0.001))
    failures = 0

    def fails_twice() -> None:
        nonlocal failures
        failures += 1
        actor.post(DvuFailed() if failures < 3 else DvuEnded(owes=False))
        if failures == 3:
            actor.post(Stop(Reason.SHUTDOWN))

    actor.on[Command.RUN_DVU] = fails_twice
    actor.on[Command.DECIDE] = lambda: actor.post(Decided(owes=True, more=False))

    async def arrive() -> None:  # only now, because the timer is set for the release
        assert actor._timer is not None
        actor.post(Arrived())

    def begin() -> None:
        assert actor.group is not None
        if Command.DECIDE not in actor.seen:
            actor.group.start_soon(arrive)

    actor.on[Command.AWAIT] = begin
    with anyio.fail_after(60):
        await actor.run()
    assert actor.seen.count(Command.RUN_DVU) == 3


async def test_a_slot_is_reported_when_it_is_freed_and_when_it_is_taken_again() -> None:
    actor = Scripted(Timing(quiescent_period=0.001))
    actor.on[Command.RUN_DVU] = lambda: actor.post(Arrived())
    decisions = 0

    def decide() -> None:
        nonlocal decisions
        decisions += 1
        actor.post(Decided(owes=decisions == 1, more=False))
        if decisions == 2:
            actor.post(DvuEnded(owes=False))

    actor.on[Command.DECIDE] = decide
    actor.on[Command.LOAD] = lambda: actor.post(Arrived())
    with anyio.fail_after(60):
        await actor.run()
    assert actor.slots == [False, True, False, True, False]


async def test_work_is_cancelled_whether_it_began_before_or_after_the_order() -> None:
    actor = Scripted(Timing(quiescent_period=math.inf))
    ended: list[str] = []

    async def work(name: str) -> None:
        with actor.cancelled_with_work():
            await anyio.sleep_forever()
        ended.append(name)

    def begin(name: str) -> None:
        assert actor.group is not None
        actor.group.start_soon(work, name)

    actor.on[Command.LOAD] = lambda: begin("before")
    actor.on[Command.AWAIT] = lambda: actor.post(Stop(Reason.SHUTDOWN))

    def cancel() -> None:
        actor.cancel_work()
        begin("after")

    actor.on[Command.CANCEL_WORK] = cancel
    with anyio.fail_after(60):
        await actor.run()
    assert sorted(ended) == ["after", "before"]
    assert not actor._work


async def test_no_work_outlives_the_owner() -> None:
    actor = Scripted(Timing(quiescent_period=0.001))

    async def work() -> None:
        with actor.cancelled_with_work():
            await anyio.sleep_forever()

    def begin() -> None:
        assert actor.group is not None
        actor.group.start_soon(work)

    actor.on[Command.STOP_CONSUMING] = begin
    with anyio.fail_after(60):
        await actor.run()


async def test_what_an_effect_raises_ends_the_owner_and_not_the_caller_who_posted() -> None:
    actor = Scripted(Timing(quiescent_period=math.inf))

    def breaks() -> None:
        raise ValueError("broken")

    actor.on[Command.DECIDE] = breaks
    posted = anyio.Event()

    async def post() -> None:
        actor.post(Arrived())
        posted.set()

    def begin() -> None:
        assert actor.group is not None
        actor.group.start_soon(post)

    actor.on[Command.AWAIT] = begin
    with pytest.raises(ExceptionGroup) as caught, anyio.fail_after(60):
        await actor.run()
    assert caught.group_contains(ValueError, match="broken")
    assert posted.is_set()


async def test_an_owner_that_is_made_to_fail_ends_with_the_error() -> None:
    actor = Scripted(Timing(quiescent_period=math.inf))

    async def fail() -> None:
        actor.fail(OSError("the log is full"))

    def begin() -> None:
        assert actor.group is not None
        actor.group.start_soon(fail)

    actor.on[Command.AWAIT] = begin
    with pytest.raises(ExceptionGroup) as caught, anyio.fail_after(60):
        await actor.run()
    assert caught.group_contains(OSError, match="the log is full")

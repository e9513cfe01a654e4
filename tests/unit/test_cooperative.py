"""However many tasks compute at the same time, sockets and timers are served in between, and each task gets its
turn."""

import asyncio
from types import SimpleNamespace

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rebaser_client import cooperative
from rebaser_client.cooperative import MAX_BATCH, TIME_SLICE, TimeSlices

pytestmark = pytest.mark.anyio


class Clock:
    """A clock that advances only while tasks compute."""

    def __init__(self) -> None:
        self.now = 100.0
        self.round = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._next)

    def thread_time(self) -> float:
        return self.now

    def _next(self) -> None:
        self.round += 1
        self._loop.call_soon(self._next)


@pytest.fixture
async def clock(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(
        cooperative, "time", SimpleNamespace(thread_time=clock.thread_time, monotonic=clock.thread_time)
    )
    return clock


async def test_a_round_lasts_no_longer_however_many_compute(clock: Clock) -> None:
    slices, computed = TimeSlices(), list[tuple[int, int]]()

    async def compute(name: int) -> None:
        for _ in range(3):
            await slices.cooperate()
            clock.now += TIME_SLICE * 0.4
            computed.append((clock.round, name))

    async with anyio.create_task_group() as group:
        for name in range(20):
            group.start_soon(compute, name)
    by_round = [[name for at, name in computed if at == one] for one in sorted({at for at, _ in computed})]
    assert len(computed) == 60
    assert max(map(len, by_round)) <= 3  # the third task began just before the time was over
    first_three_quarters = [name for _, name in computed[:45]]
    assert set(first_three_quarters) == set(range(20))  # no task has to wait for those that want more time


async def test_those_who_compute_little_pass_together(clock: Clock) -> None:
    slices, by_round = TimeSlices(), dict[int, int]()

    async def compute() -> None:
        for _ in range(20):
            await slices.cooperate()
            clock.now += TIME_SLICE / (2 * MAX_BATCH + 1)
            by_round[clock.round] = by_round.get(clock.round, 0) + 1

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(compute)
    counts = list(by_round.values())
    assert counts[0] > 2 * MAX_BATCH  # In the first round, no task has to wait yet.
    assert counts[1:6] == [1, 2, 4, 8, MAX_BATCH]
    assert sum(counts) == 1000
    assert max(counts[1:]) == MAX_BATCH


async def test_where_there_is_time_nobody_waits(clock: Clock) -> None:
    slices = TimeSlices()
    for _ in range(5):
        with pytest.raises(StopIteration) as passed:
            slices.cooperate().send(None)
        assert passed.value.value == clock.now + TIME_SLICE


async def test_who_gives_up_leaves_its_turn_to_the_next(clock: Clock) -> None:
    slices, passed = TimeSlices(), list[str]()

    async def compute(name: str) -> None:
        await slices.cooperate()
        passed.append(name)

    with anyio.fail_after(60):
        tasks = {name: asyncio.create_task(compute(name)) for name in ("let through", "waiting", "last")}
        await slices.cooperate()  # Wait until the end of the round, in front of the others.
        clock.now += 2 * TIME_SLICE
        while len(slices._queue) != 2:
            await checkpoint()
        tasks["waiting"].cancel()
        tasks["let through"].cancel()  # this task is about to run
        await asyncio.wait(tasks.values())
    assert passed == ["last"]

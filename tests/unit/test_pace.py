"""Tests how background work leaves the processor to others, with a clock that stands still between two pieces."""

import pytest

from rebaser_client.pace import MAX_REST, MAX_RESTED, REST, TURN, Pace

pytestmark = pytest.mark.anyio


class Machine:
    """A clock that moves only by work and sleep."""

    def __init__(self) -> None:
        self.now = 100.0
        self.rests: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds

    def pace(self) -> Pace:
        return Pace(self.clock, self.sleep)


async def test_after_each_turn_it_rests_twice_as_long() -> None:
    machine = Machine()
    pace = machine.pace()
    for _ in range(100):
        machine.now += TURN * 2
        await pace.rest()
    assert machine.rests == pytest.approx([TURN * 2 * REST] * 100)
    assert machine.now - 100.0 == pytest.approx(100 * TURN * 2 * (1 + REST))


async def test_a_caller_may_choose_longer_rests() -> None:
    machine = Machine()
    pace = Pace(machine.clock, machine.sleep, rest=7 * REST)
    machine.now += TURN * 2
    await pace.rest()
    assert machine.rests == pytest.approx([TURN * 2 * 7 * REST])


async def test_small_pieces_are_done_together_in_a_turn() -> None:
    machine = Machine()
    pace = machine.pace()
    for _ in range(1000):
        machine.now += TURN / 10
        await pace.rest()
    assert sum(machine.rests) == pytest.approx(1000 * TURN / 10 * REST, rel=0.02)
    assert 80 <= len(machine.rests) <= 100


async def test_little_work_is_not_slowed_down() -> None:
    machine = Machine()
    pace = machine.pace()
    for _ in range(9):
        machine.now += TURN / 10
        await pace.rest()
    assert machine.rests == []


async def test_the_time_of_waiting_is_no_work() -> None:
    machine = Machine()
    pace = machine.pace()
    for _ in range(100):
        machine.now += 1.0
        pace.begin()
        machine.now += TURN / 200
        await pace.rest()
    assert machine.rests == []


async def test_a_rest_is_bounded() -> None:
    machine = Machine()
    pace = machine.pace()
    machine.now += 60.0
    await pace.rest()
    assert machine.rests == [MAX_REST]


async def test_after_a_bound_of_rests_it_only_works() -> None:
    machine = Machine()
    pace = machine.pace()
    for _ in range(int(2 * MAX_RESTED / MAX_REST)):
        machine.now += MAX_REST
        await pace.rest()
    assert sum(machine.rests) == pytest.approx(MAX_RESTED, abs=2 * MAX_REST)

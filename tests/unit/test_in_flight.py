"""Callers are admitted in order, and no place is lost or given twice, however they leave."""

import asyncio

import anyio
import pytest

from rebaser_client.requests.in_flight import InFlight

pytestmark = pytest.mark.anyio


def free(bound: InFlight) -> int:
    """Return how many callers can enter now; they leave again."""
    count = 0
    while bound.enter_now():
        count += 1
    for _ in range(count):
        bound.release()
    return count


async def test_callers_are_admitted_in_their_order() -> None:
    bound = InFlight(2)
    asked = [bound.ask() for _ in range(5)]
    for leaving in range(4):
        assert [admission.done() for admission in asked] == [place < leaving + 2 for place in range(5)]
        assert not bound.enter_now()
        bound.release()
    bound.release()
    assert free(bound) == 2


async def test_who_gives_up_takes_no_place_along() -> None:
    bound = InFlight(1)
    first, second, third = [bound.ask() for _ in range(3)]
    bound.withdraw(second)  # still waits
    bound.withdraw(first)  # was admitted
    assert third.done()
    bound.withdraw(third)
    assert free(bound) == 1


async def test_a_caller_that_was_cancelled_is_passed_over() -> None:
    bound = InFlight(1)
    first, second, third = [bound.ask() for _ in range(3)]
    second.cancel()
    bound.release()
    assert third.done()
    bound.withdraw(second)  # has no place to give back
    assert not bound.enter_now()
    bound.release()
    assert first.done()
    assert free(bound) == 1


async def test_waiting_ends_at_the_deadline_or_when_cancelled_and_leaves_no_place_taken() -> None:
    bound, loop = InFlight(1), asyncio.get_running_loop()
    await bound.enter(loop.time() + 10)
    with pytest.raises(TimeoutError):
        await bound.enter(loop.time() + 0.001)
    with anyio.move_on_after(0.001):
        await bound.enter(loop.time() + 10)
    caller = asyncio.create_task(bound.enter(loop.time() + 10))
    await anyio.wait_all_tasks_blocked()
    bound.release()
    caller.cancel()  # admitted, and cancelled before it runs
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert free(bound) == 1

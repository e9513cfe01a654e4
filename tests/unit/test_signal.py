"""A flag for which one task waits."""

import asyncio

import pytest

from rebaser_client.signal import Signal


async def waiting_for(signal: Signal) -> asyncio.Task[None]:
    async def wait() -> None:
        await signal.wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert not task.done()
    return task


def test_a_task_that_waits_goes_on_when_the_flag_is_set_even_if_it_is_cleared_at_once() -> None:
    async def run() -> None:
        signal = Signal()
        task = await waiting_for(signal)
        signal.set()
        signal.set()
        signal.clear()
        await task
        await waiting_for(signal)

    asyncio.run(run())


def test_a_flag_that_is_set_already_lets_a_task_pass_until_it_is_cleared() -> None:
    async def run() -> None:
        signal = Signal()
        signal.set()
        await signal.wait()
        await signal.wait()
        signal.clear()
        await waiting_for(signal)

    asyncio.run(run())


def test_after_a_task_was_cancelled_another_one_can_wait() -> None:
    async def run() -> None:
        signal = Signal()
        task = await waiting_for(signal)
        task.cancel()
        signal.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        signal.clear()
        task = await waiting_for(signal)
        signal.set()
        await task

    asyncio.run(run())

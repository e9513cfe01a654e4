"""A flat task group raises the first failure itself, and not a group."""

import anyio
import anyio.lowlevel
import pytest

from rebaser_client.task_groups import flat_task_group
from rebaser_core.errors import TransientError

pytestmark = pytest.mark.anyio


async def fail(error: BaseException) -> None:
    raise error


async def fail_late(error: BaseException) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        raise error


async def test_a_failure_of_the_body_is_raised_as_it_is_when_the_children_have_ended() -> None:
    ended = anyio.Event()

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async def run() -> None:
        async with flat_task_group() as group:
            group.start_soon(child)
            await anyio.lowlevel.checkpoint()
            raise error

    error = TransientError("away")
    with pytest.raises(TransientError) as raised:
        await run()
    assert raised.value is error
    assert error.__context__ is None
    assert ended.is_set()


async def test_a_failure_of_a_child_cancels_the_body_and_is_raised_as_it_is() -> None:
    async def run() -> None:
        async with flat_task_group() as group:
            group.start_soon(fail, error)
            await anyio.sleep_forever()

    error = TransientError("away")
    with anyio.fail_after(60), pytest.raises(TransientError) as raised:
        await run()
    assert raised.value is error


async def test_the_first_failure_is_raised_and_names_the_others() -> None:
    async def run() -> None:
        async with flat_task_group() as group:
            group.start_soon(fail_late, ValueError("second"))
            await anyio.lowlevel.checkpoint()
            raise TransientError("first")

    with pytest.raises(TransientError) as raised:
        await run()
    assert raised.value.message == "first"
    assert raised.value.__notes__ == ["while the task group ended: ValueError('second')"]


async def test_a_group_that_the_body_raises_stays_a_group() -> None:
    inner = ExceptionGroup("several", [ValueError("a"), ValueError("b")])
    with pytest.raises(ExceptionGroup) as raised:
        async with flat_task_group():
            raise inner
    assert raised.value is inner


async def test_a_cancellation_from_outside_passes_through() -> None:
    with anyio.CancelScope() as scope:
        async with flat_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_the_end_of_the_body_can_cancel_the_children() -> None:
    with anyio.fail_after(60):
        async with flat_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            group.cancel_scope.cancel()

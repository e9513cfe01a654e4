"""Owners that load at the same time share a call; the answer that an owner gets is not older than its call."""

import asyncio
import gc
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from rebaser.runtime.shared_info import SharedStreamInfo
from rebaser_core.errors import TransientError

pytestmark = pytest.mark.anyio


class Stream:
    """Answers with the number of the call once `go` is set. The calls in `fails` fail."""

    def __init__(self, *fails: int) -> None:
        self.fails = fails
        self.calls = 0
        self.go = anyio.Event()
        self.connection = self
        self._tasks: set[asyncio.Task[None]] = set()

    def check_open(self) -> None:
        pass

    def spawn(self, run: Any) -> None:
        self._tasks.add(asyncio.create_task(run()))

    async def stream_info(self, _: str) -> int:
        self.calls += 1
        call = self.calls
        await self.go.wait()
        if call in self.fails:
            raise TransientError(f"call {call} failed")
        return call


async def ask(info: SharedStreamInfo, found: list[object]) -> None:
    try:
        found.append(await info.start())
    except TransientError as error:
        found.append(error.message)


async def test_who_asks_while_a_call_is_under_way_gets_the_next_one() -> None:
    stream = Stream()
    info, early, late = SharedStreamInfo(cast("Any", stream), "requests"), list[object](), list[object]()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask, info, early)
            while not stream.calls:
                await anyio.lowlevel.checkpoint()
            for _ in range(3):
                group.start_soon(ask, info, late)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            stream.go.set()
    assert (set(early), set(late)) == ({1}, {2})
    assert (len(early), len(late), stream.calls) == (3, 3, 2)


async def test_a_call_that_fails_fails_for_all_who_share_it_and_for_nobody_later() -> None:
    stream = Stream(1)
    stream.go.set()
    info, found = SharedStreamInfo(cast("Any", stream), "requests"), list[object]()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask, info, found)
        assert found == ["call 1 failed"] * 3
        assert cast("object", await info.start()) == 2


async def test_nobody_is_told_of_a_failure_that_its_caller_no_longer_asks_for() -> None:
    loop, told = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: told.append(context))
    stream = Stream(1)
    stream.go.set()
    future = SharedStreamInfo(cast("Any", stream), "requests").start()
    with anyio.fail_after(60):
        while not future.done():
            await anyio.lowlevel.checkpoint()
    del future
    gc.collect()
    await anyio.lowlevel.checkpoint()
    loop.set_exception_handler(None)
    assert not told

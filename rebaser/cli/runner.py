"""Runs the asynchronous part of a command, using uvloop if it is installed, and handles signals.

Invariant: the first SIGINT or SIGTERM cancels the command's work and lets the command clean up. A second signal ends
the process at once. No task outlives the command.
"""

import gc
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from importlib.util import find_spec

import anyio
import anyio.abc

from rebaser.cli import logs
from rebaser_client.task_groups import flat_task_group
from rebaser_core.errors import RebaserError

Work = Callable[[], Awaitable[int | None]]


def run_async(work: Work, *, daemon: bool = False) -> int:
    """Run `work` and return the exit code: its result, or 128 plus the number of the signal that stopped it.

    If `daemon` is true, SIGTERM is the normal way to stop the command, and the exit code is then 0.
    """
    logs.show_errors()
    gc.freeze()  # imported objects are never freed, so no collection needs to visit them
    gc.enable()  # `rebaser.cli.main` has disabled it
    code = anyio.run(
        partial(_supervised, work), backend="asyncio", backend_options={"use_uvloop": find_spec("uvloop") is not None}
    )
    return 0 if daemon and code == 128 + signal.SIGTERM else code


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's cyclic garbage collector, which would otherwise take up a third of the time while many objects
    without cycles are created."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _supervised(work: Work) -> int:
    stopped_by = 0
    result: int | None = None

    async def listen(scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        nonlocal stopped_by
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                if stopped_by:
                    os._exit(stopped_by)
                stopped_by = 128 + number
                scope.cancel()

    async with flat_task_group() as group:
        with anyio.CancelScope() as scope:
            await group.start(partial(listen, scope))
            result = await work()
        group.cancel_scope.cancel()
    return stopped_by or result or 0


@asynccontextmanager
async def best_effort(run: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `run` concurrently with the `with` block, and cancel it at the end of the block. Ignore any `RebaserError`
    that it raises."""

    async def attempt() -> None:
        with suppress(RebaserError):
            await run()

    async with flat_task_group() as group:
        group.start_soon(attempt)
        try:
            yield
        finally:
            group.cancel_scope.cancel()

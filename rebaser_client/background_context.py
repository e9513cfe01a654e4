"""Holds an asynchronous context manager open in a task of its own, so that any task may open it and any other close it.

Cancel scopes and task groups have to be left by the task that entered them. Notebooks, fixtures and web frameworks
often open in one task and close in another. What is raised in the caller's own body passes through no task group, then.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from typing import Generic, TypeVar

import anyio

from rebaser_core.errors import ConfigError

T = TypeVar("T")


class BackgroundContext(Generic[T]):
    """Opens and closes `manager` once."""

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager
        self._closing = asyncio.Event()
        self._opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> T:
        """Enter it; raises what entering it raises."""
        task = self._task = asyncio.create_task(self._hold(), name=f"holds {self._manager!r}")
        try:
            await asyncio.wait((self._opened, task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            with anyio.CancelScope(shield=True), suppress(asyncio.CancelledError, Exception):
                await task
            raise
        if not self._opened.done():
            await task
        return self._opened.result()

    async def close(self) -> None:
        """Leave it, and return when that is done; raises what ended it early. A second call does nothing more."""
        self._closing.set()
        task = self._task
        if task is not None:
            with anyio.CancelScope(shield=True):
                await asyncio.wait((task,))
            self._task = None
            if not task.cancelled():  # as a loop does at its end to all tasks
                task.result()

    async def _hold(self) -> None:
        async with self._manager as value:
            self._opened.set_result(value)
            await self._closing.wait()


def require_asyncio() -> None:
    """Raise `ConfigError` under anything but asyncio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "rebaser_client runs on asyncio (uvloop, too), and there is no asyncio event loop here"
        ) from None

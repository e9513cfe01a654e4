"""Keeps an asynchronous context manager open in a background task, so that different tasks can open and close it.

The task that enters a cancel scope or a task group has to exit it, but notebooks, fixtures and web frameworks often
open a client in one task and close it in another. A background task also keeps the caller's exceptions away from the
task groups of the context manager.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from typing import Generic, TypeVar

import anyio

from rebaser_core.errors import ConfigError

T = TypeVar("T")


class BackgroundContext(Generic[T]):
    """A context manager, `manager`, that is entered and exited once, both in the same background task."""

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager
        self._closing = asyncio.Event()
        self._opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> T:
        """Enter the context manager and return its value. Raise the error that the manager raises on entry."""
        task = self._task = asyncio.create_task(self._run(), name=f"holds {self._manager!r}")
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
        """Exit the context manager, and wait until it has exited. Raise the error that ended it early, if any.

        A second call does nothing.
        """
        self._closing.set()
        task = self._task
        if task is not None:
            with anyio.CancelScope(shield=True):
                await asyncio.wait((task,))
            self._task = None
            if not task.cancelled():  # an event loop cancels all its tasks when it ends
                task.result()

    async def _run(self) -> None:
        async with self._manager as value:
            self._opened.set_result(value)
            await self._closing.wait()


def require_asyncio() -> None:
    """Raise `ConfigError` unless the caller runs on asyncio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "RebaserClient needs a running asyncio event loop (uvloop works, too): call it from a coroutine, or use "
            "BlockingRebaserClient"
        ) from None

"""Runs asynchronous calls on an event loop in another thread, and waits for their results.

Invariant: a call that its thread gives up, for instance because of Ctrl-C, is cancelled on the loop.
"""

import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Generic, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, BlockingPortalProvider

from rebaser_client.errors import ClientClosedError

T = TypeVar("T")

READ_AHEAD = 256  # maximum number of items that an iteration reads ahead

_providers: dict[int, BlockingPortalProvider] = {}  # by process id: a forked child has no loop thread


class Portal:
    """A share of the loop thread of this process. The first share starts the thread, and the last one to close ends
    it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._provider = _providers.setdefault(self._pid, BlockingPortalProvider())
        self._iterations: set[Future[None]] = set()
        self._portal: BlockingPortal | None = self._provider.__enter__()

    def close(self) -> None:
        """Give the share back. A second call, or a call in a forked child or as the interpreter exits, does nothing."""
        portal, self._portal = self._portal, None
        if portal is not None and self._pid == os.getpid() and not sys.is_finalizing():
            for iteration in tuple(self._iterations):  # the loop waits for them, and nobody may ever read their items
                iteration.cancel()
            self._provider.__exit__(None, None, None)

    @property
    def closed(self) -> bool:
        """Whether nothing is left to close; so it is in a forked child."""
        return self._portal is None or self._pid != os.getpid()

    def start(self, call: Callable[[], Awaitable[T]]) -> "Future[T]":
        """Start `call` on the loop. Raises `ClientClosedError` after `close` and in a forked child."""
        if self._pid != os.getpid():
            raise ClientClosedError("this client belongs to the parent process; connect again after a fork")
        if self._portal is None:
            raise ClientClosedError("the client is closed")
        if sys.is_finalizing():  # the loop thread does not run any more
            raise ClientClosedError("the interpreter exits")
        return self._portal.start_task_soon(call)

    def start_iteration(self, call: Callable[[], Awaitable[None]]) -> "Future[None]":
        """Start `call` as `start` does. `close` cancels it."""
        future = self.start(call)
        self._iterations.add(future)
        future.add_done_callback(self._iterations.discard)
        return future

    def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run `call` on the loop, and return its result or raise its exception."""
        return wait(self.start(call))


def wait(future: "Future[T]") -> T:
    """Return the result of `future`. If the wait is interrupted, cancel the call."""
    try:
        return future.result()
    except CancelledError:
        raise ClientClosedError("the client was closed during the call") from None
    except BaseException:
        future.cancel()  # does nothing if the call itself raised
        raise


class BlockingIterator(Generic[T]):
    """Iterates over an asynchronous iterator, in any thread, but only in one thread at a time.

    `close`, the end of a `with` block, or dropping the last reference ends the iteration on the loop.
    """

    def __init__(self, portal: Portal, open_: Callable[[], AsyncIterator[T]]) -> None:
        self._portal = portal
        self._items: deque[T] = deque()
        self._closed = False
        ahead = self._ahead = _ReadAhead(open_)
        self._reader = portal.start_iteration(ahead.run)  # does not refer to this object: dropping it ends it

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._closed:
            raise StopIteration
        if not self._items:
            self._items.extend(self._portal.call(self._ahead.take))
        if not self._items:
            if not self._closed:  # another thread may have closed it during the call
                wait(self._reader)  # raises the error that ended the iteration early
            raise StopIteration
        return self._items.popleft()

    def close(self) -> None:
        """End the iteration. A second call does nothing."""
        self._closed = True
        self._reader.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if "_reader" in self.__dict__:  # otherwise, `__init__` failed
            self._reader.cancel()


class _ReadAhead(Generic[T]):
    """Runs an asynchronous iteration in one task, because cancel scopes must not change tasks, and keeps its items."""

    def __init__(self, open_: Callable[[], AsyncIterator[T]]) -> None:
        self._open = open_
        self._items: list[T] = []
        self._ended = False
        self._changed = anyio.Event()

    async def run(self) -> None:
        items = self._open()
        try:
            async for item in items:
                self._items.append(item)
                self._change()
                while len(self._items) >= READ_AHEAD:
                    await self._changed.wait()
        finally:
            self._ended = True
            self._change()
            if isinstance(items, AsyncGenerator):
                with anyio.CancelScope(shield=True):
                    await items.aclose()

    async def take(self) -> list[T]:
        """Wait until there are items; return all. Return none at the end."""
        while not self._items and not self._ended:
            await self._changed.wait()
        taken, self._items = self._items, []
        self._change()
        return taken

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

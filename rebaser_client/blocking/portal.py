"""Runs asynchronous calls on an event loop in another thread, and waits for their results.

Invariant: if the calling thread stops waiting, for instance because of Ctrl-C, the call is cancelled on the event loop.
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

from rebaser_client.nats.errors import ClientClosedError

T = TypeVar("T")

READ_AHEAD = 256  # maximum number of items that an iteration reads ahead

_providers: dict[int, BlockingPortalProvider] = {}  # by process id, because a forked child lacks the parent's thread


class Portal:
    """A reference to the thread of this process that runs the event loop.

    The first reference starts the thread; the thread ends when the last reference is closed.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._provider = _providers.setdefault(self._pid, BlockingPortalProvider())
        self._iterations: set[Future[None]] = set()
        self._portal: BlockingPortal | None = self._provider.__enter__()

    def close(self) -> None:
        """Release the reference, and cancel the iterations that were started through it.

        A second call does nothing, nor does a call in a forked child or while the interpreter exits.
        """
        portal, self._portal = self._portal, None
        if portal is not None and self._pid == os.getpid() and not sys.is_finalizing():
            # Without this, the event loop would wait for iterations whose items may never be read.
            for iteration in tuple(self._iterations):
                iteration.cancel()
            self._provider.__exit__(None, None, None)

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or this process is a forked child, in which there is nothing to close."""
        return self._portal is None or self._pid != os.getpid()

    def start(self, call: Callable[[], Awaitable[T]]) -> "Future[T]":
        """Start `call` on the event loop. Raise `ClientClosedError` after `close` and in a forked child."""
        if self._pid != os.getpid():
            raise ClientClosedError("this client belongs to the parent process; connect again after a fork")
        if self._portal is None:
            raise ClientClosedError
        if sys.is_finalizing():  # the thread of the event loop has stopped
            raise ClientClosedError("the client cannot be used while the Python interpreter exits")
        return self._portal.start_task_soon(call)

    def start_iteration(self, call: Callable[[], Awaitable[None]]) -> "Future[None]":
        """Start `call` like `start`. If the call is still running when `close` is called, `close` cancels it."""
        future = self.start(call)
        self._iterations.add(future)
        future.add_done_callback(self._iterations.discard)
        return future

    def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run `call` on the event loop, and return its result or raise its exception."""
        return wait(self.start(call))


def wait(future: "Future[T]") -> T:
    """Wait for `future`, and return its result. If the wait is interrupted, cancel the call."""
    try:
        return future.result()
    except CancelledError:
        raise ClientClosedError("the client was closed during the call: connect again") from None
    except BaseException:
        future.cancel()  # has no effect if the call itself raised the exception
        raise


class BlockingIterator(Generic[T]):
    """An iterator over the items of an asynchronous iterator. It can be used in any thread, but only in one at a time.

    `close`, the end of a `with` block, or dropping the last reference ends the iteration on the event loop.
    """

    def __init__(self, portal: Portal, open_: Callable[[], AsyncIterator[T]]) -> None:
        self._portal = portal
        self._items: deque[T] = deque()
        self._closed = False
        ahead = self._ahead = _ReadAhead(open_)
        # The task must not refer to this object, because dropping the last reference has to end the iteration.
        self._reader = portal.start_iteration(ahead.run)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._closed:
            raise StopIteration
        if not self._items:
            self._items.extend(self._portal.call(self._ahead.take))
        if not self._items:
            if not self._closed:  # another thread may have called `close` meanwhile
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
    """An asynchronous iteration that runs in a single task, and the items that it has read ahead.

    A single task is necessary because a task that enters a cancel scope also has to exit the scope.
    """

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
        """Wait for items, and return all that have been read. Return an empty list after the end of the iteration."""
        while not self._items and not self._ended:
            await self._changed.wait()
        taken, self._items = self._items, []
        self._change()
        return taken

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

"""A flag for which one task waits."""

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any


class _Passed:
    """An awaitable that is done already: its task goes on without a switch to other tasks."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


_PASSED = _Passed()


class Signal:
    """A flag like `asyncio.Event`, but for a single waiting task. It takes a tenth of the memory, because it has no
    queue of waiting tasks. Waiting needs no coroutine."""

    __slots__ = ("_set", "_waiting")

    def __init__(self) -> None:
        self._set = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():  # it is done if its task was cancelled
            waiting.set_result(None)

    def clear(self) -> None:
        self._set = False

    def wait(self) -> Awaitable[None]:
        """Return an awaitable that is done once the flag is set. Await it at once; only one task may wait at a time."""
        if self._set:
            return _PASSED
        self._waiting = asyncio.get_running_loop().create_future()
        return self._waiting

"""A flag for which one task waits."""

import asyncio


class Signal:
    """A flag like `asyncio.Event`, but for a single waiting task. It takes a tenth of the memory, because it has no
    queue of waiting tasks."""

    __slots__ = ("_set", "_waiting")

    def __init__(self) -> None:
        self._set = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._set = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        """Return once the flag is set. Only one task may wait at a time."""
        if not self._set:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

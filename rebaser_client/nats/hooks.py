"""The callbacks of a connection. Callbacks may be added and removed while others are called."""

from collections.abc import Callable, Iterator

import anyio


class Hooks:
    """The callbacks of one event, in the order in which they were added."""

    def __init__(self) -> None:
        self._callbacks: dict[Callable[[], None], None] = {}

    def __iter__(self) -> Iterator[Callable[[], None]]:
        return iter(list(self._callbacks))

    def __len__(self) -> int:
        return len(self._callbacks)

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Add `callback`. Return a function that removes it."""
        self._callbacks[callback] = None
        return lambda: self._callbacks.pop(callback, None)

    def call(self) -> None:
        """Call all callbacks."""
        for callback in self:
            callback()

    async def call_every(self, seconds: float) -> None:
        """Call all callbacks every `seconds` seconds, until this call is cancelled."""
        while True:
            await anyio.sleep(seconds)
            self.call()

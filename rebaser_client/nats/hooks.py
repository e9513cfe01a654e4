"""The callbacks of a connection. Callbacks may be added and removed while others are called."""

from collections.abc import Callable, Iterator

import anyio

TICK = 0.5  # seconds between two ticks
MAX_EVERY = 64  # maximum number of ticks between two calls of a callback


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


class Ticks:
    """Callbacks that are called periodically, each at every n-th tick. A server has thousands of them, so those with
    the same `n` are spread over the ticks, by the time when they were added."""

    def __init__(self) -> None:
        self._count = 0
        self._rings: dict[int, list[Hooks]] = {}  # for each `n`, the callbacks of each of `n` ticks

    def __iter__(self) -> Iterator[Callable[[], None]]:
        return (callback for ring in self._rings.values() for hooks in ring for callback in hooks)

    def __len__(self) -> int:
        return sum(len(hooks) for ring in self._rings.values() for hooks in ring)

    def add(self, callback: Callable[[], None], every: int) -> Callable[[], None]:
        """Call `callback` at every tick whose distance from now is a multiple of `every` (1 to `MAX_EVERY`). Return a
        function that removes it."""
        ring = self._rings.get(every)
        if ring is None:
            ring = self._rings[every] = [Hooks() for _ in range(every)]
        return ring[self._count % every].add(callback)

    def tick(self) -> None:
        """Call the callbacks that are due at the next tick."""
        self._count += 1
        for every, ring in list(self._rings.items()):
            ring[self._count % every].call()

    async def run(self) -> None:
        """Tick every `TICK` seconds, until this call is cancelled."""
        while True:
            await anyio.sleep(TICK)
            self.tick()


class ConnectionHooks:
    """The methods of a connection that add callbacks. Each method returns a function that removes the callback."""

    def __init__(self) -> None:
        self._on_reconnect, self._on_tick, self._on_close = Hooks(), Ticks(), Hooks()

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each reconnect."""
        return self._on_reconnect.add(callback)

    def on_tick(self, callback: Callable[[], None], every: int = 1) -> Callable[[], None]:
        """Call `callback` every `TICK` seconds while the event loop runs, or `every` times as seldom (at most 64)."""
        return self._on_tick.add(callback, every)

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the connection is closed."""
        return self._on_close.add(callback)

"""Keeps what several viewers ask for, so that it is computed once for all of them.

Invariants: what is kept takes at most `room` bytes, as the callers estimate them, and each result is kept for the time
that its caller names. For one key, one computation runs at a time; those who ask meanwhile wait for it. If it fails, or
its viewer goes away, the next one who waits computes.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import anyio

T = TypeVar("T")

ROOM = 256 << 20  # bytes


class Kept:
    """Results by key. A key names all on which its result depends, for instance a position."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._entries: OrderedDict[Hashable, tuple[Any, float, int]] = OrderedDict()  # with its end, and its bytes
        self._locks: WeakValueDictionary[Hashable, anyio.Lock] = WeakValueDictionary()
        self.bytes = 0

    async def get(
        self, key: Hashable, compute: Callable[[], Awaitable[T]], size: Callable[[T], int], seconds: float = 60.0
    ) -> T:
        """Return the result for `key`; compute it unless it is kept. It is kept for `seconds`, if `size` fits."""
        lock = self._locks.setdefault(key, anyio.Lock())
        async with lock:
            self._forget_old()
            if key in self._entries:
                self._entries.move_to_end(key)
                return cast("T", self._entries[key][0])
            found = await compute()
            self._keep(key, found, seconds, size(found))
            return found

    def _keep(self, key: Hashable, found: object, seconds: float, size: int) -> None:
        if size > self._room:
            return
        self._entries[key] = found, time.monotonic() + seconds, size
        self.bytes += size
        while self.bytes > self._room:
            self._drop(next(iter(self._entries)))

    def _forget_old(self) -> None:
        now = time.monotonic()
        for key in [key for key, (_, end, _) in self._entries.items() if end <= now]:
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        self.bytes -= self._entries.pop(key)[2]

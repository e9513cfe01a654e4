"""Limits how many requests of a client wait at the same time for the confirmation that they are stored.

Invariant: callers are admitted in the order of their calls. A stored request no longer counts towards the limit, so a
change set whose owner does not answer does not delay other change sets.

`Backpressure` handles a different limit: the servers limit how many requests are stored, but not decided yet.
"""

import asyncio
from collections import deque

import anyio


class InFlight:
    """Admits up to `limit` requests at a time. Each caller that was admitted has to call `release` once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()

    def enter_now(self) -> bool:
        """Admit the caller if fewer than `limit` requests are admitted. Return whether the caller was admitted."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def enter(self, deadline: float) -> None:
        """Wait until the caller is admitted. Raise `TimeoutError` at `deadline` (loop time)."""
        admission = self.ask()
        try:
            with anyio.fail_after(deadline - self._loop.time()):
                await admission
        except BaseException:
            self.withdraw(admission)
            raise

    def ask(self) -> asyncio.Future[None]:
        """Return a future that completes when the caller is admitted."""
        admission: asyncio.Future[None] = self._loop.create_future()
        if self.enter_now():
            admission.set_result(None)
        else:
            self._waiting.append(admission)
        return admission

    def withdraw(self, admission: asyncio.Future[None]) -> None:
        """Cancel the future that `ask` returned. If the caller was already admitted, release its place."""
        if admission.done() and not admission.cancelled():
            self.release()
        else:
            admission.cancel()
            if admission in self._waiting:
                self._waiting.remove(admission)

    def release(self) -> None:
        """Admit the next caller, because a request was stored or given up."""
        while self._waiting:
            admission = self._waiting.popleft()
            if not admission.done():
                admission.set_result(None)
                return
        self._free += 1

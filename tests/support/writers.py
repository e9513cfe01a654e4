"""Tasks that write while servers start and stop."""

import anyio

from rebaser_client import RebaserClient, Set
from rebaser_core.messages import EnqueueUpdatesResponse

ENOUGH = 40  # replies that a test awaits before and after each event


class Writers:
    """Tasks that send numbered requests to one change set, and await each reply, until they are stopped."""

    def __init__(self, client: RebaserClient, change_set: str) -> None:
        self.client = client
        self.change_set = change_set
        self.replies: list[EnqueueUpdatesResponse] = []
        self.last: dict[str, int] = {}
        self.stopped = False
        self.sent = 0
        self._more = anyio.Event()

    async def run(self, name: str) -> None:
        number = 0
        while not self.stopped:
            number += 1
            self.replies.append(await self.send(Set(f"n/{name}", number)))
            self.last[f"n/{name}"] = number
            more, self._more = self._more, anyio.Event()
            more.set()

    async def send(self, update: Set) -> EnqueueUpdatesResponse:
        self.sent += 1
        return await self.client.enqueue_updates_with_reply("takeover", self.change_set, [update], timeout=400)

    async def answered(self, count: int) -> None:
        """Return when `count` more replies have arrived."""
        until = len(self.replies) + count
        with anyio.fail_after(240):
            while len(self.replies) < until:
                await self._more.wait()

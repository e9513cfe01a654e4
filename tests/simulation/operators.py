"""The simulated operator, who redrives dead letters, and the requests that are poison."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio.lowlevel

from rebaser_client import RebaserClient
from rebaser_core.errors import RebaserError
from tests.simulation.left import nothing_left


@dataclass
class Poison:
    """Requests that kill or hang the process that reads them: how often each will still do so, by id. `strike` kills or
    hangs the process."""

    strike: Callable[[str], None]
    kills: bool
    bites: dict[str, int] = field(default_factory=dict)

    async def taste(self, request_id: str) -> None:
        """Kill or hang the process that is about to read the request, if the request is poison."""
        left = self.bites.get(request_id, 0)
        if left:
            self.bites[request_id] = left - 1
            self.strike(request_id)
            await anyio.lowlevel.checkpoint()  # a dead process never returns from here, a paused one later


@dataclass
class Operator:
    """Looks through the dead letters at random times, redrives some, and may have removed the poison before."""

    name: str
    rng: random.Random
    poison: Poison
    tell: Callable[[str, str], None]
    rounds: int = 4

    async def run(self, url: str) -> None:
        async with RebaserClient.connect(url) as client:
            while self.rounds:
                self.rounds -= 1
                await anyio.sleep(self.rng.random() * 6)
                try:
                    await self._look_through(client)
                except RebaserError as error:
                    self.tell(self.name, f"redriving: {type(error).__name__} {error.code}")
            await nothing_left(client)

    async def _look_through(self, client: RebaserClient) -> None:
        async for letter in client.dead_letters.find():
            if self.rng.random() < 0.7:
                if self.rng.random() < 0.5:
                    self.poison.bites.pop(letter.request_id, None)
                self.tell(self.name, f"redrives {letter.request_id} of {letter.key}")
                await client.dead_letters.redrive(letter)

"""Tests removals during large updates: when results arrive, a removed value may exist again, or its row may have
another value.

Each round changes the input of all derived values, waits until Spark has the update, and edits the values that are
being computed.
"""

import random
from typing import Any

import anyio

from rebaser_client import RebaserClient
from tests.driver.edits import Shape
from tests.driver.installation import Installation
from tests.driver.story import Plan, Story


class Removals(Story):
    """A graph of 257 to 2,000 derived values that all depend on one input."""

    @staticmethod
    def drawn(rng: random.Random) -> Plan:
        derived = round(257 * (2000 / 257) ** rng.random())
        shape = Shape(round(derived / 0.6), common=1.0, near=3, deep=rng.choice([0.0, 0.05]))
        settings: dict[str, Any] = {
            "checkpoint_bytes": rng.choice([20_000, 4 * 1024 * 1024]),
            "batch_max_requests": rng.choice([1, 32]),
        }
        hesitation = rng.choice([0.0, 0.1, 0.3])
        servers = 1
        return Plan(
            (shape,), rng.randint(1, 2), rng.randint(1, 5), 0.05, hesitation, servers, False, settings, clients=1
        )

    async def _phase(self, number: int, installation: Installation, clients: list[RebaserClient]) -> None:
        [(one, watched)] = self._clients
        rng = self._rng
        for _ in range(2):
            started = self._engine.started
            await one.send(clients[0], one.editor.touching_all(), None)
            with anyio.move_on_after(2):
                await started.wait()
            await anyio.sleep(rng.random() * rng.choice([0.0, 0.02, 0.15]))
            for _ in range(self.plan.bursts):
                await one.send(clients[0], one.editor.removing(), rng.choice([None, None, "applied"]))
        await self._settle(number, clients, watched)

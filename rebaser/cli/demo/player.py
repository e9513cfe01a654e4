"""Plays the demo: sends each edit, waits until derived values are up to date, checks and shows them.

Invariant: after every step, every value is compared with the one that `check` computes. A single difference makes the
demo fail.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import anyio
from anyio import to_thread

from rebaser.cli.demo import model
from rebaser.cli.demo.check import Facts, differences
from rebaser.cli.demo.environment import Environment
from rebaser.cli.demo.screen import Screen, StepResult
from rebaser.cli.demo.story import edits
from rebaser.cli.errors import CommandFailed
from rebaser_client import RebaserClient
from rebaser_core.messages import Success
from rebaser_core.updates import Update

WORKSPACE = "demo"
TIME_LIMIT = 600.0  # seconds for the whole demo, enough for a slow machine
REPLY_TIMEOUT = 60.0


class Player:
    """Sends the edits of one run and checks the results."""

    def __init__(
        self, client: RebaserClient, screen: Screen, warm: anyio.Event, environment: Environment, facts: Facts
    ) -> None:
        self._client = client
        self._screen = screen
        self._warm = warm
        self._base = environment
        self._facts = facts
        self.change_set = f"run-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        self._checked = 0
        self._differences: list[str] = []

    async def play(self) -> bool:
        """Play all steps. Return whether every value was right."""
        was_warm = self._warm.is_set()
        before = await self._do(model.all_updates(self._base))
        await self._check("the environment as it is", before, self._base)
        self._screen.first(before, self._base, was_warm=was_warm)
        for number, edit in enumerate(edits(self._base), 2):
            after = await self._do(edit.updates)
            await self._check(edit.title, after, edit.after)
            self._screen.step(number, edit, before, after)
            before = after
        self._screen.verdict(self._checked, self._differences)
        return not self._differences

    async def _do(self, updates: Sequence[Update]) -> StepResult:
        client, key = self._client, (WORKSPACE, self.change_set)
        start = time.perf_counter()
        response = await client.enqueue_updates_with_reply(*key, updates, wait="applied", timeout=REPLY_TIMEOUT)
        applied = time.perf_counter() - start
        if not isinstance(response.status, Success):
            raise CommandFailed(f"the demo's edit was not applied: {response.status.message}")
        await client.wait_covered(*key, response.status.commit, timeout=TIME_LIMIT)
        derived = time.perf_counter() - start
        return StepResult(len(updates), await client.values(*key), applied, derived)

    async def _check(self, title: str, step: StepResult, environment: Environment) -> None:
        """Compare with independently read facts. Only the edits of the story are taken from `environment`."""
        changed = {name: dist for name, dist in environment.items() if dist != self._base[name]}
        facts = self._facts.edited(
            {name: dist.size for name, dist in changed.items()},
            {name: set(dist.requires) for name, dist in changed.items()},
        )
        self._checked += len(step.values)
        # In a thread: the server runs on this event loop.
        lines = await to_thread.run_sync(differences, step.values, facts)
        self._differences += [f"{title}: {line}" for line in lines]

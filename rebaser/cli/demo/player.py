"""Plays the demo: sends each edit, waits until derived values are up to date, checks all values, and shows some of
them.

Invariant: after every step, every value is compared with the value that `check` computes. A single difference makes the
demo fail.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import anyio
from anyio import to_thread

from rebaser.cli.demo import model
from rebaser.cli.demo.branch_scene import BranchScene
from rebaser.cli.demo.check import Facts, differences
from rebaser.cli.demo.environment import Environment
from rebaser.cli.demo.screen import Screen, StepResult, shown
from rebaser.cli.demo.story import edits, most_required
from rebaser.cli.errors import CommandFailed
from rebaser_client import RebaserClient
from rebaser_core.messages import Success
from rebaser_core.updates import Update
from rebaser_core.values import Value

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
        """Play all steps. Return whether every value was correct."""
        was_warm = self._warm.is_set()
        environment = self._base
        before = await self._do(model.all_updates(self._base))
        await self._compare("the environment as it is", before.values, self._base)
        self._screen.first(before, self._base, was_warm=was_warm)
        for number, edit in enumerate(edits(self._base), 2):
            after = await self._do(edit.updates)
            await self._compare(edit.title, after.values, edit.after)
            self._screen.step(number, edit, before, after)
            before, environment = after, edit.after
        if (name := most_required(environment)) is not None:
            await self._branch(len(edits(self._base)) + 2, environment, name)
        self._screen.verdict(self._checked, self._differences)
        return not self._differences

    async def _branch(self, number: int, environment: Environment, name: str) -> None:
        """Play the scene on a branch, with the distribution `name`."""

        async def check(title: str, change_set: str, wanted: Environment) -> dict[str, str]:
            values = await self._client.values(WORKSPACE, change_set)
            await self._compare(title, values, wanted)
            return {id_: shown(values, id_) for id_ in ("env/size", f"dist/{name}/total")}

        scene = BranchScene(self._client, WORKSPACE, self.change_set, environment, name, check, TIME_LIMIT)
        self._screen.branch(number, await scene.play())

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

    async def _compare(self, title: str, values: Mapping[str, Value], environment: Environment) -> None:
        """Compare `values` with facts that were read independently. Only the edits of the demo are taken from
        `environment`."""
        changed = {name: dist for name, dist in environment.items() if dist != self._base[name]}
        facts = self._facts.edited(
            {name: dist.size for name, dist in changed.items()},
            {name: set(dist.requires) for name, dist in changed.items()},
        )
        self._checked += len(values)
        # Compute in a thread, because the server runs on this event loop.
        lines = await to_thread.run_sync(differences, values, facts)
        self._differences += [f"{title}: {line}" for line in lines]

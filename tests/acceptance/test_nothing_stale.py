"""No derived value stays stale: several tasks make random edits while DVUs run and servers die and come back.

The seed of the run repeats the edits, but not the moments at which servers die.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import Commit, RebaserClient
from rebaser_client.client import Wait
from rebaser_core.commit import Computed, Kind
from rebaser_core.messages import EnqueueUpdatesResponse
from rebaser_core.updates import Update
from rebaser_core.values import Value, canonical
from tests.support.draws import drawing
from tests.support.editors import EDITORS, Edits
from tests.support.fleet import ServerProcess, servers
from tests.support.graphs import expected
from tests.support.history import check_history, check_replies, commit_of

pytestmark = [pytest.mark.anyio, pytest.mark.spark]

WS, CS = "stale", "main"


class Run:
    """Clients that edit one change set, and servers that are killed."""

    def __init__(self, client: RebaserClient, url: str, group: anyio.abc.TaskGroup, settings: dict[str, Any]) -> None:
        self.client = client
        self.replies: list[EnqueueUpdatesResponse] = []
        self.commits: list[Commit] = []
        self.servers: dict[str, ServerProcess] = {}
        self._url = url
        self._group = group
        self._settings = settings
        self._more = anyio.Event()

    async def follow(self) -> None:
        """Fold all commits when they arrive, because those below a checkpoint are purged later."""
        async for commit in self.client.watch(WS, CS, after=0):
            self.commits.append(commit)
            self._changed()

    async def edit(self, edits: Edits, count: int) -> None:
        await self._send(edits.trouble(), "derived")
        for number in range(count):
            if number == count // 2:
                await self._send(edits.mend(), "applied")
            await self._send(edits.batch(), "derived" if edits.random.random() < 1 / 6 else "applied")

    async def _send(self, updates: list[Update], wait: Wait) -> None:
        reply = await self.client.enqueue_updates_with_reply(WS, CS, updates, wait=wait, timeout=150)
        self.replies.append(reply)
        self._changed()

    async def start(self, name: str) -> None:
        self.servers[name] = await self._group.start(self._host, name)

    async def _host(self, name: str, *, task_status: anyio.abc.TaskStatus[ServerProcess]) -> None:
        async with servers(self._url, name, **self._settings) as [server]:
            task_status.started(server)
            await server.process.wait()

    async def kill_owner(self, after: int, *, replaced: bool) -> None:
        """Kill the owner of the change set after `after` more replies, and start it again: at once, or when it was
        `replaced` by the other server."""
        await self.until(lambda: len(self.replies) >= after)
        await self.until(lambda: bool(self.commits))
        name = self.commits[-1].owner
        await self.servers[name].kill()
        if replaced:
            await self.until(lambda: self.commits[-1].owner != name)
        await self.start(name)

    async def until(self, holds: Any) -> None:
        with anyio.fail_after(200):
            while not holds():
                await self._more.wait()

    def _changed(self) -> None:
        more, self._more = self._more, anyio.Event()
        more.set()


@asynccontextmanager
async def running(nats: EmbeddedNats, spark_url: str) -> AsyncIterator[Run]:
    settings: dict[str, Any] = {
        "spark": spark_url,
        "ack_wait": 2,
        "quiescent_period": 1,
        "checkpoint_bytes": 4096,  # small, so that a new owner loads a checkpoint and folds the log after it
    }
    async with (
        RebaserClient.connect(nats.url) as client,
        anyio.create_task_group() as group,
    ):
        run = Run(client, nats.url, group, settings)
        async with anyio.create_task_group() as starting:
            starting.start_soon(run.start, "left")
            starting.start_soon(run.start, "right")
        group.start_soon(run.follow)
        yield run
        group.cancel_scope.cancel()


async def check_at_rest(run: Run, fresh: str) -> None:
    """Check that values, states and faults are those of a full recompute, by Rebaser and by a separate evaluator."""
    client = run.client
    last = max(commit_of(reply) for reply in run.replies)
    await client.wait_covered(WS, CS, last, timeout=150)
    state = await client.state(WS, CS)
    assert not state.owes
    updates = list(state.updates())
    await client.enqueue_updates_with_reply(WS, fresh, updates, wait="derived", timeout=150)
    found = typed(state.values())
    assert found == typed(await client.values(WS, fresh))
    assert found == typed(expected(updates))
    await run.until(lambda: run.commits[-1].sequence >= state.last)
    check_history(run.commits)
    check_replies(run.commits, run.replies)


def typed(values: dict[str, Value]) -> dict[str, tuple[bytes, Any, Any]]:
    """Return the values in a form in which equal means identical: `1`, `1.0` and `True` differ."""
    return {id_: (canonical(value.value), value.state, value.error) for id_, value in values.items()}


async def chaos(nats: EmbeddedNats, spark_url: str, edits: int, kills: int, rounds: int) -> None:
    """Run `rounds` in which each editor sends `edits` requests. Meanwhile, owners are killed, `kills` in total."""
    seed = drawing("edits while servers die").randrange(10**6)
    async with running(nats, spark_url) as run:
        for number in range(rounds):
            before = len(run.replies)
            async with anyio.create_task_group() as group:
                for editor in range(EDITORS):
                    group.start_soon(run.edit, Edits(seed * 1000 + number * 10 + editor, editor), edits)
                for kill in range(kills):
                    await run.kill_owner(before + (kill + 1) * EDITORS * edits // (kills + 1), replaced=kill == 0)
            await check_at_rest(run, f"fresh-{number}")
        updates = [commit for commit in run.commits if commit.kind is Kind.DVU]
        assert {commit.owner for commit in updates} == {"left", "right"}, "nobody took over"
        faults = {
            one.fault.code for commit in updates for one in commit.delta if isinstance(one, Computed) and one.fault
        }
        assert {"cycle", "missing_input", "failed_input"} <= faults


async def test_nothing_is_stale_at_rest_after_random_edits_and_killed_servers(
    own_nats: EmbeddedNats, spark_url: str
) -> None:
    await chaos(own_nats, spark_url, edits=40, kills=2, rounds=1)


@pytest.mark.long
@pytest.mark.timeout(3000)
async def test_nothing_is_stale_after_many_rounds(own_nats: EmbeddedNats, spark_url: str) -> None:
    await chaos(own_nats, spark_url, edits=150, kills=4, rounds=10)

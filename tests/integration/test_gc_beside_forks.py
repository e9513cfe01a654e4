"""Garbage is collected every moment, with a grace period of seconds, beside forks, applies and deletes, while servers
are killed. All values stay what plain dictionaries say, for readers and for servers that load them anew."""

import random
from collections import Counter
from typing import Any

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import RebaserClient, Set
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.blobs import open_collectable
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.support.collected_server import FRESH_FOR
from tests.support.draws import drawing
from tests.support.fleet import NO_SPARK, launched
from tests.support.garbage import Collectors

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

GRACE = 2.0  # seconds; more than FRESH_FOR, so that what a commit may still name is not deleted
ENOUGH = 600.0  # seconds; a bound against hanging
ERASED, KILLED = 60, 6  # how much has to happen until the test ends
NAMES = 30  # forks of each target at most; most live for longer than two grace periods
SETTINGS: dict[str, Any] = {
    "module": "tests.support.collected_server", "spark": NO_SPARK, "ack_wait": 1, "quiescent_period": 0.3,
    "checkpoint_bytes": 1024, "sweep_interval": 1, "history_for": 1,
}  # fmt: skip


class Editor:
    """Edits, forks, applies and deletes change sets of its own, and knows in `books` what each contains."""

    def __init__(self, client: RebaserClient, main: str, rng: random.Random) -> None:
        self.books: dict[str, dict[str, object]] = {main: {}}
        self._client = client
        self._main = main
        self._rng = rng

    async def work(self, enough: anyio.Event) -> None:
        number = 0
        while not enough.is_set():
            number += 1
            main, name, books = self._main, f"{self._main}-{self._rng.randrange(NAMES)}", self.books
            for id_ in range(3):
                await self.edit(main, str(id_), number)
            if name in books:
                await self._client.delete_change_set("ws", name, timeout=ENOUGH)
            await self._client.create_branch("ws", name, main, follow="manual", timeout=ENOUGH)
            books[name] = dict(books[main])
            if self._rng.random() < 0.5:
                continue  # only its first commit says what it needs
            await self.edit(name, name, number)
            if self._rng.random() < 0.5:
                await self._client.apply("ws", name, timeout=ENOUGH)
                books[main][name] = books[name][name]
            await self.check(self._client, self._rng.choice([*books]))

    async def edit(self, name: str, id_: str, number: int) -> None:
        self.books[name][id_] = value = f"{name} {id_} {number}"
        await self._client.enqueue_updates_with_reply("ws", name, [Set(id_, value)], timeout=ENOUGH)

    async def check(self, client: RebaserClient, name: str) -> None:
        found = {id_: value.value for id_, value in (await client.values("ws", name)).items()}
        assert found == self.books[name], name


async def test_what_is_needed_stays_while_runs_collect_and_servers_die(
    own_nats: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebaser_core.blobs.garbage.FRESH_FOR", FRESH_FOR)
    rng, counts, enough, url = (
        random.Random(drawing("gc beside forks").random()),
        Counter[str](),
        anyio.Event(),
        own_nats.url,
    )

    async def keep_running(name: str) -> None:
        """Start a server, kill it a little later, and start it again."""
        while True:
            async with launched(url, name, **SETTINGS) as server:
                await server.wait_for("server_ready")
                await anyio.sleep(rng.uniform(2, 5))
                await server.kill()
                counts["killed"] += 1

    async def collect(collectors: Collectors) -> None:
        while not enough.is_set():
            run = await collectors.run(GRACE)
            counts.update(trashed=run.trashed, erased=run.erased, restored=run.restored)
            if counts["erased"] >= ERASED and counts["killed"] >= KILLED:
                enough.set()
            await anyio.sleep(0.1)

    async with Connection.connect(url) as connection, RebaserClient.connect(url) as client:
        js, subjects = JetStream(connection), Subjects("")
        await ensure_topology(js, subjects, TopologyOptions())
        collectors = Collectors(js, subjects, open_collectable(None, js, subjects.blobs_bucket))
        editors = [Editor(client, f"main{number}", random.Random(rng.random())) for number in range(4)]
        with anyio.fail_after(ENOUGH):
            async with anyio.create_task_group() as group:
                group.start_soon(keep_running, "a")
                group.start_soon(keep_running, "b")
                async with anyio.create_task_group() as working:
                    working.start_soon(collect, collectors)
                    for editor in editors:
                        working.start_soon(editor.work, enough)
                group.cancel_scope.cancel()
        assert counts["trashed"] >= counts["erased"] >= ERASED
        await collectors.rest()  # erases at once what no message needs; no server runs that could be about to need it
        async with RebaserClient.connect(url) as fresh:
            for editor in editors:
                for name in editor.books:
                    await editor.check(fresh, name)
        async with launched(url, "c", **SETTINGS):
            for editor in editors:
                for name in editor.books:
                    if (info := await client.branch("ws", name)) is not None and info.status == "open":
                        await editor.edit(name, "last", 0)
                        await editor.check(client, name)

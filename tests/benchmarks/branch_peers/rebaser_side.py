"""Rebaser, with nats-server, a server and a client in a process each. There is no Spark, and no value is derived."""

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set, UnresolvedConflicts, Update
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.subjects import Subjects
from tests.benchmarks.apply_size import ready, server
from tests.benchmarks.branch_peers.workload import Edits

WORKSPACE = "peers"
BATCH = 5000  # values per request while main is filled
TIMEOUT = 600.0


class Rebaser:
    """The side of Rebaser. `parts` has the milliseconds of the requests of which a merge consists, by name."""

    def __init__(self, url: str, client: RebaserClient, js: JetStream) -> None:
        self._url = url
        self._client = client
        self._js = js
        self.version = metadata.version("rebaser")
        self.parts: dict[str, float] = {}

    @classmethod
    @asynccontextmanager
    async def running(cls, folder: Path) -> AsyncIterator["Rebaser"]:
        async with embedded_nats(folder) as nats:
            with server(nats.url):
                async with RebaserClient.connect(nats.url) as client, Connection.connect(nats.url) as connection:
                    await ready(client)
                    yield cls(nats.url, client, JetStream(connection))

    async def load(self, count: int) -> None:
        for start in range(0, count, BATCH):
            await self._send("main", [Set(f"v/{number}", number) for number in range(start, min(start + BATCH, count))])

    async def branch(self, name: str) -> None:
        # A branch that follows its target would find conflicts before the measured step.
        await self._client.create_branch(WORKSPACE, name, follow="manual", timeout=TIMEOUT)

    async def edit(self, name: str, edits: Edits) -> None:
        await self._send(name, [Set(f"v/{number}", value) for number, value in edits.items()])

    async def diff(self, name: str) -> int:
        return len((await self._client.changes(WORKSPACE, name)).changes)

    async def merge(self, name: str) -> int:
        began = time.perf_counter()
        done = await self._client.rebase(WORKSPACE, name, timeout=TIMEOUT)
        self.parts = {"rebase": 1000 * (time.perf_counter() - began)}
        if done.conflicts:
            return done.conflicts
        began = time.perf_counter()
        try:
            await self._client.apply(WORKSPACE, name, allow_stale=True, timeout=TIMEOUT)
        except UnresolvedConflicts as error:
            return error.count
        self.parts["apply"] = 1000 * (time.perf_counter() - began)
        return 0

    async def conflicts(self, name: str) -> int:
        return len((await self._client.conflicts(WORKSPACE, name)).conflicts)

    async def revert(self) -> None:
        await self._client.undo(WORKSPACE, "main", timeout=TIMEOUT)

    async def position(self) -> Any:
        info = await self._client.branch(WORKSPACE, "main")
        assert info is not None
        return info.sequence

    async def read(self, number: int, at: Any) -> int:
        values = await self._client.values(WORKSPACE, "main", f"v/{number}", at=at)
        return int(values[f"v/{number}"].value)  # type: ignore[arg-type] # a number

    async def blame(self, number: int) -> object:
        return await self._client.blame(WORKSPACE, "main", f"v/{number}")

    async def log(self, number: int) -> int:
        return len([entry async for entry in self._client.log(WORKSPACE, "main", f"v/{number}")])

    async def collect(self) -> None:
        """Run the command, including the start of its Spark."""
        command = [sys.executable, "-m", "rebaser", "gc", "--grace", "1h", "--nats", self._url]
        await anyio.run_process(command)

    async def size(self) -> int:
        subjects = Subjects()
        streams = subjects.requests_stream, subjects.commits_stream, f"OBJ_{subjects.blobs_bucket}"
        return sum([(await self._js.stream_info(stream)).bytes for stream in streams])

    async def _send(self, name: str, updates: list[Update]) -> None:
        await self._client.enqueue_updates_with_reply(WORKSPACE, name, updates, timeout=TIMEOUT)

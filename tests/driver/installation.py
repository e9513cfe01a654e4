"""An installation with real NATS and Spark, and with servers that run in this process beside the clients, on their own
streams."""

import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup
from structlog.typing import EventDict

from rebaser.dvu.spark.engine import Engine
from rebaser.server import Server
from rebaser.settings import Settings
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.support.contexts import context_of


class Hesitant:
    """An engine that delays each job before and after Spark computes it, so that more happens meanwhile."""

    def __init__(self, engine: Engine, rng: random.Random, most: float) -> None:
        self._engine = engine
        self._rng = rng
        self._most = most
        self.started = anyio.Event()  # set when a job starts, and then replaced

    async def evaluate(self, packets: Sequence[bytes], **given: Any) -> Any:
        started, self.started = self.started, anyio.Event()
        started.set()
        await anyio.sleep(self._most * self._rng.random() ** 2)
        found = await self._engine.evaluate(packets, **given)
        await anyio.sleep(self._most * self._rng.random() ** 2)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class Installation:
    """Servers for the change sets of `subjects`, which tests stop and start again."""

    def __init__(
        self, js: JetStream, subjects: Subjects, engine: object, group: TaskGroup, settings: dict[str, Any]
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._engine = engine
        self._group = group
        self._settings = settings
        self._running: dict[str, tuple[anyio.CancelScope, anyio.Event]] = {}

    async def start(self, name: str) -> None:
        settings = Settings(server_id=name, **self._settings)
        server = Server(context_of(self._js, self._subjects, settings, self._engine))
        ready, ended, scope = anyio.Event(), anyio.Event(), anyio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    await server.run(ready.set)
            finally:
                ended.set()

        self._running[name] = scope, ended
        self._group.start_soon(run)
        await ready.wait()

    async def stop(self, name: str) -> None:
        """Stop the server as on SIGTERM."""
        scope, ended = self._running.pop(name)
        scope.cancel()
        await ended.wait()

    async def restart(self, name: str) -> None:
        await self.stop(name)
        await self.start(name)

    async def stop_all(self) -> None:
        async with anyio.create_task_group() as group:
            for name in list(self._running):
                group.start_soon(partial(self.stop, name))


@asynccontextmanager
async def installed(
    nats_url: str, prefix: str, engine: object, names: Sequence[str], **settings: Any
) -> AsyncIterator[Installation]:
    """Run the servers `names`, and delete their streams afterwards."""
    subjects = Subjects(prefix)
    async with Connection.connect(nats_url, name="servers") as connection:
        js = JetStream(connection)
        await ensure_topology(js, subjects, TopologyOptions(durability="memory"))
        try:
            async with anyio.create_task_group() as group:
                installation = Installation(js, subjects, engine, group, settings)
                for name in names:
                    await installation.start(name)
                yield installation
                await installation.stop_all()
        finally:
            with anyio.CancelScope(shield=True):
                streams = (
                    *(subjects.requests_stream, subjects.tasks_stream, subjects.commits_stream, subjects.dlq_stream),
                    f"OBJ_{subjects.blobs_bucket}",
                )
                for name in streams:
                    await js.call(f"STREAM.DELETE.{name}")


@contextmanager
def heard(quiet: bool = True) -> Iterator[list[EventDict]]:
    """Collect the log events of level error and above inside the `with` block. With `quiet`, no event is printed."""
    found: list[EventDict] = []

    def note(_: object, method: str, entry: EventDict) -> EventDict:
        if method in ("error", "exception", "critical"):
            found.append(dict(entry))
        if quiet:
            raise structlog.DropEvent
        return entry

    processors = structlog.get_config()["processors"]
    processors.insert(0, note)
    try:
        yield found
    finally:
        processors.remove(note)

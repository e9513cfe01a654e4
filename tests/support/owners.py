"""Runs owners in this process, on a real NATS server, with an engine that computes in this process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser.server import Server
from rebaser.settings import Settings
from rebaser_client import Derive
from rebaser_client.jetstream import JetStream
from rebaser_core.errors import DvuError
from rebaser_core.streams.subjects import Subjects
from tests.support.contexts import context_of

DOUBLE = Derive("double", "sum", {"of": ["a", "a"]})


class Death(BaseException):
    """Ends the owner like a crash: nothing is cleaned up."""


class Engine:
    """An engine that computes in this process, but not before `go` is set. It sets `asked` at each call."""

    state = "ready"
    load = ((0, 0), (0, 0))
    functions: dict[str, str] = {}  # noqa: RUF012 - nothing is added
    tags: dict[str, str] = {}  # noqa: RUF012 - nothing is added

    def __init__(self) -> None:
        self.go = anyio.Event()
        self.asked = anyio.Event()
        self.fails = False

    async def available(self) -> None:
        return None

    async def evaluate(self, packets: Sequence[bytes], **_: object) -> list[list[bytes]]:
        self.asked.set()
        await self.go.wait()
        if self.fails:
            raise DvuError("no")
        return [evaluate_packet(packet) for packet in packets]

    async def share(self, _: object) -> None:
        """Return None: structures can be stored nowhere, so they are sent with their packets."""


@asynccontextmanager
async def serving(
    js: JetStream, subjects: Subjects, engine: object, *, traces: Any = None, **settings: Any
) -> AsyncIterator[Server]:
    given = Settings(server_id="test", **{"quiescent_period": 600} | settings)
    server = Server(replace(context_of(js, subjects, given, engine), traces=traces))
    ready = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(server.run, ready.set))
        with anyio.fail_after(60):
            await ready.wait()
        yield server
        group.cancel_scope.cancel()

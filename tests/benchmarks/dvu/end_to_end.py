"""Measures the same edits through a real server: from the reply, when the commit is durable, until the commit is
covered.

A client loads the graph in large requests, and then edits it. `ms` is the time that the client sees. `empty` is the
same time for a change set of two values in the same server, measured in between. At the end, the client reads and
checks all values.
"""

import math
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import anyio

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient
from rebaser_core.messages import Success
from rebaser_core.updates import Update
from tests.benchmarks.dvu.loaded import Model, check, medians, updates, with_and_without
from tests.benchmarks.requests import process, wait_for_server

IN_A_REQUEST = 20_000  # updates per request while a graph is loaded
MOST_EDITED = 100_000  # maximum values of an edit, because it has to fit into one request
PATIENCE = 900.0  # seconds
WORKSPACE = "bench"


@asynccontextmanager
async def system() -> AsyncIterator[RebaserClient]:
    """Yield a client of a server in a process of its own, with an embedded Spark that is warm."""
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats:
            serve = ("-m", "rebaser", "serve", "--nats", nats.url, "--quiescent-period", "3600")
            settings = {"REBASER_LOG_LEVEL": "warning", "REBASER_SCRATCH": str(Path(folder) / "spark")}
            with process(*serve, **settings):
                await wait_for_server(nats.url, True)
                async with RebaserClient.connect(nats.url) as client:
                    yield client


class Remote:
    """A model in a change set of its own on a server."""

    def __init__(self, client: RebaserClient, shape: str, size: int, *, gated: bool = False) -> None:
        self.model = Model(shape, size, gated=gated)
        self._client = client
        self._name = f"{shape}-{size}-{gated}-{os.urandom(4).hex()}"

    async def send(self, some: Iterable[Update]) -> int:
        """Send updates, and return the log sequence of their commit."""
        reply = await self._client.enqueue_updates_with_reply(WORKSPACE, self._name, some, timeout=PATIENCE)
        assert isinstance(reply.status, Success)
        return reply.status.commit

    async def covered(self, commit: int) -> None:
        await self._client.wait_covered(WORKSPACE, self._name, commit, timeout=PATIENCE)

    async def load(self) -> float:
        """Send the whole model. Return the seconds until everything is stored and derived."""
        started = time.perf_counter()
        rest = updates(self.model.work)
        commit = 0
        while some := list(islice(rest, IN_A_REQUEST)):
            commit = await self.send(some)
        await self.covered(commit)
        return time.perf_counter() - started

    async def edit(self, which: str) -> dict[str, float]:
        """Make an edit. Return the milliseconds from its commit until it is covered, and those of the request
        before."""
        edit = self.model.edit(which)
        times = [time.perf_counter()]
        commit = await self.send(edit)
        times.append(time.perf_counter())
        await self.covered(commit)
        times.append(time.perf_counter())
        return {"ms": 1000 * (times[2] - times[1]), "request": 1000 * (times[1] - times[0])}

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Follow the log inside the `with` block, as a client that edits repeatedly does."""
        async with anyio.create_task_group() as group:
            wait = partial(self._client.wait_covered, timeout=math.inf)
            group.start_soon(wait, WORKSPACE, self._name, 2**62)
            yield
            group.cancel_scope.cancel()

    async def check(self) -> None:
        check(await self._client.state(WORKSPACE, self._name), self.model)


async def measure(
    client: RebaserClient, shape: str, size: int, runs: int, *, edits: Sequence[str], gated: bool = False
) -> list[dict[str, Any]]:
    """Return medians of each edit. Edits that do not fit into one request are left out."""
    remote, empty = Remote(client, shape, size, gated=gated), Remote(client, "chain", 2)
    load = await remote.load()
    await empty.load()
    found = []
    async with remote.followed(), empty.followed():
        for which in with_and_without(edits, gated=gated):
            count = len(remote.model.edited(which))
            if not 0 < count <= MOST_EDITED:
                continue
            taken, floor = [], []
            for _ in range(runs + 1):  # the first run of each is not counted
                floor.append(await empty.edit("all"))
                taken.append(await remote.edit(which))
            found.append(
                {
                    "part": "end-to-end",
                    "shape": shape,
                    "size": size,
                    "edit": which,
                    "edited": count,
                    "load_s": round(load, 2),
                }
                | medians(taken[1:])
                | {"empty": medians(floor[1:])["ms"]}
            )
    await remote.check()
    return found

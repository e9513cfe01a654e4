"""Sends random requests to branches while servers and NATS die, and compares the results with plain dictionaries.

`python -m tests.chaos.branches --seed 7 --seconds 60`: each author sends one request after the other. The first author
is alone in a workspace; the others share one, and edit, rebase, apply and delete what another is about to use. The
model (`tests.support.branches`), which shares no code with the product, decides each request again, in the order of the
logs. Each answer must be that of the model. Each change set must have the state of its book in the model: definitions,
values, status, base, changes and conflicts, now and at older positions.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, RequestRejected, RequestTimeout, Set, Update
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log.branches import BranchConflict
from rebaser_core.errors import RebaserError, TransientError
from rebaser_core.messages import EnqueueUpdatesResponse
from rebaser_core.streams.topology import TopologyOptions
from tests.chaos.branch_comparison import Comparison
from tests.chaos.branch_ledger import Differs, Ledger
from tests.chaos.branch_requests import Asked, Requests
from tests.chaos.nemeses import Nemesis
from tests.chaos.system import ENOUGH, SUBJECTS, installation
from tests.support.owners import Engine, serving

T = TypeVar("T")
FAULTS = ("kill", "term", "pause", "nats")
SETTINGS = {
    "checkpoint_bytes": (1024, 2048, 4_194_304),
    "batch_max_requests": (1, 32),
    "quiescent_period": (0.2, 1, 10),
}


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Call until there is no error that another try may not have, such as when NATS is away."""
    while True:
        try:
            return await call()
        except RequestTimeout:
            raise
        except TransientError:
            await anyio.sleep(0.1)


class Sender(RebaserClient):
    """A client that enters each of its requests in the ledger, also those that methods such as `apply` send."""

    ledger: Ledger
    undecided: list[str]  # ids of requests
    answers: dict[str, str]  # by request id: the code of the answer, empty if the request was applied

    async def enqueue_updates_with_reply(
        self, workspace: str, change_set: str, updates: Iterable[Update], **options: Any
    ) -> EnqueueUpdatesResponse:
        updates = tuple(updates)
        request = self.ledger.enter(Asked(change_set, updates, options.get("expect_at"), options.get("action")))
        self.undecided.append(request)
        options |= {"request_id": request, "timeout": ENOUGH}
        send = super().enqueue_updates_with_reply
        try:
            response = await patiently(lambda: send(workspace, change_set, updates, **options))
        except RequestRejected as error:
            self.answers[request] = error.code
            raise
        self.answers[request] = ""
        return response


class Author:
    """Sends requests in one workspace."""

    def __init__(self, name: str, client: Sender, rng: random.Random, requests: Requests) -> None:
        self.name = name
        self._client = client
        self._ledger = client.ledger
        self._rng = rng
        self._requests = requests
        self._comparison = Comparison(client, client.ledger, requests.formulas)

    async def run(self, stop: anyio.Event, *, alone: bool) -> None:
        try:
            await self._step(Asked("main", (Set("x", 1), Set("y/1", 2))), alone=alone)
            while not stop.is_set():
                await self._step(self._requests.draw() if self._rng.random() < 0.8 else None, alone=alone)
        except Differs as found:
            raise self._report(found) from None

    async def rest(self) -> None:
        """Compare every change set once its derived values are up to date."""
        client, ledger = self._client, self._ledger
        try:
            for name in ledger.logs:
                try:
                    await client.enqueue_updates_with_reply(ledger.workspace, name, (), wait="derived")
                except RequestRejected as error:
                    if error.code != "deleted":
                        raise
            await patiently(ledger.follow)
            for name in list(ledger.world.books):
                await patiently(partial(self._comparison.compare_at_rest, name))
        except Differs as found:
            raise self._report(found) from None

    def _report(self, found: Differs) -> Differs:
        return Differs("\n".join([f"in {self._ledger.workspace}, after", *self._ledger.trace, str(found)]))

    async def _step(self, asked: Asked | None, *, alone: bool) -> None:
        """Send a request, or, without one, what a method of the client sends. Wait until all of it is decided."""
        client, ledger, rng = self._client, self._ledger, self._rng
        try:
            if asked is None:
                await self._call(rng.choice([name for name, books in ledger.world.books.items() if books]))
            else:
                options = {"expect_at": asked.at, "action": asked.action, "author": self.name}
                await client.enqueue_updates_with_reply(ledger.workspace, asked.name, asked.updates, **options)
        except RequestTimeout:
            raise
        except RebaserError as error:
            ledger.counts[f"raised {error.code}"] += 1
        with anyio.fail_after(ENOUGH):
            await patiently(ledger.follow)
            while (alone and ledger.settles) or not ledger.decided.keys() >= set(client.undecided):
                await anyio.sleep(0.1)
                await patiently(ledger.follow)
        for request in client.undecided:
            if ledger.decided[request] != client.answers[request]:
                raise Differs(f"{request} was answered {client.answers[request]}, decided {ledger.decided[request]}")
        client.undecided.clear()
        name = rng.choice(list(ledger.world.books))
        if asked is not None and asked.name in ledger.world.books and rng.random() < 0.7:
            name = asked.name
        await patiently(partial(self._comparison.compare, name, rng))

    async def _call(self, name: str) -> None:
        """Call a method of the client that reads the change set `name` first, and sends what follows from that."""
        client, rng, workspace = self._client, self._rng, self._ledger.workspace
        match rng.choice(("apply", "apply", "rebase", "resolve", "resolve", "undo", "undo", "redo")):
            case "apply":
                await client.apply(workspace, name, strict=rng.random() < 0.2, keep=rng.random() < 0.3)
            case "rebase":
                await client.rebase(workspace, name)
            case "undo":
                await client.undo(workspace, name, author=self.name)
            case "redo":
                await client.redo(workspace, name, author=self.name)
            case _:
                found = await client.conflicts(workspace, name)
                some = [one for one in found.conflicts if rng.random() < 0.7]
                await self._resolve(name, found.info.target, found.info.sequence, some)

    async def _resolve(self, name: str, target: str | None, at: int, some: list[BranchConflict]) -> None:
        if not some:
            return
        ids, workspace = [one.id for one in some], self._ledger.workspace
        if self._rng.random() < 0.7:
            await self._client.resolve(workspace, name, ids, take=self._rng.choice((name, target)), at=at)
        else:
            await self._client.resolve(workspace, name, updates=[Set(id_, 3) for id_ in ids], at=at)


async def run(seed: int, seconds: float, folder: Path, authors: int = 4, *, shared: bool = True) -> str:
    """Send requests for `seconds` while servers and NATS die, and return what was done. Raise `Differs` if the product
    and the model differ."""
    rng = random.Random(seed)
    async with installation(folder, spark=False) as system:
        await system.start_servers(2, _drawn(rng) | {"module": "tests.support.sparkless_server"})
        nemesis = Nemesis(system, random.Random(rng.random()), list(FAULTS))
        async with system.jetstream() as js, crew(system.direct, js, rng, authors, shared=shared) as counts:
            await nemesis.run(seconds)
        assert not system.ended, system.ended
    return ", ".join(f"{name} {count}" for name, count in sorted((counts + nemesis.counts).items()))


async def run_calm(seed: int, seconds: float, folder: Path, authors: int = 4, *, shared: bool = True) -> str:
    """Run like `run`, with one server in this process that does not die, so that it decides many times as many
    requests."""
    rng, engine = random.Random(seed), Engine()
    engine.go.set()
    async with embedded_nats(folder) as nats, Connection.connect(nats.url, name="branches") as connection:
        js = JetStream(connection)
        await ensure_topology(js, SUBJECTS, TopologyOptions())
        async with (
            serving(js, SUBJECTS, engine, **_drawn(rng)),
            crew(nats.url, js, rng, authors, shared=shared) as counts,
        ):
            await anyio.sleep(seconds)
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _drawn(rng: random.Random) -> dict[str, Any]:
    return {name: rng.choice(some) for name, some in SETTINGS.items()}


@asynccontextmanager
async def crew(url: str, js: JetStream, rng: random.Random, count: int, *, shared: bool) -> AsyncIterator[Counter[str]]:
    """Run authors inside the `with` block, and count their actions when it ends. The first one is alone in its
    workspace, and so are the others unless `shared` is true."""
    stop, applied, counts = anyio.Event(), anyio.Event(), Counter[str]()
    async with RebaserClient.connect(url) as client, anyio.create_task_group() as clients:
        names = ("alone", "shared")[:count] if shared else [f"alone{number}" for number in range(count)]
        ledgers = [Ledger(client, js, name, applied) for name in names]
        formulas: list[dict[str, Any]] = [{} for _ in ledgers]
        authors: list[Author] = []
        for number in range(count):
            which = min(number, 1) if shared else number
            drawn = random.Random(rng.random())
            sender = await clients.start(_connected, url, ledgers[which])
            requests = Requests(drawn, ledgers[which], formulas[which])
            authors.append(Author(f"a{number}", sender, drawn, requests))
        async with anyio.create_task_group() as group:
            for number, author in enumerate(authors):
                group.start_soon(lambda one, alone: one.run(stop, alone=alone), author, number == 0 or not shared)
            yield counts
            with anyio.fail_after(ENOUGH):  # on a slow machine, the time may be too short for a branch to be applied
                await applied.wait()
            stop.set()
        for author in authors[: len(ledgers)]:
            await author.rest()
        for ledger in ledgers:
            counts += ledger.counts
        clients.cancel_scope.cancel()


async def _connected(url: str, ledger: Ledger, *, task_status: anyio.abc.TaskStatus[Sender]) -> None:
    async with Sender.connect(url) as sender:
        sender.ledger, sender.undecided, sender.answers = ledger, [], {}
        task_status.started(sender)
        await anyio.sleep_forever()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.branches", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=int(time.time()) % 10_000_000, help="seed of the run; default: taken from the clock"
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--authors", type=int, default=4)
    parser.add_argument("--alone", action="store_true", help="give each author a workspace of its own")
    parser.add_argument("--calm", action="store_true", help="let no server die")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        kind = partial(run_calm if given.calm else run, shared=not given.alone)
        print(anyio.run(kind, given.seed, given.seconds, Path(name), given.authors))
    return 0


if __name__ == "__main__":
    sys.exit(main())

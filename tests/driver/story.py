"""Runs one seed: clients edit a graph in phases while it is updated, and all values are checked after each phase.

The seed decides the graph, all edits and the actions of each client, but not their timing. So a seed that found a
violation may have to be run several times to find it again.
"""

import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from anyio import to_thread

from rebaser_client import RebaserClient, Recompute, RequestRejected
from rebaser_client.client import Wait
from rebaser_client.errors import RequestConflicts
from rebaser_core.updates import parse_updates
from rebaser_core.values import State
from tests.driver import ways
from tests.driver.edits import BARRIER, Editor, Shape
from tests.driver.formulas import Meaning
from tests.driver.installation import Hesitant, Installation, heard, installed
from tests.driver.oracle import Wire
from tests.driver.watched import WS, Sent, Violation, Watched

PATIENCE = 120.0  # seconds until all requests must be decided and covered; a bound against hanging, no measure of speed
CLIENTS = 3
SERVERS = ("one", "two")


@dataclass
class Report:
    """The result of a seed."""

    seed: int
    told: str
    counts: Counter[str] = field(default_factory=Counter)
    violation: str | None = None


@dataclass(frozen=True)
class Plan:
    """The parameters that a seed draws."""

    shapes: tuple[Shape, ...]
    phases: int
    bursts: int
    jitter: float
    hesitation: float
    servers: int
    restarts: bool
    settings: dict[str, Any]
    clients: int = CLIENTS  # maximum clients of one change set

    @classmethod
    def drawn(cls, rng: random.Random) -> "Plan":
        shapes = tuple(Shape.drawn(rng) for _ in range(rng.choice([1, 1, 2, 3])))
        settings = {
            "checkpoint_bytes": rng.choice([20_000, 200_000, 4 * 1024 * 1024]),
            "batch_max_requests": rng.choice([1, 3, 32]),
            "quiescent_period": rng.choice([0.05, 600.0]),
        }
        return cls(
            shapes,
            phases=rng.randint(2, 3),
            bursts=rng.randint(4, 9),
            jitter=rng.choice([0.0, 0.02, 0.1]),
            hesitation=rng.choice([0.0, 0.05, 0.3]),
            servers=rng.choice([1, 1, 2]),
            restarts=rng.random() < 0.3,
            settings=settings,
        )

    def __str__(self) -> str:
        sizes = ", ".join(str(shape.size) for shape in self.shapes)
        return f"{sizes} values, {self.phases} phases of {self.bursts}, {self.servers} servers, {self.settings}"


class Client:
    """One client that edits a change set, with random choices of its own."""

    def __init__(self, name: str, rng: random.Random, plan: Plan, watched: Watched, editor: Editor) -> None:
        self._name = name
        self._rng = rng
        self._plan = plan
        self._watched = watched
        self.editor = editor
        self._count = 0

    async def phase(self, client: RebaserClient, number: int) -> None:
        rng = self._rng
        if number and rng.random() < 0.8:
            await self.send(client, self.editor.healing(), "applied")
        for _ in range(self._plan.bursts):
            await anyio.sleep(rng.random() * self._plan.jitter)
            for _ in range(rng.choice([1, 1, 1, 2, 5])):
                await self._one(client)

    async def _one(self, client: RebaserClient) -> None:
        rng = self._rng
        wait: Wait | None = rng.choices((None, "applied", "derived"), (5, 4, 1))[0]
        roll = rng.random()
        if roll < 0.04:
            asked = Recompute(rng.choice([None, "sum", "cel", "nobody-has-this"]))
            await self.send(client, self.editor.batch() if rng.random() < 0.5 else [], wait, recompute=asked)
        elif roll < 0.1:  # may be refused because of a conflict
            await self.send(client, self.editor.foreign(), wait, foreign=True)
        else:
            await self.send(client, self.editor.batch(), wait)

    async def send(
        self,
        client: RebaserClient,
        updates: list[Wire],
        wait: Wait | None,
        *,
        foreign: bool = False,
        recompute: Recompute | None = None,
    ) -> None:
        watched = self._watched
        self._count += 1
        id_ = f"{self._name}-{self._count}"
        parsed = parse_updates(updates)
        watched.sent[id_] = Sent(updates, [one.to_wire() for one in parsed], foreign, recompute is not None)
        given: dict[str, Any] = {"request_id": id_, "timeout": PATIENCE, "recompute": recompute}
        given["from_change_set"] = "elsewhere" if foreign else None
        if wait is None:
            await client.enqueue_updates(WS, watched.name, parsed, **given)
            return
        try:
            reply = await client.enqueue_updates_with_reply(WS, watched.name, parsed, wait=wait, **given)
        except RequestRejected as refused:
            if recompute is None and not (foreign and isinstance(refused, RequestConflicts)):
                raise Violation(f"{id_} was refused: {refused}") from None
            return
        if reply.id != id_:
            raise Violation(f"{id_} was answered with {reply}")


class Story:
    """Runs the plan of a seed."""

    def __init__(self, seed: int, nats_url: str, engine: Any) -> None:
        rng = random.Random(seed)
        self.plan = self.drawn(rng)
        self.thresholds = ways.drawn(rng, max(shape.size for shape in self.plan.shapes))
        self.counts: Counter[str] = Counter()
        self._seed = seed
        self._url = nats_url
        self._engine = Hesitant(engine, random.Random(f"{seed} engine"), self.plan.hesitation)
        self._meanings: dict[str, Meaning] = {}
        self._rng = rng
        self.watched: list[Watched] = []
        self._clients: list[tuple[Client, Watched]] = []
        for number, shape in enumerate(self.plan.shapes):
            watched = Watched(f"cs{number}", self._meanings)
            self.watched.append(watched)
            self._first = Editor(random.Random(f"{seed} {number}"), shape, self._meanings)
            initial = [{"op": "set", "id": BARRIER, "value": 0}, *self._first.initial()]
            for which in range(rng.randint(1, self.plan.clients)):
                own = random.Random(f"{seed} {number} {which}")
                editor = Editor(own, shape, self._meanings)
                editor.book = {one["id"]: one for one in initial}
                self._clients.append((Client(f"c{which}", own, self.plan, watched, editor), watched))
            watched.initial = initial

    @staticmethod
    def drawn(rng: random.Random) -> Plan:
        return Plan.drawn(rng)

    async def run(self) -> None:
        with ways.taken(self.thresholds, self.counts):
            await self._run()

    async def _run(self) -> None:
        plan = self.plan
        prefix = f"d{os.getpid()}x{self._seed}x{random.SystemRandom().randrange(10**6)}"
        async with self._installed(prefix) as (installation, clients), anyio.create_task_group() as group:
            for watched in self.watched:
                group.start_soon(watched.follow, clients[-1])
            async with anyio.create_task_group() as starting:
                for watched in self.watched:
                    starting.start_soon(self._begin, clients[0], watched)
            for number in range(plan.phases):
                await self._phase(number, installation, clients)
            group.cancel_scope.cancel()

    @asynccontextmanager
    async def _installed(self, prefix: str) -> AsyncIterator[tuple[Installation, list[RebaserClient]]]:
        names = SERVERS[: self.plan.servers]
        async with AsyncExitStack() as stack:
            errors = stack.enter_context(heard())
            enter = stack.enter_async_context
            installation = await enter(installed(self._url, prefix, self._engine, names, **self.plan.settings))
            clients = [await enter(RebaserClient.connect(self._url, prefix=prefix)) for _ in range(CLIENTS + 1)]
            try:
                yield installation, clients
            except Exception as error:
                if errors:
                    error.add_note(f"logged: {errors[:3]}")
                raise
            if errors:
                raise Violation(f"logged: {errors[:3]}")

    async def _begin(self, client: RebaserClient, watched: Watched) -> None:
        first = Client("first", self._rng, self.plan, watched, self._first)
        await first.send(client, watched.initial, self._rng.choice(["applied", "derived"]))

    async def _phase(self, number: int, installation: Installation, clients: list[RebaserClient]) -> None:
        for watched in self.watched:
            watched.start_keeping()
        async with anyio.create_task_group() as editing, anyio.create_task_group() as beside:
            for watched in self.watched:
                beside.start_soon(self._look, clients[-1], watched)
            if self.plan.restarts:
                beside.start_soon(self._restart, installation)
            for which, (one, _) in enumerate(self._clients):
                editing.start_soon(one.phase, clients[which % CLIENTS], number)
        for watched in self.watched:
            watched.forget()
            await self._settle(number, clients, watched)

    async def _restart(self, installation: Installation) -> None:
        await anyio.sleep(self._rng.random() * 0.5)
        await installation.restart(self._rng.choice(SERVERS[: self.plan.servers]))

    async def _look(self, client: RebaserClient, watched: Watched) -> None:
        """Check that values that are shown as up to date during edits are right at the position that was read."""
        for _ in range(2):
            await anyio.sleep(self._rng.random() * 0.5)
            state = await client.state(WS, watched.name)
            if state.last == 0:
                continue
            with anyio.fail_after(PATIENCE):
                await watched.until(state.last)
            if not watched.keep:
                return
            book = watched.book_at(state.last)
            what = f"at commit {state.last}, amid edits"
            compare = partial(watched.compare, book, state.values(), what, stale=True)
            watched.counts["looked at amid edits"] += await to_thread.run_sync(compare)

    async def _settle(self, number: int, clients: list[RebaserClient], watched: Watched) -> None:
        """Wait until everything is covered, and check that every kind of read gives the values that follow from the
        definitions."""
        last = Client(f"last{number}", self._rng, self.plan, watched, self._first)
        nothing: list[Wire] = [{"op": "remove", "id": "nosuch"}]
        barrier = self._rng.choice([[{"op": "set", "id": BARRIER, "value": number}], nothing, []])
        what = f"phase {number} of {watched.name}"
        try:
            with anyio.fail_after(PATIENCE):
                if barrier:
                    await last.send(clients[0], barrier, "derived")
                newest = await watched.until_decided()
                await clients[0].wait_covered(WS, watched.name, newest, timeout=PATIENCE)
        except TimeoutError:
            owed = dict(list(watched.state.roots.items())[:3])
            raise Violation(f"{what}: not covered in {PATIENCE:g} s, owed {owed}") from None
        fresh = await clients[-1].state(WS, watched.name)
        await watched.until(fresh.last)
        for state, whose in ((fresh, "read afresh"), (watched.state, "folded from all commits")):
            compare = partial(watched.compare, watched.book, state.values(), f"{what}, {whose}", stale=False)
            watched.counts["checked"] += await to_thread.run_sync(compare)
        watched.counts["healthy"] += sum(
            1 for id_, one in fresh.values().items() if one.state is State.OK and watched.book[id_]["op"] == "derive"
        )


async def run_seed(seed: int, nats_url: str, engine: Any, kind: type[Story] = Story) -> Report:
    """Run a seed to its end or its first violation."""
    story = kind(seed, nats_url, engine)
    report = Report(seed, f"{story.plan}, {ways.told(story.thresholds)}", story.counts)
    try:
        await story.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        report.violation = told(error)
        tails = [f"{one.name}:\n    " + "\n    ".join(one.tail) for one in story.watched]
        report.violation += "\n  the last commits of " + "\n  ".join(tails)
    for watched in story.watched:
        report.counts.update(watched.counts)
    return report


def told(error: BaseException) -> str:
    """Return the messages of all errors in a group of errors, one per line."""
    if isinstance(error, BaseExceptionGroup):
        return "\n".join(dict.fromkeys(told(one) for one in error.exceptions))
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}{notes}"

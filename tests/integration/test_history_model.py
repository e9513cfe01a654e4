"""Several authors edit, expect, revert, undo and redo at the same time, while readers read any position.

The requests are decided again, in the order of the log, by the model on plain dictionaries.
"""

import random
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

import anyio
import pytest

from rebaser_client import PositionPurged, RebaserClient, Remove, RequestConflicts, RequestRejected, Set, Update
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects
from tests.support.branch_books import Definitions as Values
from tests.support.branch_books import RefusedError
from tests.support.branches import World
from tests.support.history import commit_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

AUTHORS, REQUESTS = ("ann", "bob", ""), 25


@dataclass
class Asked:
    """A request, and its answer: `applied`, or a code. It has `updates`, or reverts the commits `first` to
    `last`."""

    updates: list[Update] = field(default_factory=list)
    expect_at: int | None = None
    first: int = 0
    last: int = 0
    request: str | None = None
    answer: str = ""


@dataclass
class Run:
    client: RebaserClient
    rng: random.Random
    asked: dict[str, Asked] = field(default_factory=dict)
    known: list[int] = field(default_factory=list)  # commits that some answer named
    order: list[tuple[int, list[str]]] = field(default_factory=list)  # commits and the requests that they decided
    reads: list[tuple[int, Values | None]] = field(default_factory=list)  # None: purged
    news: anyio.Event = field(default_factory=anyio.Event)

    async def author(self, name: str) -> None:
        for number in range(REQUESTS):
            asked = await self._draw(name)
            if asked is not None:
                id_ = f"{name or 'nobody'}-{number}"
                self.asked[id_] = asked
                asked.answer = await self._send(id_, name, asked)

    async def _draw(self, name: str) -> Asked | None:
        rng, choice = self.rng, self.rng.random()
        if choice < 0.5 or len(self.known) < 4:
            updates: list[Update] = [
                Remove(id_) if rng.random() < 0.2 else Set(id_, rng.randrange(4))
                for id_ in rng.choices("abcdefgh", k=2)
            ]
            saw = rng.choice((None, None, max(self.known, default=None), rng.choice(self.known or [None])))
            return Asked(updates, saw)
        if choice < 0.7:
            first, last = sorted(rng.choices(self.known[-6:], k=2))
            return Asked(first=first, last=last)
        find = self.client.undoable if choice < 0.9 else self.client.redoable
        step = await find("ws", "cs", author=name)
        if step is None:
            return None
        return Asked(first=step.entry.sequence, last=step.entry.sequence, request=step.decision.request_id)

    async def _send(self, id_: str, name: str, asked: Asked) -> str:
        try:
            if asked.updates:
                response = await self.client.enqueue_updates_with_reply(
                    "ws", "cs", asked.updates, expect_at=asked.expect_at, author=name, request_id=id_
                )
            else:
                response = await self.client.revert(
                    "ws", "cs", asked.first, asked.last, request=asked.request, author=name, request_id=id_
                )
        except RequestConflicts:
            return "conflicts"
        except RequestRejected as error:
            return error.code
        self.known.append(commit_of(response))
        return "applied"

    async def read(self) -> None:
        while True:
            at = self.rng.randrange(max(self.known) + 1) if self.known else 0
            try:
                values = await self.client.values("ws", "cs", at=at)
            except PositionPurged:
                self.reads.append((at, None))
            else:
                self.reads.append((at, {id_: value.value for id_, value in values.items()}))  # type: ignore[misc] # integers
            await anyio.sleep(0.002)

    def met_purged(self) -> bool:
        return any(values is None for _, values in self.reads)

    async def follow(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        task_status.started()
        async for commit in self.client.watch("ws", "cs", after=0):
            self.order.append((commit.sequence, [decision.request_id for decision in commit.requests]))
            self.news.set()
            self.news = anyio.Event()

    async def followed(self, sequence: int) -> None:
        while not self.order or self.order[-1][0] < sequence:
            await self.news.wait()

    def check(self) -> Counter[str]:
        """Decide all requests again with the model, and return how often each answer was given."""
        world, answers = World(), Counter[str]()
        born = world.edit("cs", {}).sequence
        places: dict[str, int] = {}  # by request: its place in the model
        # By commit: its sequence, its end in the model, the values after it.
        sequences, ends, books = [0], [born], [Values()]
        for sequence, ids in self.order:
            for id_ in ids:
                asked = self.asked[id_]
                found = self._decide(world, asked, places, sequences, ends)
                assert asked.answer == found, f"{id_} in commit {sequence}"
                places[id_] = world.last
                answers[found] += 1
            sequences.append(sequence)
            ends.append(world.last)
            books.append(dict(world.book("cs").cells))
        assert sum(answers.values()) == len(self.asked), "each is decided once"
        for at, values in self.reads:
            if values is not None:
                assert values == books[bisect_right(sequences, at) - 1], f"at {at}"
        return answers

    def _decide(self, world: World, asked: Asked, places: dict[str, int], sequences: list[int], ends: list[int]) -> str:
        def end(sequence: int) -> int:
            return ends[bisect_right(sequences, sequence) - 1]

        try:
            if asked.updates:
                delta = {one.id: one.value if isinstance(one, Set) else None for one in asked.updates}
                at = None if asked.expect_at is None else end(asked.expect_at)
                if at is not None and world.book("cs", ends[-1]).last_edit <= at:
                    # An edit of any id counts for an id that does not exist, except within a commit. Each
                    # request is a commit of the model.
                    newer = [id_ for commit in world.commits("cs", at, world.last) for id_ in commit.delta]
                    at = world.last if delta.keys().isdisjoint(newer) else at
                world.edit("cs", delta, at)  # type: ignore[arg-type] # integers
            elif asked.answer == "purged":
                return "purged"  # the model forgets nothing
            elif asked.request is not None:
                world.revert("cs", places[asked.request], places[asked.request])
            else:
                world.revert("cs", end(asked.first - 1) + 1, end(asked.last))
        except RefusedError as refused:
            return str(refused)
        return "applied"


@pytest.mark.parametrize("history_bytes", [1 << 30, 12_000])
@pytest.mark.parametrize("seed", range(3))
async def test_several_authors_at_once(
    js: JetStream, subjects: Subjects, nats_url: str, seed: int, history_bytes: int
) -> None:
    settings = {
        "checkpoint_bytes": 2048,
        "history_bytes": history_bytes,
        "quiescent_period": 0.05,
        "sweep_interval": 0.5,
    }
    async with (
        serving(js, subjects, Engine(), **settings),
        RebaserClient.connect(nats_url, prefix=subjects.prefix) as client,
    ):
        run = Run(client, random.Random(seed))
        async with anyio.create_task_group() as group:
            await group.start(run.follow)
            group.start_soon(run.read)
            async with anyio.create_task_group() as authors:
                for name in AUTHORS:
                    authors.start_soon(run.author, name)
            await run.followed((await client.state("ws", "cs")).last)
            with anyio.fail_after(120):  # how many reads fit in above, and how much is purged, depends on the machine
                while len(run.reads) <= 5 or (history_bytes == 12_000 and not run.met_purged()):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
    answers = run.check()
    assert answers["applied"] > REQUESTS
    assert answers["moved"]
    assert answers["conflicts"]

"""Sends random requests to branches while servers die, and compares the results with a model on plain dictionaries.

`python -m tests.chaos.branches --seed 7 --seconds 60`: each author sends one request after the other in a workspace of
its own. The model (`tests.support.branches`), which shares no code with the product, decides each request again, in the
order of the logs. Each answer must be that of the model. Each change set must have the state of its book in the model:
values, status, base, changes and conflicts, now and at older positions.
"""

import argparse
import random
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, RequestRejected, Set
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.commit import Commit, Decision, Kind, Outcome
from rebaser_core.streams.topology import TopologyOptions
from tests.chaos.branch_requests import Asked, Requests
from tests.chaos.nemeses import Nemesis
from tests.chaos.system import ENOUGH, SUBJECTS, installation
from tests.support.branch_books import Book, Definition, RefusedError
from tests.support.branches import World
from tests.support.owners import Engine, serving

FAULTS = ("kill", "term", "pause")
TRACED = 80  # requests that a report shows
SETTINGS: dict[str, object] = {"checkpoint_bytes": 2048}
# Pairs of refusals, of the product and of the model, that are both right: they check in another order.
ALIKE = {
    ("not_a_branch", "no_target"),
    ("not_its_target", "no_such_change_set"),
    ("exists", "no_such_change_set"),
    ("self", "not_its_target"),
    ("deleted", "no_such_change_set"),
    ("deleted", "moved"),
    ("deleted", "purged"),
    ("deleted", "closed"),
    ("self", "target_is_open"),
    ("self", "purged"),
    ("closed", "no_such_change_set"),
    ("not_its_target", "purged"),
}


class Differs(AssertionError):  # noqa: N818 - it reads as a sentence where it is raised
    """The product and the model differ."""


@dataclass
class Positions:
    """The commits of the product in the order of the stream, and the newest commit of the model after each."""

    product: list[float] = field(default_factory=lambda: [0])
    model: list[int] = field(default_factory=lambda: [0])

    def add(self, product: float, model: int) -> None:
        self.product.append(product)
        self.model.append(model)

    def in_model(self, product: float) -> int:
        return self.model[bisect_right(self.product, product) - 1]


class Author:
    """Sends requests in one workspace, and lets the model decide again what its logs have."""

    def __init__(
        self, client: RebaserClient, js: JetStream, workspace: str, rng: random.Random, applied: anyio.Event
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._client = client
        self._js = js
        self._workspace = workspace
        self._rng = rng
        self._applied = applied  # set when a branch was applied
        self._world = World()
        self._positions = Positions()
        self._logs: dict[str, list[int]] = {}  # by name: the commits of the product that the model has decided again
        self._requests = Requests(rng, self._world, self._logs)
        self._asked: dict[str, Asked] = {}  # by request id
        self._sent: dict[str, int] = {}  # by request id: the newest commit that was known when the request was sent
        # By name: the first commit in the model of a change set that began with an edit.
        self._begun: dict[str, int] = {}
        self._trace: deque[str] = deque(maxlen=TRACED)
        # Branches that are to be settled, with the commits that applied them.
        self._settles: set[tuple[str, int]] = set()

    async def run(self, stop: anyio.Event) -> None:
        await self._step(Asked("main", "edit", {"delta": {"x": 1, "y": 2}}, None, (Set("x", 1), Set("y", 2))))
        try:
            while not stop.is_set():
                await self._step(self._requests.draw())
        except Differs as found:
            raise Differs("\n".join([f"in {self._workspace}, after", *self._trace, str(found)])) from None

    async def _step(self, asked: Asked) -> None:
        request = f"r{len(self._asked)}"
        self._asked[request] = asked
        self._sent[request] = max((log[-1] for log in self._logs.values()), default=0)
        answer = await self._send(request, asked)
        with anyio.fail_after(ENOUGH):
            told = await self._follow()
            while self._settles or request not in told:
                await anyio.sleep(0.1)
                told |= await self._follow()
        if told[request] != answer:
            raise Differs(f"{request} was answered {answer}, and decided {told[request]}")
        for name in {asked.name, self._rng.choice(list(self._world.books))} & self._world.books.keys():
            await self._compare(name)

    async def _send(self, request: str, asked: Asked) -> str:
        """Return the code of the refusal; empty if the request was applied."""
        options = {"expect_at": asked.arguments.get("at")} if asked.updates else {"action": asked.action}
        try:
            await self._client.enqueue_updates_with_reply(
                self._workspace, asked.name, asked.updates, request_id=request, timeout=ENOUGH, **options
            )
        except RequestRejected as error:
            return error.code
        return ""

    # -- the decisions of the model --------------------------------------------------------------------------------

    async def _follow(self) -> dict[str, str]:
        """Let the model decide what is new in the logs. Return the codes of the requests that were decided."""
        last = (await self._js.stream_info(SUBJECTS.commits_stream)).last_sequence
        found: list[tuple[str, Commit]] = []
        for info in await self._client.branches(self._workspace):
            name = info.change_set
            known = self._logs[name][-1] if name in self._logs else 0
            if known < min(last, info.sequence):
                async for commit in self._client.watch(self._workspace, name, after=known):
                    if commit.sequence <= last:
                        found.append((name, commit))
                    if commit.sequence >= min(last, info.sequence):
                        break
        told: dict[str, str] = {}
        for name, commit in sorted(found, key=lambda one: one[1].sequence):
            told |= self._decide_again(name, commit)
            self._logs.setdefault(name, []).append(commit.sequence)
            self._positions.add(commit.sequence, self._world.last)
        return told

    def _decide_again(self, name: str, commit: Commit) -> dict[str, str]:
        told: dict[str, str] = {}
        for decision in commit.requests:
            if decision.request_id.startswith("settle-"):
                self._settle(name, commit, decision)
            else:
                told[decision.request_id] = decision.code if decision.outcome is not Outcome.SUCCESS else ""
                self._again(self._asked[decision.request_id], commit, decision)
        if not commit.requests and commit.kind is Kind.REPLAY:
            self.counts["pulled"] += 1
            self._pulled(name, commit)
        return told

    def _again(self, asked: Asked, commit: Commit, decision: Decision) -> None:
        """Let the model decide the request that `commit` decided, and compare."""
        code = "" if decision.outcome is Outcome.SUCCESS else decision.code or decision.outcome
        if code == "purged" and self._of_another(asked):
            self.counts[f"{asked.method} purged"] += 1
            return
        world, arguments = self._world, self._in_model(asked, commit)
        wanted = ""
        try:
            if asked.method == "edit" and asked.name not in world.books:
                # In the model, a commit without edits begins such a change set. In the product, its birth is 0.
                self._begun[asked.name] = world.edit(asked.name, {}).sequence
                self._positions.add(commit.sequence - 0.5, world.last)
            begun = self._begun.get(asked.name, 0)
            if asked.method == "edit" and arguments.get("at") is not None:
                arguments["at"] = max(arguments["at"], begun)
            if begun and "first" in arguments:
                arguments["first"] = max(arguments["first"], begun + 1)
            if asked.method == "mark" and arguments.get("status") == "open" and world.is_deleted(asked.name):
                world.undelete(asked.name)
            else:
                getattr(world, asked.method)(asked.name, **arguments)
        except RefusedError as refused:
            wanted = str(refused)
        self.counts[f"{asked.method} {wanted or 'done'}"] += 1
        about = {key: one for key, one in asked.arguments.items() if one not in (None, False)}
        self._trace.append(f"{commit.sequence}: {asked.method} {asked.name} {about}: {code or 'applied'}")
        if asked.method == "rebase" and wanted in ("nothing_new", "no_such_change_set") and not code:
            return  # The product does nothing, and reports success, even if the target did not exist at `upto`.
        if wanted != code and (code, wanted) not in ALIKE and not self._refused_before(decision.request_id, code):
            raise Differs(f"{asked} in commit {commit.sequence} is {code or 'applied'}, not {wanted or 'applied'}")
        if asked.method == "apply" and not wanted:
            assert commit.source is not None
            self._settles.add((asked.arguments["source"], commit.sequence))
            self._applied.set()

    def _refused_before(self, request: str, code: str) -> bool:
        """Return whether the model refuses the apply with `code` for a position of the source that the product may have
        read.

        That is the newest position when the request was sent, or any later one: a refusal does not name the position.
        """
        asked, last = self._asked[request], 0
        if asked.method != "apply" or asked.arguments["at"] is not None or not code:
            return False
        for at in reversed(self._logs.get(asked.arguments["source"], [])):
            if last and last <= self._sent[request]:
                break
            last, world = at, copy(self._world)
            world.books = {name: list(books) for name, books in world.books.items()}
            world.logs = {name: list(commits) for name, commits in world.logs.items()}
            world.queue = list(world.queue)
            try:
                world.apply(asked.name, **asked.arguments | {"at": self._positions.in_model(at)})
            except RefusedError as refused:
                if str(refused) == code or (code, str(refused)) in ALIKE:
                    return True
        return False

    def _of_another(self, asked: Asked) -> bool:
        """Return whether the request creates a change set from an earlier change set with the name of its parent."""
        if asked.method != "create" or asked.arguments["at"] is None:
            return False
        then = self._world.book(asked.arguments["parent"], self._positions.in_model(asked.arguments["at"]))
        return then.birth != self._world.book(asked.arguments["parent"]).birth

    def _in_model(self, asked: Asked, commit: Commit) -> dict[str, Any]:
        """Return the arguments of `asked` with positions of the model. A missing position becomes the one that the
        product read."""
        positions, arguments = self._positions, dict(asked.arguments)
        read = commit.origin if commit.kind is Kind.CREATE else commit.source
        chosen = {"create": "at", "apply": "at", "rebase": "upto"}.get(asked.method, "")
        if chosen and arguments[chosen] is None and read is not None and not arguments.get("onto"):
            arguments[chosen] = read.sequence
        for key in ("at", "upto", "last"):
            if arguments.get(key) is not None:
                arguments[key] = positions.in_model(arguments[key])
        if arguments.get("upto") is not None and asked.name in self._world.books:
            # The branch already has the edits up to its base, and may settle conflicts even if `upto` is before the
            # base.
            arguments["upto"] = max(arguments["upto"], self._world.books[asked.name][-1].base)
        if asked.method == "rebase":
            arguments["anyway"] = commit.kind is Kind.REPLAY
        if "first" in arguments:
            arguments["first"] = positions.in_model(arguments["first"] - 0.5) + 1
        return arguments

    def _settle(self, name: str, commit: Commit, decision: Decision) -> None:
        applied = int(decision.request_id.removeprefix("settle-"))
        self._trace.append(f"{commit.sequence}: settle {name} after {applied}: {decision.code or 'done'}")
        if (name, applied) not in self._settles:
            raise Differs(f"commit {commit.sequence} of {name} settles the commit {applied}, which applied nothing")
        self._settles.discard((name, applied))
        self._world.queue.sort(key=lambda one: (one[0] != name, one[1]))
        try:
            self._world.settle()
        except RefusedError as refused:
            self.counts[f"settle {refused}"] += 1
        else:
            self.counts["settle done"] += 1

    def _pulled(self, name: str, commit: Commit) -> None:
        assert commit.source is not None
        self._trace.append(f"{commit.sequence}: pull {name} up to {commit.source.sequence}")
        try:
            self._world.rebase(name, upto=self._positions.in_model(commit.source.sequence), anyway=True)
        except RefusedError as refused:
            if str(refused) != "nothing_new":
                raise Differs(f"commit {commit.sequence} of {name} pulls, which is {refused}") from refused

    # -- comparing -------------------------------------------------------------------------------------------------

    async def _compare(self, name: str) -> None:
        """Compare the change set with its book, now and at an older position."""
        begin = self._world.books[name][0].sequence
        known = [at for at in self._logs[name] if self._positions.in_model(at) >= begin]
        for at in {known[-1], self._rng.choice(known)}:
            book = self._world.book(name, self._positions.in_model(at))
            values = await self._client.values(self._workspace, name, at=at)
            found = {id_: value.value for id_, value in values.items()}
            wanted = {} if book.status == "deleted" else book.cells
            if found != wanted:
                raise Differs(f"{name}@{at} has {found}, not {wanted}")
            await self._compare_branch(name, at, book)

    async def _compare_branch(self, name: str, at: int, book: Book) -> None:
        info = await self._client.branch(self._workspace, name, at=at)
        assert info is not None
        base = 0
        if info.target is not None and info.target in self._world.books and info.base:
            base = self._world.book(info.target, self._positions.in_model(info.base)).sequence
        said = (info.status, info.target, info.protected)
        if said != (book.status, book.target, book.protected):
            raise Differs(f"{name}@{at} is {said}, not {(book.status, book.target, book.protected)}")
        if book.status == "deleted" or book.target is None:
            return
        if base != book.base:
            raise Differs(f"{name}@{at} is based on {info.target}@{info.base}, {base} in the model, not {book.base}")
        diff = await self._client.changes(self._workspace, name, at=at)
        changes = {one.id: (_of(one.base), _of(one.ours)) for one in diff.changes}
        here = {id_: book.cells.get(id_) for id_ in book.changes}
        wanted = {id_: (base, here[id_]) for id_, base in book.changes.items() if base != here[id_]}
        if changes != wanted:
            theirs = await self._client.values(self._workspace, str(info.target), at=info.base)
            there = {id_: value.value for id_, value in theirs.items()}
            raise Differs(f"{name}@{at} changed {changes} since {info.target}@{info.base} ({there}), not {wanted}")
        page = await self._client.conflicts(self._workspace, name, at=at)
        conflicts = {one.id: (_of(one.base), _of(one.ours), _of(one.theirs)) for one in page.conflicts}
        told = {id_: (one.base, book.cells.get(id_), book.theirs(id_)) for id_, one in book.conflicts.items()}
        if conflicts != told:
            raise Differs(f"{name}@{at} has the conflicts {conflicts}, not {told}")
        self.counts["conflicts"] += len(told)


def _of(definition: Any) -> Definition:
    return None if definition is None else definition.value


async def run(seed: int, seconds: float, folder: Path, authors: int = 3) -> str:
    """Send requests for `seconds` while servers die, and return what was done. Raises `Differs` if the product and the
    model differ."""
    rng = random.Random(seed)
    async with installation(folder, spark=False) as system:
        await system.start_servers(2, SETTINGS)
        nemesis = Nemesis(system, random.Random(rng.random()), list(FAULTS))
        async with system.client() as client, system.jetstream() as js, crew(client, js, rng, authors) as counts:
            await nemesis.run(seconds)
        assert not system.ended, system.ended
    return ", ".join(f"{name} {count}" for name, count in sorted((counts + nemesis.counts).items()))


async def run_calm(seed: int, seconds: float, folder: Path, authors: int = 3) -> str:
    """Run like `run`, with one server in this process that does not die, so that it decides many times as many
    requests."""
    async with embedded_nats(folder) as nats, Connection.connect(nats.url, name="branches") as connection:
        js = JetStream(connection)
        await ensure_topology(js, SUBJECTS, TopologyOptions())
        async with (
            serving(js, SUBJECTS, Engine(), **SETTINGS),
            RebaserClient.connect(nats.url) as client,
            crew(client, js, random.Random(seed), authors) as counts,
        ):
            await anyio.sleep(seconds)
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


@asynccontextmanager
async def crew(client: RebaserClient, js: JetStream, rng: random.Random, count: int) -> AsyncIterator[Counter[str]]:
    """Run authors inside the `with` block, and count their actions when it ends."""
    stop, applied, counts = anyio.Event(), anyio.Event(), Counter[str]()
    authors = [Author(client, js, f"ws{number}", random.Random(rng.random()), applied) for number in range(count)]
    async with anyio.create_task_group() as group:
        for author in authors:
            group.start_soon(author.run, stop)
        yield counts
        with anyio.fail_after(ENOUGH):  # on a slow machine, the time may be too short for a branch to be applied
            await applied.wait()
        stop.set()
    for author in authors:
        counts += author.counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.branches", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=int(time.time()) % 10_000_000, help="seed of the run; default: taken from the clock"
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--authors", type=int, default=3)
    parser.add_argument("--calm", action="store_true", help="let no server die")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        print(anyio.run(run_calm if given.calm else run, given.seed, given.seconds, Path(name), given.authors))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Undo and redo: an author's newest request, whatever others do, compared with plain dictionaries; and their
commands."""

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from rebaser_client import (
    ConfigError,
    RebaserClient,
    Remove,
    Request,
    RequestConflicts,
    Set,
    UnprocessableError,
    Update,
)
from rebaser_client.jetstream import JetStream
from rebaser_client.log import undo
from rebaser_core.streams.subjects import Subjects
from tests.integration.test_cli_history import Command
from tests.support.history import commit_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

AUTHORS = ("ann", "bob", "")
Book = dict[str, int]


@pytest.fixture
async def client(js: JetStream, subjects: Subjects, nats_url: str) -> AsyncIterator[RebaserClient]:
    async with serving(js, subjects, Engine()), RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        yield client


@pytest.fixture
def command(nats_url: str, subjects: Subjects) -> Command:
    return Command(nats_url, subjects.prefix)


@dataclass
class Step:
    """An edit, or a revert of the step at `target`. By id: the value before, and the value after (None: no value)."""

    author: str
    target: int | None
    before: dict[str, int | None] = field(default_factory=dict)
    after: dict[str, int | None] = field(default_factory=dict)


@dataclass
class Model:
    """The meaning of undo and redo, by recursion over all steps."""

    book: Book = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def reverted(self, at: int) -> bool:
        return any(step.target == at and not self.reverted(later) for later, step in enumerate(self.steps))

    def undoable(self, author: str) -> int | None:
        own = [at for at, step in enumerate(self.steps) if step.author == author and step.target is None]
        return max((at for at in own if not self.reverted(at)), default=None)

    def redoable(self, author: str) -> int | None:
        undos = [
            at
            for at, step in enumerate(self.steps)
            if step.author == author
            and step.target is not None
            and self.steps[step.target].target is None
            and not self.reverted(at)
        ]
        newest, edit = max(undos, default=-1), self.undoable(author)
        return None if newest < 0 or (edit is not None and edit > newest) else newest

    def edit(self, author: str, updates: list[Update]) -> None:
        step = Step(author, None)
        for update in updates:
            step.before.setdefault(update.id, self.book.get(update.id))
            self._put(update.id, update.value if isinstance(update, Set) else None)  # type: ignore[arg-type] # an integer
            step.after[update.id] = self.book.get(update.id)
        self.steps.append(step)

    def revert(self, author: str, target: int) -> set[str]:
        """Return the ids in conflict; if there are none, revert the step."""
        taken = self.steps[target]
        moved = {id_ for id_ in taken.after if taken.after[id_] != taken.before[id_]}
        moved = {id_ for id_ in moved if self.book.get(id_) != taken.before[id_]}
        conflicts = {id_ for id_ in moved if self.book.get(id_) != taken.after[id_]}
        if not conflicts:
            step = Step(author, target)
            for id_ in moved:
                step.before[id_] = self.book.get(id_)
                self._put(id_, taken.before[id_])
                step.after[id_] = self.book.get(id_)
            self.steps.append(step)
        return conflicts

    def _put(self, id_: str, value: int | None) -> None:
        if value is None:
            self.book.pop(id_, None)
        else:
            self.book[id_] = value


def drawn(rng: random.Random) -> list[Update]:
    return [
        Remove(id_) if rng.random() < 0.2 else Set(id_, rng.randrange(4))
        for id_ in rng.choices("abcdef", k=rng.choice((1, 1, 2)))
    ]


@pytest.mark.parametrize("seed", range(4))
async def test_random_undos_and_redos_of_several_authors(client: RebaserClient, seed: int) -> None:
    rng, model, outcomes = random.Random(seed), Model(), set[str]()
    for _ in range(60):
        choice, author = rng.random(), rng.choice(AUTHORS)
        if choice < 0.35:
            batch = [(rng.choice(AUTHORS), drawn(rng)) for _ in range(rng.choice((1, 1, 3)))]
            sent = [Request("ws", "cs", updates, author=who) for who, updates in batch]
            assert all(outcome.error is None for outcome in await client.enqueue_many(sent))
            for who, updates in batch:
                model.edit(who, updates)
            continue
        verb = "undo" if choice < 0.75 else "redo"
        target = model.undoable(author) if verb == "undo" else model.redoable(author)
        call = client.undo if verb == "undo" else client.redo
        if target is None:
            with pytest.raises(UnprocessableError, match=f"nothing to {verb} in ws/cs") as raised:
                await call("ws", "cs", author=author)
            assert raised.value.code == f"nothing_to_{verb}"
            outcomes.add(f"no {verb}")
            continue
        conflicts = model.revert(author, target)
        found = set[str]()
        try:
            await call("ws", "cs", author=author)
        except RequestConflicts as error:
            found = {one.id for one in error.conflicts}
        assert found == conflicts
        outcomes.add(f"{verb}{' in conflict' if conflicts else ''}")
        values = await client.values("ws", "cs")
        assert {id_: value.value for id_, value in values.items()} == model.book
    assert outcomes >= {"undo", "redo", "no redo"}


async def test_reverts_of_ranges_count(client: RebaserClient) -> None:
    commits = [
        commit_of(await client.enqueue_updates_with_reply("ws", "cs", [Set("a", number)], author="ann"))
        for number in range(3)
    ]
    await client.revert("ws", "cs", commits[1], commits[2], author="bob")
    step = await client.undoable("ws", "cs", author="ann")
    assert step is not None
    assert (step.entry.sequence, step.author.author) == (commits[0], "ann")
    assert await client.redoable("ws", "cs", author="bob") is None, "it is no undo"
    newest = (await client.state("ws", "cs")).last
    await client.revert("ws", "cs", newest)
    step = await client.undoable("ws", "cs", author="ann")
    assert step is not None
    assert step.entry.sequence == commits[2]


async def test_what_was_done_to_an_earlier_change_set_of_the_name_does_not_count(client: RebaserClient) -> None:
    await client.enqueue_updates_with_reply("ws", "main", [Set("a", 1)], author="bob")
    await client.create_branch("ws", "fix")
    await client.enqueue_updates_with_reply("ws", "fix", [Set("a", 2)], author="ann")
    await client.enqueue_updates_with_reply("ws", "fix", [Set("a", 3)], author="ann")
    await client.undo("ws", "fix", author="ann")
    await client.delete_change_set("ws", "fix")
    await client.create_branch("ws", "fix")
    assert await client.undoable("ws", "fix", author="ann") is None
    assert await client.redoable("ws", "fix", author="ann") is None


async def test_the_search_is_bounded(client: RebaserClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "MAX_SCANNED", 2)
    await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)], author="ann")
    for number in range(2):
        assert await client.undoable("ws", "cs", author="ann") is not None
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", number)])
    assert await client.undoable("ws", "cs", author="ann") is None


async def test_a_client_has_an_author(client: RebaserClient, nats_url: str, subjects: Subjects) -> None:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix, author="ann") as ann:
        await ann.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        await ann.enqueue_updates_with_reply("ws", "cs", [Set("a", 2)], author="bob")
        await ann.enqueue_updates("ws", "cs", [Set("a", 3)], message="why")
        (outcome,) = await ann.enqueue_many([Request("ws", "cs", [Set("a", 4)], message="many", expect_at=1)])
        assert outcome.error is not None
        assert outcome.error.code == "moved"
        await ann.enqueue_many([Request("ws", "cs", [Set("a", 5)], message="many")])
        await ann.undo("ws", "cs", message="no")
        said = [(who.author, who.message) async for entry in ann.log("ws", "cs") for _, who in entry.requests]
    assert said == [("ann", "no"), ("ann", "many"), ("ann", "many"), ("ann", "why"), ("bob", ""), ("ann", "")]
    with pytest.raises(ConfigError, match="author must be a string of up to 128"):
        await RebaserClient.open(nats_url, author="x" * 129)


async def test_the_commands(client: RebaserClient, command: Command) -> None:
    edit = ("enqueue", "ws", "cs", "--author", "ann", "-m")
    assert (await command(*edit, "dearer", "--set", "price=2"))[0] == 0
    assert (await command(*edit, "dearest", "--set", "price=3", "--set", "new=1", "--request-id", "third"))[0] == 0
    code, lines, err = await command("undo", "ws", "cs", "--author", "ann")
    assert (code, lines) == (2, [])
    assert "add --yes to undo" in err
    code, _, err = await command("undo", "ws", "cs", "--yes")
    assert (code, err) == (
        1,
        "rebaser: nothing to undo in ws/cs: there is no request without an author (see --author) to revert\n",
    )

    code, lines, err = await command("undo", "ws", "cs", "--yes", "--author", "ann", "-m", "oops")
    assert (code, err) == (0, "")
    assert lines[0][0].startswith("commit ")
    assert {id_: value.value for id_, value in (await client.values("ws", "cs")).items()} == {"price": 2}
    (done,) = await command.json("redo", "ws", "cs", "--yes", "--author", "ann")
    assert done["updates"] == 2
    code, _, err = await command("redo", "ws", "cs", "--yes", "--author", "ann")
    assert (code, err) == (1, "rebaser: nothing to redo in ws/cs: there is no undo by ann to revert\n")

    newest, older, *_ = await command.json("log", "ws", "cs")
    assert (newest["reverts"]["first"], newest["reverts"]["requestId"]) == (
        older["position"],
        older["requests"][0]["requestId"],
    )
    assert older["requests"][0] | {"author": "ann", "message": "oops"} == older["requests"][0]
    await client.enqueue_updates_with_reply("ws", "cs", [Set("new", 7)], author="bob")
    code, lines, err = await command("undo", "ws", "cs", "--yes", "--author", "ann")
    assert (code, lines) == (1, [["new", "1", "7", "-"]])
    assert "nothing was reverted" in err


async def test_a_request_of_several_commits_is_wrong_usage(command: Command) -> None:
    for arguments in (("3..4",), ("--to", "2h")):
        code, _, err = await command("revert", "ws", "cs", *arguments, "--request", "id")
        assert code == 2
        assert "requires the position of a single commit" in err


async def test_tail_tells_who_reverted_what(client: RebaserClient, command: Command) -> None:
    await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)], author="ann", message="why", request_id="first")
    await client.undo("ws", "cs", author="ann")
    first, second = await command.json("tail", "ws", "cs")
    assert (first["reverts"], first["requests"][0]["author"], first["requests"][0]["authorMessage"]) == (
        None,
        "ann",
        "why",
    )
    assert second["reverts"] == {"first": first["sequence"], "last": first["sequence"], "requestId": "first"}

"""`log`, `show`, `blame` and `diff`, on the command line and in the client."""

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rebaser_client import Derive, PositionPurged, RebaserClient, RequestRejected, Set, UnprocessableError, Unset
from rebaser_client.jetstream import JetStream
from rebaser_client.log.changes import Change, LogHistory
from rebaser_client.log.reader import StateLoader
from rebaser_core.branches.merge import same_definition
from rebaser_core.commit import Kind
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Remove, Update
from tests.support.commands import rebaser
from tests.support.owned_log import KEY, Log
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

SUM = Derive("total", "sum", {"values": ("price", "qty")})


@pytest.fixture
async def client(js: JetStream, subjects: Subjects, nats_url: str) -> AsyncIterator[RebaserClient]:
    """A client of a change set with three edits; after each but the last, derived values were updated."""
    engine = Engine()
    engine.go.set()
    async with serving(js, subjects, engine), RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        requests: dict[str, list[Update]] = {
            "first": [Set("price", 1), Set("qty", 2), SUM],
            "second": [Set("price", 10), Remove("none")],
            "third": [Unset("note"), Remove("qty"), Derive("total", "cel", {"p": "price"}, {"expr": "p * 2"})],
        }
        for name, updates in requests.items():
            await client.enqueue_updates_with_reply("ws", "cs", updates, wait="derived", request_id=name)
        yield client


async def edits(client: RebaserClient) -> dict[str, int]:
    """Return the positions of the commits by request id."""
    return {
        decision.request_id: entry.sequence async for entry in client.log("ws", "cs") for decision, _ in entry.requests
    }


@pytest.fixture
def command(nats_url: str, subjects: Subjects) -> "Command":
    return Command(nats_url, subjects.prefix)


class Command:
    def __init__(self, url: str, prefix: str) -> None:
        self._where = ("--nats", url, "--prefix", prefix)

    async def __call__(self, *arguments: str) -> tuple[int, list[list[str]], str]:
        done = await rebaser(*arguments, *self._where)
        return done.returncode, [line.split("\t") for line in done.stdout.splitlines()], done.stderr

    async def json(self, *arguments: str) -> list[Any]:
        code, lines, err = await self(*arguments, "--json")
        assert (code, err) == (0, "")
        return [json.loads("\t".join(line)) for line in lines]


async def test_the_client_tells_who_changed_what(client: RebaserClient) -> None:
    at = await edits(client)
    assert list(at) == ["third", "second", "first"]
    assert [entry.sequence async for entry in client.log("ws", "cs", "price")] == [at["second"], at["first"]]
    older = [entry.sequence async for entry in client.log("ws", "cs", at=at["second"]) if entry.requests]
    assert older == [at["second"], at["first"]]

    shown = await client.show("ws", "cs", at["third"])
    assert [one.decision.request_id for one in shown.requests] == ["third"]
    new = Derive("total", "cel", {"p": "price"}, {"expr": "p * 2"})
    assert shown.requests[0].changes == (
        Change("note", None, Unset("note")),
        Change("qty", Set("qty", 2), None),
        Change("total", SUM, new),
    )
    newest = await client.show("ws", "cs")
    assert (newest.entry.kind, [(one.id, one.value) for one in newest.computed]) == (Kind.DVU, [("total", 20)])
    with pytest.raises(UnprocessableError, match="ws/cs had no commit at 0"):
        await client.show("ws", "cs", 0)

    blamed = await client.blame("ws", "cs", "price", "total", "qty")
    assert {id_: blame.sequence for id_, blame in blamed.items()} == {"price": at["second"], "total": at["third"]}
    assert blamed["price"].request is not None
    assert blamed["price"].request[0].request_id == "second"
    assert (await client.blame("ws", "cs", "qty", at=at["second"]))["qty"].sequence == at["first"]


async def test_the_client_compares_positions(client: RebaserClient) -> None:
    at = await edits(client)
    found = await client.diff("ws", "cs", at=at["first"], other_at=at["second"])
    assert (found.first, found.last) == (at["first"], at["second"])
    assert found.changes == (Change("price", Set("price", 1), Set("price", 10)),)
    back = await client.diff("ws", "cs", at=at["second"], other_at=at["first"])
    assert back.changes == (Change("price", Set("price", 10), Set("price", 1)),)
    with_derived = await client.diff("ws", "cs", at=at["second"] - 1, other_at=at["third"] - 1, derived=True)
    assert with_derived.changes == found.changes
    assert [(id_, was.value, is_.value) for id_, was, is_ in with_derived.derived] == [("total", 3, 12)]
    assert (await client.diff("ws", "cs")).changes == ()
    born = await client.diff("ws", "cs", "other")
    assert [(change.id, change.after) for change in born.changes] == [("note", None), ("price", None), ("total", None)]


@pytest.mark.usefixtures("client")
async def test_the_commands(command: Command, client: RebaserClient) -> None:
    at = await edits(client)
    code, lines, err = await command("log", "ws", "cs")
    assert (code, err) == (0, "")
    requests = [line for line in lines if "without requests" not in line[3] and line[3] != "dvu"]
    assert [line[0] for line in requests] == [str(at[name]) for name in ("third", "second", "first")]
    assert requests[0][3] == "third: 3 updates"
    objects = await command.json("log", "ws", f"cs@{at['second']}", "-n", "1")
    assert [(one["position"], one["requests"][0]["requestId"]) for one in objects] == [(at["second"], "second")]

    code, lines, err = await command("show", "ws", f"cs@{at['third']}")
    assert (code, err) == (0, "")
    assert lines == [
        ["third", "note", "-", "(unset)"],
        ["third", "qty", "2", "-"],
        ["third", "total", '= sum {"values":["price","qty"]}', '= cel {"p":"price"} {"expr":"p * 2"}'],
    ]
    (shown,) = await command.json("show", "ws", f"cs@{at['second']}")
    assert shown["requests"][0]["changes"] == [
        {"id": "price", "before": {"op": "set", "value": 1}, "after": {"op": "set", "value": 10}},
        {"id": "none", "before": None, "after": None},
    ]
    (shown,) = await command.json("show", "ws", "cs")
    assert shown["computed"] == [{"id": "total", "value": 20, "error": None}]

    code, lines, err = await command("blame", "ws", "cs", "price", "nothing")
    assert (code, [(line[0], line[1], line[4], line[5]) for line in lines]) == (
        1,
        [("price", f"cs@{at['second']}", "second", "10")],
    )
    assert "ws/cs has no value nothing" in err
    place = f"cs@{at['second']}"
    _, (line,), _ = await command("blame", "ws", place, "total", "--deep")
    assert (line[0], line[1], line[2], line[5], line[6]) == ("total", "price", place, "second", "10")
    (blamed,) = await command.json("blame", "ws", "cs", "total", "--deep")
    assert (blamed["id"], blamed["edited"], blamed["position"]) == ("total", "total", at["third"])
    (blamed,) = await command.json("blame", "ws", "cs", "total")
    assert (blamed["changeSetId"], blamed["copies"], blamed["lost"]) == ("cs", [], None)
    assert "edited" not in blamed

    code, lines, err = await command("diff", "ws", f"cs@{at['first']}", f"cs@{at['second']}")
    assert (code, lines, err) == (0, [["price", "1", "10"]], "")
    code, lines, err = await command("diff", "ws", "cs")
    assert (code, lines) == (1, [])
    assert "ws/cs is not a branch of another change set" in err
    code, lines, err = await command("diff", "ws", "cs", "cs")
    assert (code, lines) == (0, [])
    assert "are the same" in err
    with pytest.raises(RequestRejected):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("price", 5)], expect_at=1, request_id="late")
    _, (newest, *_), _ = await command("log", "ws", "cs")
    assert newest[3] == "late: not applied (moved)"
    assert await command.json("diff", "ws", f"cs@{at['first']}", f"cs@{at['second']}") == [
        {"id": "price", "before": {"op": "set", "value": 1}, "after": {"op": "set", "value": 10}}
    ]


async def test_edits_are_reverted(command: Command, client: RebaserClient) -> None:
    at = await edits(client)
    second, third = str(at["second"]), str(at["third"])
    (done,) = await command.json("revert", "ws", "cs", second, "--author", "ann", "-m", "too dear")
    assert done["updates"] == 1
    price = (await client.values("ws", "cs"))["price"]
    assert price.value == 1
    newest = next(one for one in await command.json("log", "ws", "cs") if one["requests"])
    assert newest["reverts"] == {"first": at["second"], "last": at["second"], "requestId": None}
    assert [newest["requests"][0][name] for name in ("author", "message")] == ["ann", "too dear"]
    (again,) = await command.json("revert", "ws", "cs", second)
    assert again["updates"] == 0, "what stands there already is no conflict"
    code, _, err = await command("revert", "ws", "cs", second)
    assert code == 0
    assert "nothing changed" in err

    await client.enqueue_updates_with_reply("ws", "cs", [Set("note", "kept")])
    code, lines, err = await command("revert", "ws", "cs", third)
    assert (code, lines) == (1, [["note", "(unset)", '"kept"', "-"]])
    assert "nothing was reverted" in err

    code, lines, _ = await command("revert", "ws", "cs", "--to", str(at["first"]))
    assert code == 0
    assert set(await client.values("ws", "cs")) == {"price", "qty", "total"}
    code, _, err = await command("revert", "ws", "cs", "--to", "0s")
    assert code == 1
    assert "nothing to revert" in err
    for wrong in (["5..3"], ["last"], [], ["5", "--to", "3"], ["--to", "soon"]):
        code, _, _ = await command("revert", "ws", "cs", *wrong)
        assert code == 2


async def test_what_a_rebase_took_over_is_not_reverted_with_its_commit(command: Command, client: RebaserClient) -> None:
    await client.create_branch("ws", "fix", "cs")
    await client.enqueue_updates_with_reply("ws", "fix", [Set("own", 1)])
    await client.enqueue_updates_with_reply("ws", "cs", [Set("price", 20)])
    code, _, err = await command("rebase", "ws", "fix")
    assert code == 0, err
    commits = {entry.kind: entry.sequence async for entry in client.log("ws", "fix")}
    code, _, err = await command("revert", "ws", "fix", str(commits[Kind.REPLAY]))
    assert code == 0
    assert "nothing changed" in err
    assert "--of" in err
    (mixed,) = await command.json("revert", "ws", "fix", "--to", str(commits[Kind.CREATE]))
    values = await client.values("ws", "fix")
    assert mixed["updates"] == 1, "only the edit of the branch itself"
    assert "own" not in values
    assert values["price"].value == 20


async def test_the_status_of_history(command: Command, client: RebaserClient) -> None:
    at = await edits(client)
    commits = [entry async for entry in client.log("ws", "cs")]
    (status,) = await command.json("status", "ws", "cs")
    assert (status["commits"], status["oldest"]) == (len(commits), at["first"])
    assert status["bytes"] > 512 * len(commits)
    assert status["checkpoint"] == {"blobs": 0, "bytes": 0}
    code, lines, err = await command("status", "ws", "cs")
    assert (code, err, lines[0]) == (0, "", ["History of ws/cs"])
    assert lines[2][2] == f"cs@{at['first']}"


@pytest.mark.parametrize("seed", range(3))
async def test_a_diff_is_that_of_the_definitions_whichever_way_it_is_found(
    js: JetStream, subjects: Subjects, seed: int
) -> None:
    """The diff is made from the commits between two positions, or from both states. Purged positions give `purged` in
    both cases."""
    rng = random.Random(seed)
    log = await Log(js, subjects, rng.choice([1, 100_000])).load()
    books: dict[int, dict[str, Update]] = {0: {}}
    for _ in range(25):
        book = dict(books[max(books)])
        updates: list[Update] = []
        for _ in range(rng.randrange(1, 4)):
            id_ = f"v{rng.randrange(6)}"
            update: Update = rng.choice((Set(id_, rng.choice((1, 1.0, True))), Unset(id_), Remove(id_)))
            updates.append(update)
            if isinstance(update, Remove):
                book.pop(id_, None)
            else:
                book[id_] = update
        before = tuple(books[max(books)][id_] for id_ in {one.id for one in updates} & books[max(books)].keys())
        async with log.commits.append_lock():
            commit = log.commits.draft(Kind.REBASE, delta=tuple(updates), before=before)
            books[await log.commits.append(commit)] = book
        if rng.random() < 0.15:
            await log.write_checkpoint()
            books[log.commits.state.last] = book

    async def states() -> StateLoader:
        return log.reader

    history = LogHistory(log.reader, states)
    oldest = await log.reader.oldest_readable(KEY)
    assert oldest is not None
    for one in list(books):
        for two in rng.sample(sorted(books), 4):
            if min(one, two) < oldest[0] and await log.begins_after():
                with pytest.raises(PositionPurged):
                    await history.diff(KEY, one, KEY, two, derived=True)
                continue
            expected = [
                Change(id_, books[one].get(id_), books[two].get(id_))  # type: ignore[arg-type] # no removals
                for id_ in sorted({*books[one], *books[two]})
                if not same_definition(books[one].get(id_), books[two].get(id_))
            ]
            for derived in (False, True):
                assert list((await history.diff(KEY, one, KEY, two, derived=derived)).changes) == expected

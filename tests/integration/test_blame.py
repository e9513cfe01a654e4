"""Who last defined a value, through branches that were applied and rebased, as far as their history reaches.

Each edit sets a value to its author, the change set and a number, so the value itself says who is to blame.
"""

import random
from contextlib import suppress
from typing import Any

import anyio
import pytest

from rebaser_client import Blame, RebaserClient, RequestRejected, Set, UnresolvedConflicts
from rebaser_client.jetstream import JetStream
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.integration.test_cli_history import Command
from tests.support.history import commit_of
from tests.support.owners import Engine, serving
from tests.support.workspace import edit

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

IDS, AUTHORS, STEPS = "abcdef", ("ann", "ben", "cid"), 60


def author_of(found: Blame) -> str:
    assert found.request is not None
    return found.request[1].author


async def until_applied(client: RebaserClient, name: str) -> None:
    """Wait until the server has closed the branch, which it does after it has answered the apply."""
    with anyio.fail_after(60):
        while True:
            info = await client.branch("ws", name)
            if info is not None and info.status == "applied":
                return
            await anyio.sleep(0.02)


async def check(client: RebaserClient, name: str) -> int:
    """Compare who is to blame for each value of the change set with what the value says. Return how often the
    definition that was copied most often was copied."""
    last = (await client.state("ws", name)).last  # a branch that follows its target may get another commit meanwhile
    values = {id_: value.value for id_, value in (await client.values("ws", name, at=last)).items()}
    blamed = await client.blame("ws", name, *IDS, at=last)
    assert {id_: [author_of(one), one.change_set, one.sequence] for id_, one in blamed.items()} == {
        id_: [*list(value)[:2], blamed[id_].sequence] for id_, value in values.items() if isinstance(value, list)
    }
    for id_, one in blamed.items():
        assert not one.lost
        shown = await client.show("ws", one.change_set, one.sequence)
        mine = [request for request in shown.requests if one.request and request.decision == one.request[0]]
        assert [change.after for change in mine[0].changes if change.id == id_] == [Set(id_, values[id_])]
        sequences = [copied.entry.sequence for copied in one.copies]
        assert sequences == sorted(sequences, reverse=True)
        assert all(sequence > one.sequence for sequence in sequences)
    return max((len(one.copies) for one in blamed.values()), default=0)


@pytest.mark.parametrize("seed", range(3))
async def test_the_author_is_found_through_forks_of_forks_that_are_applied_and_rebased(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, seed: int
) -> None:
    rng, names = random.Random(seed), ["main"]
    async with serving(js, subjects, engine, checkpoint_bytes=2048):
        await edit(client, "main", *(Set(id_, ["zoe", "main", 0]) for id_ in IDS), author="zoe")
        for number in range(1, STEPS):
            name, author, draw = rng.choice(names), rng.choice(AUTHORS), rng.random()
            with suppress(RequestRejected, UnresolvedConflicts):
                if draw < 0.15 and len(names) < 6:
                    made = f"b{len(names)}"
                    info = await client.branch("ws", name)
                    above = rng.random() < 0.3 and info is not None and info.target is not None
                    target = info.target if above and info is not None else None
                    await client.create_branch("ws", made, name, target=target, author=author)
                    names.append(made)
                elif draw < 0.6 or name == "main":
                    ids = rng.sample(IDS, 2)
                    await edit(client, name, *(Set(id_, [author, name, number]) for id_ in ids), author=author)
                elif draw < 0.8:
                    await client.rebase("ws", name, strategy=rng.choice(("ours", "theirs")), author=author)
                else:
                    await client.apply("ws", name, keep=True, author=f"applies-{author}")
        for name in names:
            await check(client, name)
        await edit(client, name, Set("a", ["dan", name, STEPS]), author="dan")
        depth = 0
        while name != "main":
            await client.rebase("ws", name, strategy="ours")
            response = await client.apply("ws", name, keep=True, author="eve")
            name, depth = response.change_set_id, depth + 1
        assert await check(client, "main") >= depth > 0


async def test_a_purged_branch_and_one_that_was_made_anew_are_named_with_the_apply(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, nats_url: str
) -> None:
    command = Command(nats_url, subjects.prefix)
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("price", 1), author="zoe")
        for number, name in enumerate(("gone", "anew")):
            await client.create_branch("ws", name)
            edited = await edit(client, name, Set(name, number), author="ann")
            applied = commit_of(await client.apply("ws", name, author="dan"))
            found = (await client.blame("ws", "main", name))[name]
            assert (author_of(found), found.change_set, found.sequence) == ("ann", name, edited)
            assert [(one.change_set, one.entry.sequence) for one in found.copies] == [("main", applied)]
            (shown,) = await command.json("blame", "ws", "main", name)
            assert (shown["changeSetId"], shown["position"], shown["request"]["author"]) == (name, edited, "ann")
            assert [(one["position"], one["request"]["author"]) for one in shown["copies"]] == [(applied, "dan")]
            code, [line], err = await command("blame", "ws", "main", name)
            assert (code, err, line[1], line[3]) == (0, "", f"{name}@{edited}", "ann")
            assert line[-1] == f"applied to main@{applied} by dan"
            await until_applied(client, name)
        await js.purge(subjects.commits_stream, subjects.commits(ChangeSetKey("ws", "gone")))
        await client.delete_change_set("ws", "anew")
        made = await client.create_branch("ws", "anew", author="eve")
        await edit(client, "anew", Set("anew", "other"), author="eve")
        # The log of the deleted change set can still be read until it is purged.
        assert author_of((await client.blame("ws", "main", "anew"))["anew"]) == "ann"
        await js.purge(subjects.commits_stream, subjects.commits(ChangeSetKey("ws", "anew")), sequence=made.sequence)
        for name in ("gone", "anew"):
            found = (await client.blame("ws", "main", name))[name]
            assert (author_of(found), found.change_set, found.copies) == ("dan", "main", ())
            assert f"ws/{name}@" in found.lost
            code, [line], err = await command("blame", "ws", "main", name)
            assert (code, err, line[3]) == (0, "", "dan")
            assert line[-1].endswith("which cannot be read any more")
            assert line[-1].startswith(f"from {name}@")


async def test_the_log_shows_the_commits_of_a_branch_below_each_commit_that_applied_it(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, nats_url: str
) -> None:
    command = Command(nats_url, subjects.prefix)
    async with serving(js, subjects, engine):
        base = await edit(client, "main", Set("a", 0), Set("b", 0))
        made = (await client.create_branch("ws", "fix", follow="manual")).sequence
        first = await edit(client, "fix", Set("a", 1), author="ann")
        one = commit_of(await client.apply("ws", "fix", keep=True, author="dan"))
        deep = (await client.create_branch("ws", "deep", "fix", follow="manual")).sequence
        second = await edit(client, "deep", Set("b", 2), author="ben")
        inner = commit_of(await client.apply("ws", "deep", author="eve"))
        await client.rebase("ws", "fix")
        two = commit_of(await client.apply("ws", "fix", keep=True, author="dan"))

    def told(entries: list[dict[str, Any]]) -> list[Any]:
        return [
            (one["position"], told(one["source"])) if "source" in one else one["position"]
            for one in entries
            if one["kind"] not in ("dvu", "replay")
        ]

    plain = await command.json("log", "ws", "main")
    assert told(plain) == [two, one, base]
    entries = await command.json("log", "ws", "main", "--source")
    assert told(entries) == [(two, [(inner, [second, deep])]), (one, [first, made]), base]
    assert {each["changeSetId"] for each in entries[0]["source"]} == {"fix"}
    assert told(await command.json("log", "ws", "main", "b", "--source")) == [(two, [(inner, [second])]), base]
    code, lines, err = await command("log", "ws", "main", "--source")
    assert (code, err) == (0, "")
    places = [line[0] for line in lines if line[3] != "dvu" and "rebased on" not in line[3]]
    assert places == [
        str(two),
        f"fix@{inner}",
        f"deep@{second}",
        f"deep@{deep}",
        str(one),
        f"fix@{first}",
        f"fix@{made}",
        str(base),
    ]
    await js.purge(subjects.commits_stream, subjects.commits(ChangeSetKey("ws", "fix")), sequence=inner)
    (shown,) = [each for each in await command.json("log", "ws", "main", "--source") if each["position"] == one]
    assert "source" not in shown
    assert "ws/fix@" in shown["lost"]
    _, lines, _ = await command("log", "ws", "main", "--source")
    assert [line[0] for line in lines if "cannot be read" in line[3]] == ["fix"]

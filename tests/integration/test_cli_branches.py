"""`branch`, `branches` and `diff` of a branch, on the command line."""

import json
import shlex
from typing import Any

import pytest

from rebaser.cli.output import console
from rebaser_client import Derive, RebaserClient, Remove, Set, Update
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects
from tests.support.commands import rebaser, rebaser_json
from tests.support.history import commit_of, replayed
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
def place(nats_url: str, subjects: Subjects) -> dict[str, Any]:
    return {"nats_url": nats_url, "prefix": subjects.prefix}


async def told(place: dict[str, Any], *arguments: str, code: int = 0) -> list[list[str]]:
    """Return the output of a command by lines and columns; if it fails, its errors."""
    done = await rebaser(*arguments, **place)
    assert done.returncode == code, done.stderr
    return [line.split("\t") for line in (done.stderr if code else done.stdout).splitlines()]


async def test_a_branch_is_created_once(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        ((line,),) = await told(place, "branch", "shop", "draft", code=1)
        assert "there is no change set shop/main" in line
        assert "--from" in line
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 9)])
        ((line,),) = await told(place, "branch", "shop", "draft", "--author", "ann", "-m", "dearer")
        assert line.startswith("draft: created from main@")
        ((line,),) = await told(place, "branch", "shop", "draft", code=1)
        assert "exists: created from main@" in line
        assert "--or-use" in line
        (again,) = await rebaser_json("branch", "shop", "draft", "--or-use", **place)
        assert (again["changeSetId"], again["target"], again["changes"]) == ("draft", "main", 0)
        await told(place, "branch", "shop", "v1", "--from", f"main@{again['base']}", "--closed")
        ((line,),) = await told(place, "enqueue", "shop", "v1", "--set", "price=1", code=1)
        assert "closed" in line


async def test_a_suggested_command_works_for_names_that_begin_with_a_dash(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("-shop", "-main", [Set("-price", 9)])
        await client.create_branch("-shop", "-draft", parent="-main")
        await client.close_change_set("-shop", "-draft")
        ((line,),) = await told(place, "enqueue", "--set", "-price=1", "--", "-shop", "-draft", code=1)
        await told(place, *suggested(line))
        ((line,),) = await told(place, "get", "--", "-shop", "-draft", "fee", code=1)
        ((id_, *_),) = await told(place, *suggested(line))
        assert id_ == "-price"
        for name, price in (("-draft", 10), ("-main", 11)):
            await client.enqueue_updates_with_reply("-shop", name, [Set("-price", price)])
        await client.rebase("-shop", "-draft")
        conflict = json.loads((await rebaser("conflicts", "--json", "--", "-shop", "-draft", **place)).stdout)
        await told(place, *shlex.split(conflict["resolve"][0])[1:])
        assert (await client.values("-shop", "-draft"))["-price"].value == 11


def suggestion(*arguments: str) -> str:
    return " ".join(("rebaser", *arguments))


def suggested(line: str) -> list[str]:
    """Return the arguments of the command that a message suggests."""
    return shlex.split(line.split("`")[1])[1:]


async def test_branches_are_listed_and_compared_with_their_base_and_their_target(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 9), Set("qty", 3)])
        await client.create_branch("shop", "draft", follow="manual")
        await client.create_branch("shop", "v1", closed=True)
        await client.enqueue_updates_with_reply("shop", "draft", [Set("price", 10), Remove("qty")])
    assert await told(place, "diff", "shop", "draft") == [["price", "9", "10"], ["qty", "3", "-"]]
    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 11)])
    assert await told(place, "diff", "shop", "draft") == [["price", "9", "10", "11"], ["qty", "3", "-", ""]]
    price, _ = await rebaser_json("diff", "shop", "draft", **place)
    assert (price["id"], price["theirs"]["value"], price["moved"]) == ("price", 11, True)
    seen = await client.changes("shop", "draft")
    assert price["position"] == seen.info.sequence
    assert price["target"] == {"changeSetId": "main", "position": seen.target_sequence}
    rows = await told(place, "branches", "shop")
    assert [(row[0], row[2], row[4]) for row in rows] == [("draft", "2", "behind"), ("main", "", "")]
    names = [one["changeSetId"] for one in await rebaser_json("branches", "shop", "--all", **place)]
    assert names == ["draft", "main", "v1"]
    ((line,),) = await told(place, "diff", "shop", "main", code=1)
    assert "main@2h" in line
    assert f"`{suggestion('branches', 'shop')}` shows which are" in line
    assert f"`{suggestion('branch', 'shop', 'NAME', '--from', 'main')}` creates a branch of it" in line
    for arguments in (("get",), ("log",), ("show",), ("blame", "price"), ("get", "price", "--json")):
        ((line,),) = await told(place, arguments[0], "shop", "nope", *arguments[1:], code=1)
        assert "there is no change set shop/nope: `rebaser branches shop` lists change sets" in line
        assert "`rebaser enqueue shop nope --set ID=VALUE` creates it" in line
    for verb in ("diff", "conflicts", "rebase"):
        ((line,),) = await told(place, verb, "shop", "nope", code=1)
        assert "there is no change set shop/nope: `rebaser branches shop` lists change sets" in line
    ((line,),) = await told(place, "branches", "none", code=1)
    assert "workspace none has no change set with a commit" in line
    log = await told(place, "log", "shop", "draft")
    assert "created from main@" in log[-1][-1]
    assert any("created from main" in row[-1] for row in await told(place, "tail", "shop", "draft", "--all"))


async def test_a_diff_shows_what_follows_from_the_edits_of_a_branch(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    """The comparison is with the derived values at the base, whatever was edited in the target since."""
    engine = Engine()
    engine.go.set()
    total, other = (Derive(id_, "product", {"values": (of, "qty")}) for id_, of in (("total", "price"), ("other", "x")))

    async def edit(name: str, *updates: Update) -> None:
        await client.enqueue_updates_with_reply("shop", name, updates, wait="derived")

    async with serving(js, subjects, engine):
        await edit("main", Set("price", 9), Set("qty", 3), Set("x", 1), total, other)
        await client.create_branch("shop", "draft", follow="manual")
        await edit("draft", Set("price", 10), Derive("new", "sum", {"values": "total"}))
        assert await told(place, "diff", "shop", "draft", "--derived") == [
            ["new", "-", '= sum {"values":"total"}'],
            ["price", "9", "10"],
            ["total", "27", "30"],
        ]
        await edit("main", Set("qty", 5), Set("price", 11))
        rows = await told(place, "diff", "shop", "draft", "--derived")
        assert rows[1:] == [["price", "9", "10", "11"], ["total", "27", "30", ""]]
        *_, total_json = await rebaser_json("diff", "shop", "draft", "--derived", **place)
        assert (total_json["id"], total_json["valueBefore"]["value"], total_json["valueAfter"]["value"]) == (
            "total", 27, 30,
        )  # fmt: skip
        assert [line for line, *_ in await told(place, "diff", "shop", "draft")] == ["new", "price"]
        await client.delete_change_set("shop", "main")
        assert [id_ for id_, _, _ in (await client.changes("shop", "draft", derived=True)).derived] == ["total"]
        await js.purge(subjects.commits_stream, f"{subjects.root}.commits.shop.main", keep=1)
        ((line,),) = await told(place, "diff", "shop", "draft", "--derived", code=1)
        assert "is no longer readable" in line
        assert "`rebaser diff shop TARGET draft --derived`" in line


async def test_the_status_of_a_change_set_says_what_it_branches_from_and_what_is_in_its_way(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async def lines(name: str) -> list[str]:
        found = [line for line, *_ in await told(place, "status", "shop", name)]
        return found[next(place for place, line in enumerate(found) if line.startswith("status: ")) :]

    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 9)])
        born = await client.create_branch("shop", "draft", follow="manual")
        await client.enqueue_updates_with_reply("shop", "draft", [Set("price", 10)])
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 11)])
        created = f"created from main@{born.base}, in commit {born.sequence}"
        changes = f"branch of main: 1 change since main@{born.base}"
        behind = "behind: main was edited since; `rebaser rebase shop draft` brings these edits in"
        assert await lines("draft") == ["status: open", created, changes, behind]
        done = await client.rebase("shop", "draft")
        changes = f"branch of main: 1 change since main@{done.base}"
        conflict = "1 conflict with main: `rebaser conflicts shop draft` shows them"
        assert await lines("draft") == ["status: open", created, changes, conflict]
        await client.resolve("shop", "draft", take="draft")
        await client.protect("shop", "main")
        applied = commit_of(await client.apply("shop", "draft"))
        assert await lines("main") == [
            "status: open",
            "protected: it refuses edits, and accepts applied branches",
            f"applied: draft, in commit {applied}",
        ]
        await replayed(client, "shop", "draft", applied)
        assert (await lines("draft"))[0] == "status: closed, because it was applied to main"
        (found,) = await rebaser_json("status", "shop", "draft", **place)
        assert (found["branch"]["status"], found["branch"]["target"], found["branch"]["born"]) == (
            "applied", "main", born.sequence,
        )  # fmt: skip
        await client.delete_change_set("shop", "draft")
        assert await lines("draft") == ["status: deleted", created]
        (found,) = await rebaser_json("status", "shop", "draft", **place)
        assert found["checkpoint"]["blobs"] == 1, "the deletion has stored one"
        told_of = f"newest checkpoint: {console.size_text(found['checkpoint']['bytes'])} in 1 blob"
        assert [told_of] in await told(place, "status", "shop", "draft")


async def test_what_is_before_a_branch_was_created_is_reverted_with_of(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        first = commit_of(await client.enqueue_updates_with_reply("shop", "main", [Set("price", 9)]))
        await client.create_branch("shop", "draft", follow="manual")
        ((line,),) = await told(place, "revert", "shop", "draft", str(first), code=1)
        assert "specify the target with --of" in line

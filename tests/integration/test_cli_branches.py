"""`branch`, `branches` and `diff` of a branch, on the command line."""

from typing import Any

import pytest

from rebaser_client import RebaserClient, Remove, Set
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects
from tests.support.commands import rebaser, rebaser_json
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
def place(nats_url: str, subjects: Subjects) -> dict[str, Any]:
    return {"nats_url": nats_url, "prefix": subjects.prefix}


async def told(place: dict[str, Any], *arguments: str, code: int = 0) -> list[list[str]]:
    """What a command says, by lines and columns: its output if it succeeds, otherwise its errors."""
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


async def test_branches_are_listed_and_compared_with_their_base_and_their_target(
    js: JetStream, subjects: Subjects, client: RebaserClient, place: dict[str, Any]
) -> None:
    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 9), Set("qty", 3)])
        await client.create_branch("shop", "draft")
        await client.create_branch("shop", "v1", closed=True)
        await client.enqueue_updates_with_reply("shop", "draft", [Set("price", 10), Remove("qty")])
    assert await told(place, "diff", "shop", "draft") == [["price", "9", "10"], ["qty", "3", "-"]]
    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("shop", "main", [Set("price", 11)])
    assert await told(place, "diff", "shop", "draft") == [["price", "9", "10", "11"], ["qty", "3", "-", ""]]
    price, _ = await rebaser_json("diff", "shop", "draft", **place)
    assert (price["id"], price["theirs"]["value"], price["moved"]) == ("price", 11, True)
    rows = await told(place, "branches", "shop")
    assert [(row[0], row[2], row[4]) for row in rows] == [("draft", "2", "behind"), ("main", "", "")]
    names = [one["changeSetId"] for one in await rebaser_json("branches", "shop", "--all", **place)]
    assert names == ["draft", "main", "v1"]
    ((line,),) = await told(place, "diff", "shop", "main", code=1)
    assert "main@2h" in line
    ((line,),) = await told(place, "branches", "none", code=1)
    assert "workspace none has no change set with a commit" in line
    log = await told(place, "log", "shop", "draft")
    assert "created from main@" in log[-1][-1]
    assert any("created from main" in row[-1] for row in await told(place, "tail", "shop", "draft", "--all"))

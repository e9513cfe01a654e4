"""Trying a change on a branch while both sides are edited, with real servers and derived values on Spark."""

import json

import pytest

from rebaser_client import Derive, RebaserClient, RequestRejected, Set, Update
from tests.support.commands import rebaser
from tests.support.history import commit_of, replayed

pytestmark = pytest.mark.anyio

TOTAL = Derive("total", "sum", {"values": ("price/a", "price/b")})


async def test_a_branch_shows_what_follows_from_its_edits_and_the_parent_does_not(client: RebaserClient) -> None:
    prices: list[Update] = [Set("price/a", 1), Set("price/b", 2), TOTAL]
    await client.enqueue_updates_with_reply("trial", "main", prices, wait="derived")
    made = await client.create_branch("trial", "dearer", author="ann", wait="derived", follow="manual")
    assert {id_: one.value for id_, one in (await client.values("trial", "dearer")).items()}["total"] == 3
    await client.enqueue_updates_with_reply("trial", "dearer", [Set("price/a", 10)], wait="derived")
    await client.enqueue_updates_with_reply("trial", "main", [Set("price/b", 5)], wait="derived")
    assert (await client.values("trial", "dearer"))["total"].value == 12
    assert (await client.values("trial", "main"))["total"].value == 6
    found = await client.changes("trial", "dearer")
    assert (found.info.base, found.info.behind) == (made.base, True)
    assert [(one.id, one.base, one.ours, one.moved) for one in found.changes] == [
        ("price/a", Set("price/a", 1), Set("price/a", 10), False)
    ]
    applied = await client.apply("trial", "dearer", author="ann", message="reviewed", wait="derived")
    assert (await client.values("trial", "main"))["total"].value == 15
    await client.undo("trial", "main", author="ann", wait="derived")
    assert (await client.values("trial", "main"))["total"].value == 6
    await replayed(client, "trial", "dearer", commit_of(applied))
    tag = await client.create_branch("trial", "v1", "dearer", closed=True)
    with pytest.raises(RequestRejected, match="closed"):
        await client.enqueue_updates_with_reply("trial", "v1", [Set("price/a", 1)])
    assert (await client.values("trial", "v1"))["total"].value == 15  # `dearer` was rebased
    shown = {one.change_set: (one.target, one.status) for one in await client.branches("trial")}
    assert shown == {"main": (None, "open"), "dearer": ("main", "applied"), "v1": ("dearer", tag.status)}


async def test_the_story_of_a_conflict_on_the_command_line(fleet_url: str, client: RebaserClient) -> None:
    """Create a branch, edit it and its target, look at the conflict, settle it, apply the branch, and take the apply
    back."""

    async def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        done = await rebaser(*arguments, nats_url=fleet_url)
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr

    async def total(name: str) -> object:
        out, _ = await run("get", "story", name, "total", "--json")
        return json.loads(out)["value"]

    edits = ("--set", "price=9.5", "--set", "qty=3", "--derive", "total=price * qty")
    await run("enqueue", "story", "main", *edits, "--wait", "derived")
    await run("branch", "story", "dearer", "--author", "ann")
    await run("enqueue", "story", "dearer", "--set", "price=12", "--author", "ann", "--wait", "derived")
    assert (await total("dearer"), await total("main")) == (36.0, 28.5)
    await run("enqueue", "story", "main", "--set", "price=10", "--set", "qty=4", "--wait", "derived")
    out, said = await run("apply", "story", "dearer", "--yes", code=1)
    assert out == "price\t9.5\t10\t12\n"
    assert "rebaser resolve story dearer price --take main" in said
    assert await total("main") == 40.0
    assert "1 conflict" in (await run("branches", "story"))[0]
    out, _ = await run("resolve", "story", "dearer", "price", "--set", "11", "--author", "ann")
    assert "1 conflict settled, 0 left" in out
    await run("apply", "story", "dearer", "--yes", "--check", "--strict", "--author", "ann", "-m", "reviewed")
    await client.enqueue_updates_with_reply("story", "main", (), wait="derived")
    assert await total("main") == 44.0
    _, said = await run("undo", "story", "main", "--author", "ann", "--yes")
    assert "to go on with the changes of dearer: rebaser branch story NAME --from dearer@" in said
    await client.enqueue_updates_with_reply("story", "main", (), wait="derived")
    assert await total("main") == 40.0
    assert "closed (applied)" in (await run("branches", "story", "--all"))[0]

"""Try a change on a branch while both sides are edited: real servers, derived values on Spark."""

import pytest

from rebaser_client import Derive, RebaserClient, RequestRejected, Set, Update

pytestmark = pytest.mark.anyio

TOTAL = Derive("total", "sum", {"values": ("price/a", "price/b")})


async def test_a_branch_shows_what_follows_from_its_edits_and_the_parent_does_not(client: RebaserClient) -> None:
    prices: list[Update] = [Set("price/a", 1), Set("price/b", 2), TOTAL]
    await client.enqueue_updates_with_reply("trial", "main", prices, wait="derived")
    made = await client.create_branch("trial", "dearer", author="ann", wait="derived")
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
    await client.apply("trial", "dearer", author="ann", message="reviewed", wait="derived")
    assert (await client.values("trial", "main"))["total"].value == 15
    await client.undo("trial", "main", author="ann", wait="derived")
    assert (await client.values("trial", "main"))["total"].value == 6
    tag = await client.create_branch("trial", "v1", "dearer", closed=True)
    with pytest.raises(RequestRejected, match="closed"):
        await client.enqueue_updates_with_reply("trial", "v1", [Set("price/a", 1)])
    assert (await client.values("trial", "v1"))["total"].value == 12
    shown = {one.change_set: (one.target, one.status) for one in await client.branches("trial")}
    assert shown == {"main": (None, "open"), "dearer": ("main", "open"), "v1": ("dearer", tag.status)}

"""Which related change sets have another definition of a value: read from the edits of branches, in pages."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from rebaser.console.api import elsewhere
from rebaser_client import Derive, RebaserClient, Remove, Set, Update
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio

HOW = ("changeSetId", "relation", "how", "text")


async def rows(console: WebConsole, ws: str, name: str, id_: str) -> list[tuple[str, ...]]:
    answer = await console.get(f"/change-sets/{ws}/{name}/elsewhere?id={id_}")
    assert answer["next"] is None
    return [tuple(row[field] for field in HOW) for row in answer["rows"]]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(60):
        while True:
            if await holds():
                return
            await anyio.sleep(0.05)


@pytest.fixture
async def shop(client: RebaserClient, ws: str) -> str:
    """A change set with branches that edit, remove or leave `price`, and one that is closed."""
    edits: list[Update] = [Set("price", 1), Set("fee", 2), Derive("sum", "sum", {"of": ["price", "fee"]})]
    await client.enqueue_updates_with_reply(ws, "main", edits, wait="derived")
    for name in ("idle", "closed", "dearer", "without"):
        await client.create_branch(ws, name, follow="manual")
    await client.enqueue_updates_with_reply(ws, "dearer", [Set("price", 3), Set("only", 1)])
    await client.enqueue_updates_with_reply(ws, "without", [Remove("price")])
    await client.enqueue_updates_with_reply(ws, "closed", [Set("price", 4)])
    await client.close_change_set(ws, "closed")
    return ws


async def test_open_branches_with_another_definition_are_named(console: WebConsole, shop: str) -> None:
    await until(lambda: _related(console, shop, "main", 3))
    assert await rows(console, shop, "main", "price") == [
        ("without", "branch", "removed", None),
        ("dearer", "branch", "other", "3"),
    ]
    assert await rows(console, shop, "main", "fee") == []
    assert await rows(console, shop, "main", "only") == [("dearer", "branch", "other", "1")], "it exists only there"


async def test_of_a_branch_the_target_and_its_other_branches_are_looked_at(console: WebConsole, shop: str) -> None:
    await until(lambda: _related(console, shop, "dearer", 3))
    assert await rows(console, shop, "dearer", "price") == [
        ("main", "target", "other", "1"),
        ("without", "sibling", "removed", None),
    ]
    assert await rows(console, shop, "idle", "price") == [
        ("without", "sibling", "removed", None),
        ("dearer", "sibling", "other", "3"),
    ]
    assert await rows(console, shop, "idle", "sum") == []


async def test_a_branch_that_lacks_the_newest_definition_has_an_older_one(
    console: WebConsole, client: RebaserClient, shop: str
) -> None:
    await client.enqueue_updates_with_reply(shop, "main", [Set("price", 5)])
    await until(lambda: _related(console, shop, "main", 3))
    found = {name: how for name, _, how, _ in await rows(console, shop, "main", "price")}
    assert found == {"without": "removed", "dearer": "other", "idle": "older"}
    await client.rebase(shop, "idle")

    async def is_level() -> bool:
        return "idle" not in {name for name, *_ in await rows(console, shop, "main", "price")}

    await until(is_level)


async def test_they_are_looked_at_in_pages(console: WebConsole, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await until(lambda: _related(console, shop, "main", 3))
    monkeypatch.setattr(elsewhere, "LOOKED", 1)
    found: list[str] = []
    offset: Any = 0
    pages = 0
    while offset is not None:
        answer = await console.get(f"/change-sets/{shop}/main/elsewhere?id=price&offset={offset}")
        assert (answer["looked"], answer["matching"]) == (1, 3)
        found += [row["changeSetId"] for row in answer["rows"]]
        offset, pages = answer["next"], pages + 1
    assert (found, pages) == (["without", "dearer"], 3)


async def test_the_edits_of_a_branch_are_read_without_its_target(client: RebaserClient, shop: str) -> None:
    await client.enqueue_updates_with_reply(shop, "main", [Set("fee", 9)])
    assert await client.branch_edits(shop, "dearer") == {"price": Set("price", 3), "only": Set("only", 1)}
    assert await client.branch_edits(shop, "without") == {"price": None}
    assert await client.branch_edits(shop, "idle") == {}


async def _related(console: WebConsole, ws: str, name: str, number: int) -> bool:
    """Whether the console has seen the branches, and their newest commits."""
    answer = await console.get(f"/change-sets/{ws}/{name}/elsewhere?id=price")
    return answer["matching"] == number and len(answer["rows"]) >= 2

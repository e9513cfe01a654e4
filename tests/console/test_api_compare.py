"""Two change sets compared through the API, on a real installation; and comparisons of states with many values."""

import sys
from typing import Any, cast

import anyio
import pytest

from rebaser.console.access.options import ConsoleOptions
from rebaser.console.api import compare as api_compare
from rebaser.console.live.hub import Hub
from rebaser.console.reading import comparison
from rebaser.console.reading.comparison import compare
from rebaser.console.reading.states import BrowsedState
from rebaser.console.resources import Console, Given
from rebaser_client import Derive, RebaserClient, Remove, Set
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pair(client: RebaserClient, ws: str) -> str:
    """`main`, and `draft`, which was created from it and edited, on each kind of difference."""
    edits = [Set("price", 2), Set("same", 1), Set("gone", "x"), Set("typed", 1)]
    formulas = [Derive("total", "sum", {"of": ["price", "same"]}), Derive("other", "sum", {"of": ["price"]})]
    await client.enqueue_updates_with_reply(ws, "main", [*edits, *formulas], wait="derived")
    await client.create_branch(ws, "draft")
    edits = [Set("price", 3), Remove("gone"), Set("new", "<b>"), Set("typed", 1.0)]  # type: ignore[list-item]
    formulas = [Derive("other", "sum", {"of": ["same"]})]
    await client.enqueue_updates_with_reply(ws, "draft", [*edits, *formulas], wait="derived")
    return f"workspace={ws}&a=main&b=draft"


def briefly(row: Any) -> tuple[str, str, str, str]:
    return row["id"], row["kind"], row["a"]["text"], row["b"]["text"]


async def test_each_difference_is_found_with_both_sides(console: WebConsole, pair: str, ws: str) -> None:
    answer = await console.get(f"/compare?{pair}")
    assert [briefly(row) for row in answer["rows"]] == [
        ("gone", "removed", '"x"', ""),
        ("new", "added", "", '"<b>"'),
        ("other", "edited", "2", "1"),
        ("price", "edited", "2", "3"),
        ("total", "derived", "3", "4"),
        ("typed", "edited", "1", "1.0"),
    ]
    assert answer["counts"] == {"all": 6, "edited": 3, "derived": 1, "removed": 1, "added": 1}
    assert answer["totals"] == [6, 6]
    assert answer["rows"][0]["b"]["state"] == "missing"
    assert answer["rows"][2]["a"]["definition"] != answer["rows"][2]["b"]["definition"]
    swapped = await console.get(f"/compare?workspace={ws}&a=draft&b=main&kind=added")
    assert [row["id"] for row in swapped["rows"]] == ["gone"]


async def test_differences_are_searched_and_paged(console: WebConsole, pair: str) -> None:
    page = await console.get(f"/compare?{pair}&kind=edited&offset=1&limit=1")
    assert ([row["id"] for row in page["rows"]], page["matching"]) == (["price"], 3)
    assert [row["id"] for row in (await console.get(f"/compare?{pair}&q=t*"))["rows"]] == ["total", "typed"]
    assert (await console.get(f"/compare?{pair}&offset=100"))["rows"] == []


async def test_it_follows_both_change_sets(
    console: WebConsole, client: RebaserClient, pair: str, ws: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebaser.console.reading.states.RELOAD_FACTOR", 0)
    before = await console.get(f"/compare?{pair}")
    await client.enqueue_updates_with_reply(ws, "main", [Set("price", 3)], wait="derived")
    answer = before
    with anyio.fail_after(60):
        while answer["positions"] == before["positions"]:
            answer = await console.get(f"/compare?{pair}")
    assert "price" not in {row["id"] for row in answer["rows"]}


async def test_what_cannot_be_compared(console: WebConsole, pair: str, ws: str) -> None:
    for query, code in [
        (f"workspace={ws}&a=main&b=main", "invalid_argument"),
        (f"workspace={ws}&a=main", "invalid_id"),
        ("a=main&b=draft", "invalid_id"),
        (f"workspace={ws}&a=main&b=%3Cb%3E", "invalid_id"),
        (f"{pair}&kind=none", "invalid_argument"),
    ]:
        assert (await console.get(f"/compare?{query}", 400))["error"]["code"] == code
    missing = await console.get(f"/compare?workspace={ws}&a=main&b=none", 404)
    assert missing["error"]["code"] == "no_such_change_set"


async def test_many_values_are_compared_in_steps_and_once(
    client: RebaserClient, ws: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "STEP", 7)
    for name, numbers in (("main", range(0, 60, 2)), ("draft", range(0, 60, 3))):
        edits = [Set(f"v{number:02}", number % 5 if name == "main" else number % 10) for number in numbers]
        await client.enqueue_updates_with_reply(ws, name, edits)
    one, two = [BrowsedState(await client.state(ws, name)) for name in ("main", "draft")]
    found = await compare(one, two)
    expected = {
        f"v{number:02}": "edited" if number % 6 == 0 else "removed" if number % 2 == 0 else "added"
        for number in range(60)
        if number % 2 == 0 or number % 3 == 0
        if number % 6 or number % 5 != number % 10
    }
    assert {id_: comparison.KINDS[kind] for id_, kind in zip(found.ids, found.kinds, strict=True)} == expected
    assert found.ids == sorted(expected)
    assert found.memory > sum(sys.getsizeof(id_) + 9 for id_ in found.ids), "its ids may outlive their states"


async def test_pages_of_a_comparison_share_it_and_it_counts_where_it_is_kept(
    client: RebaserClient, pair: str, ws: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[int]()

    async def counted(one: BrowsedState, two: BrowsedState) -> comparison.Comparison:
        found = await compare(one, two)
        made.append(found.memory)
        return found

    class Connected:
        async def client(self) -> RebaserClient:
            return client

    monkeypatch.setattr(api_compare, "compare", counted)
    console = Console(cast("Hub", Connected()), ConsoleOptions(frozenset()), "0")
    for more in ({}, {"offset": "1"}, {"kind": "added"}, {"a": "draft", "b": "main"}):
        await api_compare.read(console, Given({}, {"workspace": ws, "a": "main", "b": "draft", **more}))
    assert len(made) == 2, "one for each order"
    assert console.kept.bytes == sum(made)

"""The neighbourhood of a value: what is shown of it, what is only counted, and that it is bounded."""

import pytest

from rebaser.console.api import graph
from rebaser.console.api.graph import neighbourhood
from rebaser.console.reading.states import BrowsedState
from rebaser_client import Derive, Match, RebaserClient, Set
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Update
from tests.support.web_console import WebConsole


def browsed(*updates: Update) -> BrowsedState:
    state = ChangeSetState()
    for update in updates:
        state.cells.apply(update, 1)
    return BrowsedState(state)


def derive(id_: str, *inputs: str | Match) -> Derive:
    return Derive(id_, "sum", {"of": inputs})


CHAIN = browsed(Set("a", 1), *(derive(after, before) for before, after in ("ab", "bc", "cd", "de", "ef")))


def levels(found: dict[str, object]) -> dict[str, int]:
    return {node["id"]: node["level"] for node in found["nodes"]}  # type: ignore[attr-defined]


def test_it_reaches_as_far_as_it_is_asked_to() -> None:
    found = neighbourhood(CHAIN, id_="c", depth=2)
    assert levels(found) == {"c": 0, "b": -1, "d": 1, "a": -2, "e": 2}
    assert {(edge["from"], edge["to"]) for edge in found["edges"]} == {("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")}


def test_many_neighbours_are_counted_and_those_in_trouble_come_first() -> None:
    values = [Set(f"v{number:03}", number) for number in range(100)]
    loaded = browsed(
        *values, derive("all", *(value.id for value in values), "gone"), *(derive(f"d{n}", "v000") for n in range(40))
    )
    found = neighbourhood(loaded, id_="all", depth=1)
    assert len(found["nodes"]) == 1 + graph.MAX_FAN
    assert found["nodes"][0]["moreInputs"] == 101 - graph.MAX_FAN
    assert "gone" in levels(found), "what is missing is in trouble, too"
    popular = neighbourhood(loaded, id_="v000", depth=1)
    assert (len(popular["nodes"]), popular["nodes"][0]["moreDependents"]) == (13, 41 - graph.MAX_FAN)
    stale = browsed(*values, derive("late", "v000"), derive("all", *(value.id for value in values), "late"))
    assert "late" in levels(neighbourhood(stale, id_="all", depth=1))


def test_a_value_that_is_expanded_shows_more_of_its_neighbours() -> None:
    values = [Set(f"v{number:03}", number) for number in range(100)]
    loaded = browsed(*values, derive("all", *(value.id for value in values)), derive("top", "all"), derive("x", "v000"))
    found = neighbourhood(loaded, id_="top", depth=1)
    assert levels(found) == {"top": 0, "all": -1}
    found = neighbourhood(loaded, id_="top", depth=1, expand=["nothing", "all", "v000"])
    [all_] = [node for node in found["nodes"] if node["id"] == "all"]
    assert (all_["expanded"], all_["moreInputs"]) == (True, 100 - graph.EXPANDED_FAN)
    assert levels(found)["v000"] == -2
    assert levels(found)["x"] == -1, "what uses an expanded value is on its right"
    assert [node["id"] for node in found["nodes"] if node["expanded"]] == ["all", "v000"]


def test_neighbours_of_one_urgency_are_in_order() -> None:
    values = [Set(f"v{number:03}", number) for number in range(100)]
    users = [derive(f"d{number:03}", "v000") for number in range(100)]
    loaded = browsed(*values, derive("all", *(value.id for value in reversed(values))), *reversed(users))
    popular = [node["id"] for node in neighbourhood(loaded, id_="v000", depth=1)["nodes"]]
    assert popular == ["v000", "all", *(f"d{number:03}" for number in range(graph.MAX_FAN - 1))], "by their ids"
    whole = [node["id"] for node in neighbourhood(loaded, id_="all", depth=1)["nodes"]]
    assert whole == ["all", *(f"v{99 - number:03}" for number in range(graph.MAX_FAN))], "as the definition has them"


def test_a_pattern_is_looked_up_instead_of_compared_with_all_ids() -> None:
    """A hundred nodes may have a hundred patterns each, and a change set a million values."""
    loaded = browsed(
        *(Set(f"cart/{n}/price", n) for n in range(5)), Set("fee", 1), derive("all", Match("cart/*/price"))
    )
    loaded.ids = []  # all of them, which the page of values needs
    found = neighbourhood(loaded, id_="all", depth=1)
    assert sorted(levels(found)) == ["all", *(f"cart/{n}/price" for n in range(5))]


def test_a_cycle_is_closed() -> None:
    found = neighbourhood(browsed(derive("a", "b"), derive("b", "a")), id_="a", depth=4)
    assert sorted(levels(found)) == ["a", "b"]
    assert {(edge["from"], edge["to"]) for edge in found["edges"]} == {("a", "b"), ("b", "a")}


def test_a_large_neighbourhood_is_cut() -> None:
    rows = [[f"{level}/{number}" for number in range(12)] for level in range(6)]
    layers = [derive(id_, *below) for above, below in zip(rows[1:], rows, strict=False) for id_ in above]
    loaded = browsed(*(Set(id_, 1) for id_ in rows[0]), *layers)
    found = neighbourhood(loaded, id_="3/0", depth=4)
    assert len(found["nodes"]) <= graph.MAX_NODES
    assert len(found["edges"]) <= graph.MAX_EDGES
    known = set(levels(found))
    assert all({edge["from"], edge["to"]} <= known for edge in found["edges"])


def test_a_pattern_stands_for_what_it_matches() -> None:
    loaded = browsed(
        Set("cart/1/price", 1), Set("cart/2/price", 2), Set("cart/2/name", 2), derive("t", Match("cart/*/price"))
    )
    assert levels(neighbourhood(loaded, id_="t", depth=1)) == {"t": 0, "cart/1/price": -1, "cart/2/price": -1}
    assert levels(neighbourhood(loaded, id_="cart/1/price", depth=1)) == {"cart/1/price": 0, "t": 1}


@pytest.mark.anyio
async def test_it_is_read_from_a_change_set(console: WebConsole, client: RebaserClient, ws: str) -> None:
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 1), derive("b", "a", "gone")], wait="derived")
    found = await console.get(f"/change-sets/{ws}/main/graph?id=b")
    assert {(node["id"], node["level"], node["state"]) for node in found["nodes"]} == {
        ("b", 0, "error"),
        ("a", -1, "ok"),
        ("gone", -1, "missing"),
    }
    error = (await console.get(f"/change-sets/{ws}/main/graph?id=c", 404))["error"]
    assert (error["code"], error["position"]) == ("no_such_value", found["position"])
    expanded = "%0A".join([*(f"{number:0250}" for number in range(graph.MAX_EXPANDED)), "a"])
    found = await console.get(f"/change-sets/{ws}/main/graph?id=b&expand={expanded}")
    assert [node["id"] for node in found["nodes"] if node["expanded"]] == ["a"], "of too many, the last ones"
    assert (await console.get(f"/change-sets/{ws}/main/graph?id=b&depth=9", 400))["error"]["code"] == "invalid_argument"

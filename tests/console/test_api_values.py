"""Tests the answers about one change set on a real installation: values, one value, commits, history, explanation."""

from typing import Any
from urllib.parse import urlencode

import pytest

from rebaser.console.api import values
from rebaser.testing import LocalRebaser
from rebaser_client import Derive, Match, RebaserClient, Remove, Set, Unset, Update
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log import scan
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.troubled_updates import troubled, troubled_updates
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio

EDITS: list[Update] = [
    *(Set(f"cart/{number}/price", number) for number in range(5)),
    Set("cart/0/name", "<b>tea</b>"),
    Derive("cart/total", "sum", {"values": [Match("cart/*/price")]}),
    Set("fee", 2**60 + 1),
    Derive("broken", "sum", {"values": ["missing"]}),
    Derive("worse", "sum", {"values": ["broken"]}),
    Unset("later"),
]


@pytest.fixture
async def path(client: RebaserClient, ws: str) -> str:
    await client.enqueue_updates_with_reply(ws, "main", EDITS, wait="derived", author="ann", message="first prices")
    return f"/change-sets/{ws}/main"


async def rows(console: WebConsole, path: str, **query: Any) -> Any:
    return await console.get(f"{path}/values?{urlencode(query)}")


def names(answer: Any) -> list[str]:
    return [row.get("group") or row["id"] for row in answer["rows"]]


async def test_values_are_a_tree_with_the_errors_of_each_branch(console: WebConsole, path: str) -> None:
    top = await rows(console, path)
    assert names(top) == ["broken", "cart/", "fee", "later", "worse"]
    assert top["rows"][1] == {"group": "cart/", "count": 7, "errors": 0, "stale": 0}
    assert (top["total"], top["errors"], top["stale"], top["next"], top["tree"]) == (11, 2, 0, None, True)
    assert top["rows"][2]["text"] == "1152921504606846977", "a browser would round the number"
    cart = await rows(console, path, prefix="cart/")
    assert names(cart) == ["cart/0/", "cart/1/", "cart/2/", "cart/3/", "cart/4/", "cart/total"]
    assert (cart["rows"][5]["state"], cart["rows"][5]["text"]) == ("ok", "10")
    assert names(await rows(console, path, prefix="cart/0/")) == ["cart/0/name", "cart/0/price"]
    assert names(await rows(console, path, prefix="nothing/")) == []


async def test_a_level_is_read_in_pages(console: WebConsole, path: str) -> None:
    found, after = [], ""
    while True:
        page = await rows(console, path, limit=2, after=after)
        found += names(page)
        if page["next"] is None:
            break
        after = page["next"]
    assert found == ["broken", "cart/", "fee", "later", "worse"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"q": "PRICE"}, [f"cart/{number}/price" for number in range(5)]),
        ({"q": "cart/*/price"}, [f"cart/{number}/price" for number in range(5)]),
        ({"q": "cart name"}, ["cart/0/name"]),
        ({"q": "*"}, ["broken", "fee", "later", "worse"]),
        ({"state": "error"}, ["broken", "worse"]),
        ({"state": "stale"}, []),
        ({"state": "derived"}, ["broken", "cart/total", "worse"]),
        ({"state": "unset"}, ["later"]),
        ({"state": "set", "prefix": "cart/0/"}, ["cart/0/name", "cart/0/price"]),
        ({"state": "error", "q": "w"}, ["worse"]),
        ({"kind": "unset"}, ["later"]),
        ({"kind": "derived", "state": "error"}, ["broken", "worse"]),
        ({"function": "sum", "prefix": "cart/"}, ["cart/total"]),
        ({"function": "sum", "state": "error", "q": "wor"}, ["worse"]),
        ({"function": "sum", "kind": "set"}, []),
        ({"function": "cel"}, []),
        ({"q": "price", "limit": 2, "after": "cart/1/price"}, ["cart/2/price", "cart/3/price"]),
    ],
)
async def test_values_are_found(console: WebConsole, path: str, query: dict[str, Any], expected: list[str]) -> None:
    answer = await rows(console, path, **query)
    assert names(answer) == expected
    assert answer["tree"] is False
    assert answer["next"] == ("cart/3/price" if "after" in query else None)


async def test_functions_are_counted_in_the_whole_change_set(console: WebConsole, path: str) -> None:
    for query in ({}, {"prefix": "cart/"}, {"state": "error"}):
        assert (await rows(console, path, **query))["functions"] == [{"name": "sum", "count": 3}]


async def test_all_inputs_and_all_values_that_use_one_are_read_in_pages(
    console: WebConsole, client: RebaserClient, ws: str
) -> None:
    items = [f"item/{number:03}" for number in range(230)]
    users = [Derive(f"user/{number:03}", "sum", {"of": ["item/007"]}) for number in range(210)]
    total = Derive("total", "sum", {"of": [*items, "gone"], "other": [Match("item/00*")]})
    await client.enqueue_updates_with_reply(ws, "main", [*(Set(id_, 1) for id_ in items), total, *users])
    path = f"/change-sets/{ws}/main/neighbours"

    async def ids(query: str, limit: int = 100) -> list[str]:
        found: list[str] = []
        while True:
            page = await console.get(f"{path}?{query}&offset={len(found)}&limit={limit}")
            found += [row["id"] for row in page["rows"]]
            if len(found) >= page["matching"]:
                return found

    assert await ids("id=total") == [*items, "gone", "item/00*"], "in the order of the definition"
    assert await ids("id=item/007&side=dependents") == ["total", *(user.id for user in users)]
    assert await ids("id=total&q=item/22*", 3) == [id_ for id_ in items if id_.startswith("item/22")]
    assert await ids("id=item/007&side=dependents&q=19", 5) == [user.id for user in users if "19" in user.id]
    last = (await console.get(f"{path}?id=total&offset=230"))["rows"]
    assert [(row["id"], row["state"], row["matches"]) for row in last] == [
        ("gone", "missing", None),
        ("item/00*", "pattern", 10),
    ]
    assert (await console.get(f"{path}?id=gone", 404))["error"]["code"] == "no_such_value"
    assert (await console.get(f"{path}?id=total&side=up", 400))["error"]["code"] == "invalid_argument"


async def test_the_history_of_a_value_goes_on_where_its_search_ended(
    console: WebConsole, client: RebaserClient, ws: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for number in range(9):
        id_ = "price" if number % 4 == 0 else "fee"
        made.append((await client.enqueue_updates_with_reply(ws, "main", [Set(id_, number)])).status.commit)
    monkeypatch.setattr(scan, "MAX_COMMITS", 3)
    path, found, steps, before = f"/change-sets/{ws}/main/history?id=price", [], 0, ""
    while True:
        answer = await console.get(path + before)
        found += [row["position"] for row in answer["rows"]]
        steps += 1
        assert answer["complete"] is (answer["next"] is None)
        assert answer["scanned"] <= 3
        if answer["complete"]:
            break
        before = f"&before={answer['next']}"
    assert (found, steps >= 3) == (made[::-4], True)


@pytest.mark.parametrize(("name", "bound"), [("MAX_BYTES", 0), ("MAX_SECONDS", -1.0), ("MAX_COMMITS", 0)])
async def test_each_step_of_a_search_goes_on_by_a_commit(
    client: RebaserClient, ws: str, monkeypatch: pytest.MonkeyPatch, name: str, bound: float
) -> None:
    for number in range(3):
        await client.enqueue_updates_with_reply(ws, "main", [Set("price", number)])
    monkeypatch.setattr(scan, name, bound)
    found, at = [], None
    for _ in range(20):
        page = await client.value_history(ws, "main", "price", at=at)
        assert page.commits == 1
        found += [entry.sequence for entry in page.entries]
        at = page.next
        if at is None:
            break
    assert (len(found), sorted(found, reverse=True), at) == (3, found, None)


async def test_a_stale_value_names_the_request_that_is_the_cause(
    console: WebConsole, client: RebaserClient, ws: str
) -> None:
    with troubled_updates():
        await client.enqueue_updates_with_reply(ws, "main", troubled("hang"))
        path = f"/change-sets/{ws}/main"
        stale = (await rows(console, path, state="stale"))["rows"][0]["id"]
        await client.enqueue_updates_with_reply(ws, "other", [Set("a", 1)], author="bob")
        cause = (await console.get(f"{path}/blame?id={stale}"))["cause"]
        assert cause["id"] in {row["id"] for row in (await rows(console, path, q="*"))["rows"]}
        assert cause["request"]["outcome"] == "success"
        assert cause["position"] > 0
    assert (await console.get(f"/change-sets/{ws}/other/blame?id=a"))["cause"] is None


async def test_a_value_is_explained_to_where_its_trouble_began(console: WebConsole, path: str) -> None:
    worse = await console.get(f"{path}/value?id=worse")
    assert (worse["state"], worse["value"], worse["error"]["origin"]) == ("error", None, "broken")
    assert [row["id"] for row in worse["path"]] == ["worse", "broken"]
    assert [(row["name"], row["id"], row["state"]) for row in worse["inputs"]] == [("values", "broken", "error")]
    broken = await console.get(f"{path}/value?id=broken")
    assert [(row["id"], row["state"]) for row in broken["inputs"]] == [("missing", "missing")]
    assert [row["id"] for row in broken["dependents"]] == ["worse"]
    total = await console.get(f"{path}/value?id=cart/total")
    assert [(row["id"], row["matches"]) for row in total["inputs"]] == [("cart/*/price", 5)]
    assert (total["definition"]["function"], total["value"]) == ("sum", {"text": "10", "length": 2, "whole": True})
    error = (await console.get(f"{path}/value?id=missing", 404))["error"]
    assert (error["code"], error["position"]) == ("no_such_value", total["position"])


async def test_a_large_value_is_cut(console: WebConsole, client: RebaserClient, ws: str) -> None:
    await client.enqueue_updates_with_reply(ws, "main", [Set("long", "x" * 200_000)])
    answer = await console.get(f"/change-sets/{ws}/main/value?id=long")
    assert (len(answer["value"]["text"]), answer["value"]["length"], answer["value"]["whole"]) == (
        65_536,
        200_002,
        False,
    )
    [row] = (await rows(console, f"/change-sets/{ws}/main"))["rows"]
    assert len(row["text"]) == 200


async def test_commits_history_and_blame_tell_who_and_why(
    console: WebConsole, client: RebaserClient, ws: str, path: str
) -> None:
    await client.enqueue_updates_with_reply(ws, "main", [Set("fee", 3), Remove("later")], author="bob", message="less")
    answer = await console.get(f"{path}/commits")
    edits = [row for row in answer["rows"] if row["kind"] == "rebase"]
    assert [row["requests"][0]["author"] for row in edits] == ["bob", "ann"]
    assert answer["next"] is None
    newest = edits[0]["position"]
    shown = await console.get(f"{path}/commit?at={newest}")
    assert shown["edits"][0]["changes"] == [
        {"id": "fee", "before": "1152921504606846977", "after": "3", "known": True},
        {"id": "later", "before": "(unset)", "after": None, "known": True},
    ]
    [update] = [row for row in answer["rows"] if row["kind"] == "dvu"][-1:]
    computed = (await console.get(f"{path}/commit?at={update['position']}"))["computed"]
    assert {(one["id"], one["state"]) for one in computed} == {
        ("cart/total", "ok"),
        ("broken", "error"),
        ("worse", "error"),
    }
    history = await console.get(f"{path}/history?id=fee")
    assert [row["after"]["text"] for row in history["rows"]] == ["3", "1152921504606846977"]
    assert history["complete"]
    blame = await console.get(f"{path}/blame?id=fee")
    assert (blame["blame"]["position"], blame["blame"]["request"]["message"]) == (newest, "less")
    assert (blame["blame"]["changeSetId"], blame["blame"]["copies"], blame["blame"]["lost"]) == ("main", [], None)
    first = await console.get(f"{path}/commits?limit=1")
    second = await console.get(f"{path}/commits?limit=1&before={first['next']}")
    assert second["rows"][0]["position"] < first["rows"][0]["position"]
    assert (await console.get(f"{path}/commit?at=999999999", 404))["error"]["code"] == "no_such_position"


async def test_a_history_names_only_the_requests_that_defined_the_value(
    console: WebConsole, installation: LocalRebaser, client: RebaserClient, ws: str
) -> None:
    """A commit may also have decided requests that failed, and requests that defined other values."""
    subject = Subjects("").requests(ChangeSetKey(ws, "main"))
    async with Connection.connect(installation.url) as connection:
        for number in range(4):
            await JetStream(connection).publish(subject, b"no request", {"Nats-Msg-Id": f"{ws}{number}"})
        await client.enqueue_updates(ws, "main", [Set("price", 1)], author="ann")
        await client.enqueue_updates(ws, "main", [Set("fee", 1)], author="bob")
        await client.enqueue_updates_with_reply(ws, "main", [Set("price", 2), Set("fee", 2)], author="eve")
    commits = (await console.get(f"/change-sets/{ws}/main/commits"))["rows"]
    assert all(row["requests"][0]["outcome"] == "success" for row in commits if row["changes"])
    for id_, wanted in (("price", {"ann", "eve"}), ("fee", {"bob", "eve"})):
        history = (await console.get(f"/change-sets/{ws}/main/history?id={id_}"))["rows"]
        assert {request["author"] for row in history for request in row["requests"]} == wanted


async def test_a_change_set_is_explained_and_its_history_measured(console: WebConsole, path: str) -> None:
    head = await console.get(path)
    assert (head["changeSetId"], head["status"]) == ("main", "open")
    explanation = await console.get(f"{path}/explain")
    assert explanation["waits"] is False
    assert explanation["reasons"]
    size = await console.get(f"{path}/history-size")
    assert size["commits"] >= 2
    assert size["bytes"] > 0


@pytest.mark.parametrize("tail", ["", "/values", "/value?id=a", "/explain"])
async def test_there_is_no_such_change_set(console: WebConsole, ws: str, tail: str) -> None:
    path = f"/change-sets/{ws}/nothing{tail}"
    if tail == "/explain":
        assert (await console.get(path))["reasons"][0]["code"] == "unknown"
    else:
        assert (await console.get(path, 404))["error"]["code"] == "no_such_change_set"


async def test_names_that_cannot_be_are_refused(console: WebConsole) -> None:
    for name in ("a%20b", "a.b", "%2e%2e", "x" * 65, "<b>"):
        assert (await console.ask(f"/api/v1/change-sets/{name}/main/values")).status in (400, 404)
    assert (await console.get("/change-sets/-/main/values", 400))["error"]["code"] == "invalid_id"


def test_each_state_and_kind_that_a_page_filters_by_exists() -> None:
    assert set(values.STATES) == {"all", "error", "stale", "derived", "set", "unset"}
    assert set(values.KINDS) == {"any", "derived", "set", "unset"}


async def test_blame_names_the_edit_in_the_branch_and_the_commit_that_applied_it(
    console: WebConsole, client: RebaserClient, ws: str, path: str
) -> None:
    await client.create_branch(ws, "cheaper", follow="manual")
    await client.enqueue_updates_with_reply(ws, "cheaper", [Set("fee", 2)], author="cid", wait="derived")
    await client.apply(ws, "cheaper", author="dan")
    blame = (await console.get(f"{path}/blame?id=fee"))["blame"]
    assert (blame["changeSetId"], blame["request"]["author"], blame["lost"]) == ("cheaper", "cid", None)
    [copied] = blame["copies"]
    assert (copied["changeSetId"], copied["kind"], copied["request"]["author"]) == ("main", "rebase", "dan")
    assert copied["position"] > blame["position"]

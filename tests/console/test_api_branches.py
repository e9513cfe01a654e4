"""Branches through the API, on a real installation: list, changes, conflicts, and each action with what it refuses."""

from typing import Any

import anyio
import pytest

from rebaser.console.api import branches, edits
from rebaser_client import Derive, RebaserClient, Set
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop(client: RebaserClient, ws: str) -> str:
    """`main`, and a branch `draft` that edited `a` and `b`; `main` edited `a` later."""
    await client.enqueue_updates_with_reply(
        ws, "main", [Set("a", 1), Set("b", 2), Derive("sum", "sum", {"of": ["a", "b"]})], wait="derived"
    )
    await client.create_branch(ws, "draft", follow="manual")
    await client.enqueue_updates_with_reply(ws, "draft", [Set("a", 10), Set("b", 20)], wait="derived")
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 5)], wait="derived")
    return f"/change-sets/{ws}"


async def settled(console: WebConsole, path: str, **wanted: Any) -> Any:
    """The head of a change set, as soon as it has these fields."""
    async with console.live(path) as live:
        while True:
            name, head = await live.next()
            if name == "state" and wanted.items() <= head.items():
                return head


def shown_in(changes: Any) -> dict[str, int]:
    """The positions of the branch and of its target that a page of changes shows."""
    return {"at": changes["position"], "targetAt": changes["targetPosition"]}


async def test_branches_are_listed_and_found(console: WebConsole, ws: str, shop: str) -> None:
    await settled(console, f"{shop}/draft", behind=True)
    answer = await console.get(f"/branches?q={ws}")
    [row] = answer["rows"]
    assert (row["changeSetId"], row["target"], row["changes"], row["behind"]) == ("draft", "main", 2, True)
    assert answer["counts"] == {"open": 1, "conflicts": 0, "behind": 1, "ready": 0, "closed": 0, "all": 1}
    assert (await console.get(f"/branches?q={ws}&state=closed"))["rows"] == []
    for sort in branches.SORTS:
        assert len((await console.get(f"/branches?q={ws}&sort={sort}"))["rows"]) == 1


async def test_changes_stand_beside_what_the_target_has(console: WebConsole, shop: str) -> None:
    answer = await console.get(f"{shop}/draft/changes?derived=yes")
    assert answer["rows"] == [
        {"id": "a", "base": "1", "ours": "10", "theirs": "5", "moved": True, "landed": False},
        {"id": "b", "base": "2", "ours": "20", "theirs": "2", "moved": False, "landed": False},
    ]
    [moved] = answer["derived"]
    assert (moved["id"], moved["before"]["text"], moved["after"]["text"]) == ("sum", "3", "30")
    rest = await console.get(f"{shop}/draft/changes?derived=yes&derivedOffset=1")
    assert (rest["derived"], rest["derivedCount"], rest["derivedOffset"]) == ([], 1, 1)
    page = await console.get(f"{shop}/draft/changes?offset=1&limit=1")
    assert ([row["id"] for row in page["rows"]], page["matching"], page["derived"]) == (["b"], 2, None)
    assert (await console.get(f"{shop}/main/changes", 400))["error"]["code"] == "not_a_branch"


async def test_a_branch_is_rebased_settled_and_applied(
    acting: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    who = {"author": "ann", "message": "dearer"}
    seen = await acting.get(f"{shop}/draft/changes")
    rebased = await acting.act(f"{shop}/draft/rebase", who)
    assert rebased["conflicts"] == 1
    refused = await acting.act(f"{shop}/draft/apply", {**shown_in(seen), **who}, 409)
    assert refused["error"]["code"] in ("behind", "unresolved", "conflicts")
    found = await acting.get(f"{shop}/draft/conflicts")
    assert found["rows"] == [{"id": "a", "base": "1", "ours": "10", "theirs": "5"}]
    assert (await acting.act(f"{shop}/draft/resolve", {"ids": ["b"], "take": "main", "at": found["position"]}, 400))[
        "error"
    ]["code"] == "no_conflict"
    settle = {"ids": ["a"], "value": "7", "at": found["position"], **who}
    assert (await acting.act(f"{shop}/draft/resolve", settle))["updates"] == 1
    assert (await acting.act(f"{shop}/draft/resolve", settle, 409))["error"]["code"] == "moved"
    changes = await acting.get(f"{shop}/draft/changes")
    await client.enqueue_updates_with_reply(ws, "main", [Set("other", 1)], wait="derived")
    refused = await acting.act(f"{shop}/draft/apply", {**shown_in(changes), **who}, 409)
    assert refused["error"]["code"] == "moved", "main is not what the page showed"
    changes = await acting.get(f"{shop}/draft/changes")
    done = await acting.act(f"{shop}/draft/apply", {**shown_in(changes), "check": True, **who})
    assert done["updates"] == 2
    assert (await client.value(ws, "main", "a")).value == 7  # type: ignore[union-attr]
    shown = await acting.get(f"{shop}/main/commit?at={done['commit']}")
    assert (shown["requests"][0]["author"], shown["requests"][0]["message"]) == ("ann", "dearer")
    assert (await settled(acting, f"{shop}/draft", status="applied"))["changes"] >= 0


async def test_one_side_is_taken(acting: WebConsole, client: RebaserClient, ws: str, shop: str) -> None:
    await acting.act(f"{shop}/draft/rebase", {})
    found = await acting.get(f"{shop}/draft/conflicts")
    await acting.act(f"{shop}/draft/resolve", {"ids": ["a"], "take": "main", "at": found["position"]})
    assert (await client.value(ws, "draft", "a")).value == 5  # type: ignore[union-attr]
    assert (await acting.get(f"{shop}/draft/conflicts"))["rows"] == []


async def test_a_conflict_is_settled_with_a_definition(
    acting: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    await acting.act(f"{shop}/draft/rebase", {})
    found = await acting.get(f"{shop}/draft/conflicts")
    definition = '{"function": "sum", "inputs": {"of": ["b", "b"]}}'
    settle = {"ids": ["a"], "definition": definition, "at": found["position"]}
    await acting.act(f"{shop}/draft/resolve", settle)
    assert (await client.items(ws, "draft", "a"))[0].definition == Derive("a", "sum", {"of": ("b", "b")})
    assert (await acting.get(f"{shop}/draft/conflicts"))["rows"] == []


async def test_a_commit_is_reverted(acting: WebConsole, client: RebaserClient, ws: str, shop: str) -> None:
    done = await acting.act(f"{shop}/main/edit", {"id": "b", "value": "3", "at": 10**9})
    [request] = (await acting.get(f"{shop}/main/commit?at={done['commit']}"))["requests"]
    back = {"at": done["commit"], "request": request["requestId"], "author": "ann", "message": "a slip"}
    assert (await acting.act(f"{shop}/main/revert", back))["updates"] == 1
    assert (await client.value(ws, "main", "b")).value == 2  # type: ignore[union-attr]
    await acting.act(f"{shop}/main/edit", {"id": "b", "value": "9", "at": 10**9})
    refused = await acting.act(f"{shop}/main/revert", back, 409)
    assert refused["error"]["code"] == "conflicts"
    assert [one["id"] for one in refused["error"]["details"]] == ["b"]
    missing = await acting.act(f"{shop}/main/revert", {"at": done["commit"], "request": "another"}, 409)
    assert missing["error"]["code"] == "no_such_request"


async def test_a_commit_of_the_target_is_reverted_on_a_branch(
    acting: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    done = await acting.act(f"{shop}/main/edit", {"id": "b", "value": "3", "at": 10**9})
    await acting.act(f"{shop}/main/branch", {"name": "mend"})
    await acting.act(f"{shop}/mend/revert", {"at": done["commit"], "of": "main"})
    assert [(await client.value(ws, name, "b")).value for name in ("mend", "main")] == [2, 3]  # type: ignore[union-attr]
    [row] = (await acting.get(f"{shop}/mend/changes"))["rows"]
    assert (row["id"], row["base"], row["ours"]) == ("b", "3", "2")


async def test_a_branch_begins_where_its_page_stood(
    acting: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    before = (await client.branch(ws, "main")).sequence  # type: ignore[union-attr]
    await client.enqueue_updates_with_reply(ws, "main", [Set("after", 1)])
    await acting.act(f"{shop}/main/branch", {"name": "earlier", "at": before})
    assert await client.value(ws, "earlier", "after") is None
    await acting.act(f"{shop}/main/branch", {"name": "x", "at": "1"}, 400)
    born = (await acting.act(f"{shop}/main/branch", {"name": "fresh"}))["commit"]
    await acting.act(f"{shop}/fresh/branch", {"name": "inner", "at": born})
    assert (await client.branch(ws, "inner")).target == "fresh"  # type: ignore[union-attr]


async def test_new_errors_stop_an_apply_and_are_named(
    acting: WebConsole, client: RebaserClient, ws: str, shop: str
) -> None:
    await acting.act(f"{shop}/main/branch", {"name": "broken"})
    await client.enqueue_updates_with_reply(ws, "broken", [Set("b", "two")], wait="derived")
    changes = await acting.get(f"{shop}/broken/changes")
    refused = await acting.act(f"{shop}/broken/apply", {**shown_in(changes), "check": True}, 409)
    assert refused["error"]["code"] == "new_errors"
    assert [one["id"] for one in refused["error"]["details"]] == ["sum"]


async def value_since(console: WebConsole, path: str, commit: int) -> Any:
    """The answer for a value, as soon as it contains the commit: for a moment, the console shows an older state."""
    with anyio.fail_after(60):
        while True:
            answer = await console.get(path)
            if answer["position"] >= commit:
                return answer
            await anyio.sleep(0.01)


async def test_a_value_is_edited_as_it_was_shown(acting: WebConsole, client: RebaserClient, ws: str, shop: str) -> None:
    shown = await acting.get(f"{shop}/main/value?id=b")
    edit = {"id": "b", "at": shown["position"], "author": "ann"}
    done = await acting.act(f"{shop}/main/edit", {**edit, "value": '{"n": 9007199254740993}'})
    assert (await client.value(ws, "main", "b")).value == {"n": 9007199254740993}  # type: ignore[union-attr]
    refused = await acting.act(f"{shop}/main/edit", {**edit, "value": "1"}, 409)
    assert refused["error"]["code"] == "moved"
    shown = await value_since(acting, f"{shop}/main/value?id=sum", done["commit"])
    definition = '{"function": "sum", "inputs": {"of": ["a", "a"]}}'
    done = await acting.act(f"{shop}/main/edit", {"id": "sum", "at": shown["position"], "definition": definition})
    assert (await client.items(ws, "main", "sum"))[0].definition == Derive("sum", "sum", {"of": ("a", "a")})
    newest = (await value_since(acting, f"{shop}/main/value?id=sum", done["commit"]))["position"]
    await acting.act(f"{shop}/main/edit", {"id": "sum", "at": newest, "remove": True})
    assert await client.value(ws, "main", "sum") is None


async def test_a_change_set_is_closed_and_opened_again(acting: WebConsole, shop: str) -> None:
    await acting.act(f"{shop}/draft/close", {"message": "was a trial"})
    assert (await acting.act(f"{shop}/draft/edit", {"id": "a", "value": "1", "at": 10**9}, 409))["error"]["code"] in (
        "closed",
        "no_such_position",
    )
    await acting.act(f"{shop}/draft/reopen", {})
    await settled(acting, f"{shop}/draft", status="open")


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("edit", {"id": "a", "at": 1}),
        ("edit", {"id": "a", "at": 0, "value": "1"}),
        ("edit", {"id": "a", "at": True, "value": "1"}),
        ("edit", {"id": "a", "at": 1, "value": "tea"}),
        ("edit", {"id": "a", "at": 1, "value": "[" * 10_000}),
        ("edit", {"id": "a", "at": 1, "value": "NaN"}),
        ("edit", {"id": "a", "at": 1, "value": 5}),
        ("edit", {"id": "", "at": 1, "value": "5"}),
        ("edit", {"id": "a", "at": 1, "definition": "[]"}),
        ("edit", {"id": "a", "at": 1, "value": "1", "author": "x" * 129}),
        ("edit", {"id": "a", "at": 1, "remove": "yes"}),
        ("branch", {}),
        ("branch", {"name": "a b"}),
        ("rebase", {"strategy": "mine"}),
        ("resolve", {"ids": [], "take": "main", "at": 1}),
        ("resolve", {"ids": [1], "take": "main", "at": 1}),
        ("resolve", {"ids": ["a"] * 501, "take": "main", "at": 1}),
        ("resolve", {"ids": ["a"], "at": 1}),
        ("resolve", {"ids": ["a"], "at": 1, "definition": "1"}),
        ("revert", {}),
        ("revert", {"at": 1, "of": 5}),
        ("revert", {"at": 1, "request": "x" * 513}),
        ("apply", {}),
        ("apply", {"at": 1}),
        ("apply", {"at": 1, "targetAt": 1, "check": 1}),
    ],
)
async def test_what_is_not_well_formed_is_refused(acting: WebConsole, shop: str, action: str, body: object) -> None:
    reply = await acting.act(f"{shop}/draft/{action}", body, 400)
    assert reply["error"]["message"]


async def test_a_console_that_reads_acts_on_nothing(console: WebConsole, shop: str) -> None:
    for action in edits.ACTIONS:
        path = action.path.replace("/change-sets/{workspace}", shop).replace("{changeSet}", "draft")
        assert (await console.act(path, {}, 403))["error"]["code"] == "read_only"


async def test_a_body_that_is_no_object_is_refused(acting: WebConsole, shop: str) -> None:
    bodies: tuple[object, ...] = ([], "text", None, 5)
    for body in bodies:
        assert (await acting.act(f"{shop}/draft/close", body, 400))["error"]["code"] == "not_json"

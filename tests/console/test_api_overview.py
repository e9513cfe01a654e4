"""Tests the answers of the overview and of the table of change sets, on a real installation and with many change
sets."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from rebaser.console.access.hiding import show_values
from rebaser.console.access.options import ConsoleOptions
from rebaser.console.api import change_sets, overview
from rebaser.console.live.hub import LONGEST_STEP, STEP, Hub, Seen, step_after
from rebaser.console.live.samples import Samples
from rebaser.console.resources import Console, Given
from rebaser_client import RebaserClient, Set, UnprocessableError
from rebaser_client.admin.fleet import ActiveChangeSet, FleetView
from rebaser_client.admin.servers import ServerInfo, UpdateInfo
from rebaser_client.log.branches import BranchInfo
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def info(name: str, sequence: int = 1, **fields: Any) -> BranchInfo:
    return BranchInfo("ws", name, sequence, NOW, **fields)


def active(name: str, **fields: Any) -> ActiveChangeSet:
    return ActiveChangeSet("ws", name, **fields)


async def answer(
    module: Any, query: dict[str, str], rows: Sequence[ActiveChangeSet], infos: Sequence[BranchInfo], **view: Any
) -> Any:
    """Return the answer of a handler for these rows and branches."""
    seen = Seen(FleetView(1000.0, 2.0, view.pop("servers", []), rows, len(infos), **view), infos, ())

    class Stub:
        samples = Samples()

        async def seen(self) -> Seen:
            return seen

    console = Console(cast("Hub", Stub()), ConsoleOptions(frozenset()), "0")
    return await module.read(console, Given({}, query))


async def test_the_overview_of_an_installation(console: WebConsole, client: RebaserClient, ws: str) -> None:
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 1)])
    async with console.live("/overview") as live:
        while not (answer := (await live.next())[1])["servers"]:
            pass  # on a busy machine, a server may answer a ping too late
    assert [server["id"] for server in answer["servers"]] == ["local"]
    assert {stream["name"] for stream in answer["streams"]} >= {"REBASER_REQUESTS", "REBASER_COMMITS", "REBASER_DLQ"}
    assert answer["total"] >= 1
    assert (answer["actions"], answer["version"], answer["problem"]) == (False, "0.0-test", "")


async def test_a_commit_is_shown_before_the_next_look(
    monkeypatch: pytest.MonkeyPatch, console: WebConsole, client: RebaserClient, ws: str
) -> None:
    monkeypatch.setattr("rebaser.console.live.hub.step_after", lambda _: 3600.0)
    async with console.live(f"/change-sets?q={ws}") as events:
        assert (await events.next())[1]["matching"] == 0
        for name in ("one", "two"):
            await client.enqueue_updates_with_reply(ws, name, [Set("a", 1)])
            while name not in [row["changeSetId"] for row in (await events.next())[1]["rows"]]:
                pass


async def test_the_most_urgent_comes_first_and_no_more_than_fit() -> None:
    rows = [
        active("busy", commits_per_second=1.0),
        active("short", pending=9, waiting=1.0),
        active("long", pending=1, waiting=50.0),
        active("broken", problem="damaged"),
        active("due", debt=True),
        active("long-update", update=UpdateInfo("ws", "long-update", 1, None, 3.0)),
        *(active(f"owned{number}", has_task=True) for number in range(50)),
    ]
    found = await answer(overview, {}, rows, [])
    names = [row["changeSetId"] for row in found["changeSets"]]
    assert names[:6] == ["broken", "long", "short", "long-update", "due", "busy"]
    assert len(names) == overview.MAX_URGENT
    assert (found["active"], found["activities"]["owned"], found["longestWaiting"]) == (56, 50, 50.0)


async def test_long_texts_of_servers_are_cut_and_many_servers_are_counted() -> None:
    show_values(True)
    servers = [ServerInfo(f"s{number:03}", "1", 0, 1, "ready", trouble="x" * 9000) for number in range(150)]
    found = await answer(overview, {}, [], [], servers=servers)
    assert (len(found["servers"]), found["serverCount"]) == (overview.MAX_SERVERS, 150)
    assert max(len(server["trouble"]) for server in found["servers"]) == 1000


ROWS = [active("waits", pending=5, waiting=3.0), active("due", debt=True), active("new", pending=1)]
INFOS = [
    info("waits", 5),
    info("due", 6),
    info("main", 9, errors=3, owner="s1"),
    info("draft", 8, target="main", base=3, changes=4, behind=True, conflicts=2),
    info("landed", 7, errors=5, target="main", base=3, status="applied", behind=True),
    info("gone", 10, status="deleted"),
]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({}, ["draft", "due", "main", "new", "waits"]),
        ({"state": "all"}, ["draft", "due", "landed", "main", "new", "waits"]),
        ({"state": "working"}, ["due", "new", "waits"]),
        ({"state": "waiting"}, ["new", "waits"]),
        ({"state": "due"}, ["due"]),
        ({"state": "unreadable"}, []),
        ({"state": "errors"}, ["main"]),
        ({"state": "conflicts"}, ["draft"]),
        ({"state": "behind"}, ["draft"]),
        ({"state": "closed"}, ["landed"]),
        ({"q": "WS/D"}, ["draft", "due"]),
        ({"q": "a ws"}, ["draft", "main", "waits"]),
        ({"q": "<script>"}, []),
        ({"sort": "recent"}, ["main", "draft", "due", "waits", "new"]),
        ({"sort": "queue"}, ["waits", "new", "draft", "due", "main"]),
        ({"sort": "errors"}, ["main", "draft", "due", "new", "waits"]),
        ({"sort": "urgency"}, ["waits", "new", "due", "draft", "main"]),
        ({"sort": "changes"}, ["draft", "due", "main", "new", "waits"]),
        ({"offset": "1", "limit": "2"}, ["due", "main"]),
        ({"offset": "7"}, []),
    ],
)
async def test_change_sets_are_found_sorted_and_paged(query: dict[str, str], names: list[str]) -> None:
    found = await answer(change_sets, query, ROWS, INFOS)
    assert [row["changeSetId"] for row in found["rows"]] == names
    if not {"q", "offset"} & query.keys():
        assert found["matching"] == len(names)
        assert found["counts"]["conflicts"] == 1


@pytest.mark.parametrize(
    ("busy", "total", "step"),
    [(0, 0, STEP), (300, 300, STEP), (1000, 1000, 3.6), (1000, 11_000, 4.6), (10**5, 10**5, LONGEST_STEP)],
)
def test_the_console_looks_less_often_if_much_is_going_on(busy: int, total: int, step: float) -> None:
    view = FleetView(0.0, 0.0, [], [active("busy")] * busy, total)
    assert step_after(view) == pytest.approx(step)


async def test_a_row_has_what_the_change_set_does_and_where_it_stands() -> None:
    found = await answer(change_sets, {"q": "draft"}, [active("draft", pending=2)], INFOS)
    [row] = found["rows"]
    assert (row["state"], row["pending"], row["target"], row["base"], row["conflicts"]) == ("waiting", 2, "main", 3, 2)
    assert row["lastCommitTime"] == "2026-01-31T12:00:00.000Z"
    [quiet] = (await answer(change_sets, {"q": "main"}, [], INFOS))["rows"]
    assert (quiet["state"], quiet["pending"], quiet["target"]) == ("quiet", 0, None)
    assert (quiet["errors"], quiet["owner"], row["errors"], row["owner"]) == (3, "s1", None, "")


@pytest.mark.parametrize("query", [{"limit": "9" * 30}, {"offset": "\u0661"}, {"state": "x" * 500}])
async def test_bad_parameters_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(UnprocessableError):
        await answer(change_sets, query, [], [])

"""Updates of derived values through the API, on a real installation: those that run, those that wait and why, and those
in the log of one change set."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rebaser.console.api import updates
from rebaser.testing import LocalRebaser, local_rebaser
from rebaser_client import Derive, RebaserClient, Set, Update
from rebaser_client.admin.explanations import Explanation
from rebaser_client.log.changes import LogEntry
from rebaser_core.commit import Commit, Kind
from rebaser_core.explain.facts import AttemptFacts, ChangeSetFacts, LogFacts, ServerFacts
from rebaser_core.explain.owner_facts import OwnerFacts, UpdateTimes
from rebaser_core.explain.reasons import explain
from tests.conftest import Events
from tests.support.troubled_updates import troubled, troubled_updates
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def installation() -> Iterator[LocalRebaser]:
    with local_rebaser(quiescent_period=0.05, progress_every=0.1) as running:
        yield running


async def seen(console: WebConsole, path: str, *wanted: tuple[str, str | None]) -> Any:
    """The answer of a live resource, as soon as it has these change sets, with these stages of their updates."""
    async with console.live(path) as live:
        while True:
            name, answer = await live.next()
            if name != "state":
                continue
            if wanted == tuple((row["changeSetId"], (row["update"] or {}).get("stage")) for row in answer["rows"]):
                return answer


async def test_what_runs_comes_with_its_progress_and_what_fails_with_its_reason(
    console: WebConsole, client: RebaserClient, ws: str
) -> None:
    with troubled_updates() as ended:
        for name in ("hang", "fail"):
            await client.enqueue_updates_with_reply(ws, name, troubled(name))
        answer = await seen(console, f"/dvu?q={ws}", ("hang", "spark"), ("fail", None))
        running, due = answer["rows"]
        assert (answer["counts"], running["server"]) == ({"all": 2, "running": 1, "due": 1}, "local")
        assert running["update"].keys() == {"done", "total", "seconds", "stage", "plan", "wave", "sparkTag"}
        assert running["update"]["sparkTag"] is None, "functions run in this process, without Spark"
        assert running["update"]["plan"] == "packets"
        assert (due["update"], due["debt"]) == (None, True)
        assert answer["engines"] == [{"server": "local", "dvu": "ready"}]
        page = await seen(console, f"/dvu?q={ws}&state=due&limit=1", ("fail", None))
        assert page["matching"] == 1
        assert (await console.get("/dvu?q=no-such-name"))["rows"] == []
        reason: Any = {"code": "", "failures": 0}
        while not reason["failures"] or reason["code"] != "dvu_waiting":  # meanwhile, it is tried again and again
            found = await console.get(f"/dvu/reasons?q={ws}")
            assert found["reasons"].keys() <= {f"{ws}/fail"}, "an update that runs does not wait"
            reason = found["reasons"].get(f"{ws}/fail", reason)
        assert (reason["state"], reason["code"], reason["server"]) == ("failing", "dvu_waiting", "local")
        assert "more memory <b>than</b> there is" in reason["text"]
        assert reason["retryIn"] >= 0
        assert reason["error"].startswith("a function needs more memory")
        one = await console.get(f"/change-sets/{ws}/hang/updates")
        assert (one["now"]["state"], one["rows"]) == ("updating", [])
        ended.set()
    await client.wait_covered(ws, "fail", 1)


async def test_the_newest_updates_of_a_change_set(console: WebConsole, client: RebaserClient, ws: str) -> None:
    sums = [Derive(f"sum{number}", "sum", {"of": ["a"]}) for number in range(3)]
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 1), *sums], wait="derived")
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 2)], wait="derived")
    answer = await console.get(f"/change-sets/{ws}/main/updates")
    # A server reports an update after its commit.
    while answer["now"]["state"] != "quiet" or not all(row["stages"] for row in answer["rows"]):
        answer = await console.get(f"/change-sets/{ws}/main/updates")
    assert [row["values"] for row in answer["rows"]] == [3, 3]
    assert all(row["edits"] >= 1 and row["waited"] >= 0 and row["server"] == "local" for row in answer["rows"])
    assert answer["rows"][0]["covers"] <= answer["rows"][0]["position"] <= answer["position"]
    assert answer["complete"] is True
    for row in answer["rows"]:
        assert [*row["stages"]] == ["plan", "spark", "absorb", "commit"]
        assert all(seconds >= 0 for seconds in row["stages"].values())
    nothing = await console.get(f"/change-sets/{ws}/nothing/updates")
    assert (nothing["rows"], nothing["position"], nothing["now"]["code"]) == ([], 0, "unknown")


def entries(*kinds: str) -> list[updates.Noted]:
    """Commits that are ten seconds apart, the newest first: `edit`, `mark`, or `dvu` with the position it covers."""
    found = []
    for index, kind in enumerate(kinds):
        word, _, covers = kind.partition(" ")
        commit = Commit(
            f"c{index}",
            index,
            {"edit": Kind.REBASE, "dvu": Kind.DVU, "mark": Kind.MARK}[word],
            0,
            "server",
            None,
            int(covers) if covers else None,
            delta=(Set("a", index),) if word == "edit" else (),
            sequence=index + 1,
        )
        time = datetime(2026, 1, 31, tzinfo=UTC) + timedelta(seconds=10 * index)
        found.append(updates.Noted.of(LogEntry(index + 1, time, commit.kind, (), None, commit)))
    return found[::-1]


def test_how_long_values_were_stale() -> None:
    log = entries("edit", "edit", "dvu 1", "mark", "dvu", "edit", "dvu")
    rows = updates.update_rows(log, {}, complete=True)
    assert [(row["position"], row["covers"], row["edits"], row["waited"]) for row in rows] == [
        (7, 7, 1, 10.0),
        (5, 5, 1, 30.0),
        (3, 1, 1, 20.0),
    ]
    cut = updates.update_rows(log[:-1], {}, complete=False)
    assert [(row["edits"], row["waited"]) for row in cut] == [(1, 10.0), (1, 30.0), (None, None)]
    assert updates.update_rows(entries("dvu"), {}, complete=True)[0]["waited"] is None


def test_the_stages_of_updates_come_from_all_servers_that_know_some() -> None:
    """An older server reports none, and a newer one may have other stages."""
    reports = (
        ("old", OwnerFacts(phase="active")),
        ("silent", None),
        ("before", OwnerFacts(recent_updates=(UpdateTimes(3, {"commit": 0.1, "plan": 0.2, "rest": 9.0}),))),
        ("now", OwnerFacts(recent_updates=(UpdateTimes(7, {"plan": 0.5}), UpdateTimes(99, {})))),
    )
    times = updates.stage_times(ServerFacts(id_, about=about) for id_, about in reports)
    rows = updates.update_rows(entries("edit", "dvu 1", "dvu 1", "edit", "dvu", "edit", "dvu"), times, complete=True)
    assert [(row["position"], row["stages"]) for row in rows] == [
        (7, {"plan": 0.5}),
        (5, None),
        (3, {"plan": 0.2, "commit": 0.1}),
        (2, None),
    ]


def test_no_more_updates_than_fit() -> None:
    rows = updates.update_rows(entries(*["edit", "dvu"] * 30), {}, complete=True)
    assert [row["position"] for row in rows] == list(range(60, 20, -2))


def test_an_update_that_killed_servers_is_put_off() -> None:
    attempt = AttemptFacts("update", deaths=3, since=1.0)
    owner = OwnerFacts(phase="active", update="waiting", retry_in=20.0)
    facts = ChangeSetFacts(
        "ws", "main", (ServerFacts("s1", about=owner),), log=LogFacts(5, debt=1, covers=4, attempt=attempt)
    )
    reason = updates._reason(Explanation(facts, explain(facts)))
    assert (reason["state"], reason["deaths"], reason["retryIn"], reason["server"]) == ("put off", 3, 20.0, "s1")


async def test_derived_values_are_computed_again_on_demand(
    acting: WebConsole, console: WebConsole, client: RebaserClient, ws: str, events: Events
) -> None:
    edits: list[Update] = [Set("a", 1), Derive("b", "sum", {"of": ["a"]})]
    await client.enqueue_updates_with_reply(ws, "main", edits, wait="derived")
    path, say = f"/change-sets/{ws}/main", {"author": "ann", "message": "a new sum"}
    done = await acting.act(f"{path}/recompute", {"function": "sum", **say})
    await client.wait_covered(ws, "main", done["commit"])
    commit = await acting.get(f"{path}/commit?at={done['commit']}")
    assert [(one["author"], one["message"]) for one in commit["requests"]] == [("ann", "a new sum")]
    found = await acting.act(f"{path}/recompute", {"function": "cel"}, 409)
    assert found["error"]["code"] == "nothing_to_recompute"
    assert (await acting.act(f"{path}/recompute", {"function": 1}, 400))["error"]["code"] == "invalid_argument"
    assert (await acting.act(f"{path}/recompute", {"function": "a\nb"}, 400))["error"]["code"] == "invalid_update"
    asked = [event for event in events.named("console_action") if event["path"].endswith(f"{ws}/main/recompute")]
    assert [(event["outcome"], event.get("author")) for event in asked[:2]] == [
        ("done", "ann"),
        ("nothing_to_recompute", None),
    ]
    assert asked[0]["function"] == "sum"
    await console.act(f"{path}/recompute", say, 403)

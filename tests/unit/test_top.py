"""`rebaser top`: which change sets count as active, what a screen shows, and what each key changes."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from rebaser.cli.commands.observing.top import view_object
from rebaser.cli.output.keyboard import parse_keys
from rebaser.cli.output.top_view import SORTS, TopScreen, age_text, change_set_row, headline, rate_text, render
from rebaser_client.admin.fleet import ActiveChangeSet, FleetState, FleetView, LogHead
from rebaser_client.admin.servers import ServerInfo, UpdateInfo
from rebaser_client.admin.stream_usage import TasksStatus
from rebaser_client.log.heads import Head
from rebaser_core.commit import Commit, Kind
from rebaser_core.explain.owner_facts import OwnerFacts
from rebaser_core.ids import ChangeSetKey, ulid
from rebaser_core.messages import encode_commit
from rebaser_core.updates import Set

A, B, C = (ChangeSetKey("ws", name) for name in "abc")
NS = 1_000_000_000


def head(sequence: int, *, debt: int = 0) -> Head:
    commit = Commit(ulid(1, bytes(10)), 0, Kind.REBASE, 1, "o", None, 0, delta=(Set("a", 1),), debt=debt)
    return Head(sequence, sequence * NS, encode_commit(commit)[0])


def logs(**heads: Head) -> dict[ChangeSetKey, LogHead]:
    """Return the logs of the change sets `a`, `b` and `c`, by their newest messages."""
    keys = {"a": A, "b": B, "c": C}
    return {keys[name]: LogHead.of(keys[name], head) for name, head in heads.items()}


def test_change_sets_at_rest_are_counted_and_not_shown() -> None:
    state = FleetState()
    state.begin(logs(a=head(1), b=head(2, debt=1), c=head(3)))
    rows, commits, total = state.look(10.0, 0.0, {}, {C: 1}, {})
    assert [(row.key, row.activity, row.last_commit, row.committed_at) for row in rows] == [
        (B, "due", 2, 2.0),
        (C, "owned", 3, 3.0),
    ]
    assert (commits, total) == (0, 3)


def test_commits_are_counted_between_two_looks_and_settle_a_debt() -> None:
    state = FleetState()
    state.begin(logs(a=head(1, debt=1)))
    for sequence in (2, 3, 4):
        state.committed(A, LogHead.of(A, head(sequence)))
    rows, commits, _ = state.look(10.0, 2.0, {}, {}, {})
    assert commits == 3
    assert (rows[0].activity, rows[0].commits_per_second, rows[0].last_commit, rows[0].debt) == ("busy", 1.5, 4, False)
    assert state.look(12.0, 2.0, {}, {}, {}) == ([], 0, 1)


def test_what_waits_is_timed_from_when_it_was_first_seen_without_a_commit() -> None:
    state = FleetState()
    state.begin(logs(a=head(1)))
    pending = {A: 2, B: 1}
    rows, _, total = state.look(10.0, 0.0, pending, {}, {})
    assert [(row.key, row.activity, row.waiting) for row in rows] == [(A, "waiting", 0.0), (B, "waiting", 0.0)]
    assert total == 2, "a change set exists since its first request"
    assert [row.waiting for row in state.look(14.0, 4.0, pending, {}, {}).rows] == [4.0, 4.0]
    state.committed(A, LogHead.of(A, head(5)))
    assert [(row.activity, row.waiting) for row in state.look(16.0, 2.0, pending, {}, {}).rows] == [
        ("busy", 0.0),
        ("waiting", 6.0),
    ]
    assert [(row.activity, row.waiting) for row in state.look(19.0, 3.0, pending, {}, {}).rows] == [
        ("waiting", 3.0),
        ("waiting", 9.0),
    ]


def test_each_change_set_is_listed_with_what_its_newest_commit_says() -> None:
    """A branch is behind its target as soon as an edit of the target arrives, and no commit of the branch is needed."""
    branch = Head(5, NS, {**head(5).headers, "X-Branch": "a@1 open 3 1 a@1 5"})
    state = FleetState()
    state.begin(logs(a=head(1), b=branch))
    before = {info.change_set: info for info in state.change_sets()}
    assert (before["b"].target, before["b"].base, before["b"].conflicts, before["b"].behind) == ("a", 1, 1, False)
    state.committed(A, LogHead.of(A, head(7)))
    after = {info.change_set: info for info in state.change_sets()}
    assert (after["a"].sequence, after["b"].behind) == (7, True)


def test_a_change_set_of_which_nothing_has_changed_stays_the_same_object_in_the_same_place() -> None:
    branch = Head(5, NS, {**head(5).headers, "X-Branch": "a@6 open 3 1 a@1 5"})
    state = FleetState()
    state.begin(logs(a=head(1), b=branch))
    first = state.change_sets()
    state.committed(C, LogHead.of(C, head(6)))
    second = state.change_sets()
    assert [info is before for info, before in zip(second, first, strict=False)] == [True, True]
    assert [info.change_set for info in second] == ["a", "b", "c"]
    state.committed(A, LogHead.of(A, head(7)))
    third = state.change_sets()
    assert [info is before for info, before in zip(third, second, strict=True)] == [False, False, True]
    assert (third[1].behind, state.change_sets()[1] is third[1]) == (True, True)


def test_an_early_look_shows_the_commits_since_the_last_look_which_counts_them_later() -> None:
    state = FleetState()
    state.begin(logs(b=head(2, debt=1), c=head(1)))
    state.look(10.0, 0.0, {C: 1}, {}, {})
    state.committed(A, LogHead.of(A, head(3)), 2)
    rows, commits, total = state.look_early(11.0, 1.0, {C: 1}, {}, {})
    assert [(row.key, row.activity, row.commits_per_second) for row in rows] == [
        (A, "busy", 2.0),
        (B, "due", 0.0),
        (C, "waiting", 0.0),
    ]
    assert (commits, total) == (2, 3)
    due, waiting = rows[1:]
    state.committed(C, LogHead.of(C, head(4)))
    rows, commits, _ = state.look_early(12.0, 2.0, {C: 1}, {}, {})
    assert [(row.key, row.commits_per_second) for row in rows] == [(A, 2.0), (B, 0.0), (C, 0.5)]
    assert (commits, rows[1] is due, rows[2] is waiting) == (3, True, False)
    rows, commits, _ = state.look(14.0, 4.0, {C: 1}, {}, {})
    assert [(row.key, row.commits_per_second) for row in rows] == [(A, 0.5), (B, 0.0), (C, 0.25)]
    assert commits == 3
    assert state.look(15.0, 1.0, {}, {}, {}).rows == [replace(due)]


def test_an_early_look_counts_what_begins_and_what_is_deleted() -> None:
    gone = Head(4, NS, {**head(4).headers, "X-Branch": "@0 deleted 0 0 @0 1"})
    state = FleetState()
    state.begin(logs(a=head(1, debt=1), b=head(2, debt=1)))
    assert state.look(1.0, 0.0, {C: 1}, {}, {}).total == 3
    state.committed(C, LogHead.of(C, head(3)))
    assert state.look_early(2.0, 1.0, {C: 1}, {}, {}).total == 3, "it had a request before"
    state.committed(B, LogHead.of(B, gone))
    rows, _, total = state.look_early(3.0, 2.0, {C: 1}, {}, {})
    assert ([row.key for row in rows], total) == ([A, C], 2)
    state.begin(logs(b=head(1)))  # the stream was made anew
    assert state.look_early(4.0, 3.0, {}, {}, {}) == ([], 0, 1)


def test_what_is_deleted_is_gone_and_may_come_back() -> None:
    gone = Head(2, NS, {**head(2).headers, "X-Branch": "@0 deleted 0 0 @0 1"})
    assert gone.is_deleted
    state = FleetState()
    state.begin(logs(a=head(1, debt=1)))
    state.committed(A, LogHead.of(A, gone))
    assert state.look(1.0, 1.0, {}, {}, {}) == ([], 1, 0)
    assert [row.key for row in state.look(2.0, 1.0, {A: 1}, {}, {}).rows] == [A]
    state.committed(A, LogHead.of(A, head(3)))
    assert state.look(3.0, 1.0, {}, {}, {}).total == 1


def test_a_log_that_cannot_be_read_is_the_most_urgent() -> None:
    state = FleetState()
    state.begin(logs(a=Head(1, NS, {"x": "y"}), b=head(2)))
    rows = state.look(1.0, 0.0, {B: 1}, {}, {}).rows
    assert [(row.key, row.activity, bool(row.problem)) for row in rows] == [
        (A, "unreadable", True),
        (B, "waiting", False),
    ]


SERVER = ServerInfo("one", "1.2", 3, 1000, "ready", sweeper=True)
ROWS = [
    ActiveChangeSet("ws", "owned", has_task=True, last_commit=1, committed_at=900.0, owner="r-0", errors=1200),
    ActiveChangeSet("ws", "busy", pending=900, commits_per_second=40.0),
    ActiveChangeSet("ws", "due", debt=True, commits_per_second=0.0),
    ActiveChangeSet("ws", "updating", update=UpdateInfo("ws", "updating", 5, 10, 3.0)),
    ActiveChangeSet("ws", "waiting", pending=3, waiting=41.0),
    ActiveChangeSet("ws", "older", pending=1, waiting=60.0),
    ActiveChangeSet("ws", "broken", problem="of a newer version"),
]
VIEW = FleetView(
    1000.0, 2.0, [SERVER], ROWS, 9, requests=904, oldest_request=60.0, requests_per_second=812.4,
    commits_per_second=40.0, dead_letters=2, tasks=TasksStatus(3, 5, 0, 0, 0, 6.0),
)  # fmt: skip


def names(screen: TopScreen, view: FleetView = VIEW, limit: int = 100) -> list[str]:
    return [row.change_set for row in screen.choose(view, limit)]


def test_the_order_is_that_of_urgency_until_s_is_pressed() -> None:
    screen = TopScreen()
    assert names(screen) == ["broken", "older", "waiting", "updating", "due", "busy", "owned"]
    assert names(screen, limit=2) == ["broken", "older"]
    assert screen.press("s") == "draw"
    assert names(screen)[:3] == ["busy", "waiting", "older"]
    screen.press("s")
    assert names(screen)[0] == "busy"
    screen.press("s")
    assert names(screen) == sorted(row.change_set for row in ROWS)
    screen.press("s")
    assert screen.sort == next(iter(SORTS))
    assert screen.press("w") == "draw"
    assert names(screen) == ["broken", "older", "waiting", "updating", "due"]


def test_arrows_select_and_enter_explains_what_is_selected() -> None:
    screen = TopScreen()
    assert screen.press("down") == "draw"
    assert screen == TopScreen(), "nothing is shown yet"
    names(screen)
    assert screen.press("enter") == "nothing"
    screen.press("down")
    screen.press("down")
    assert screen.selected == ChangeSetKey("ws", "older")
    assert screen.press("enter") == "explain"
    screen.press("pagedown")
    assert screen.selected == ChangeSetKey("ws", "owned")
    screen.press("up")
    assert screen.selected == ChangeSetKey("ws", "busy")
    assert names(screen, limit=3) == ["broken", "older", "busy"], "the selected one stays on the screen"
    screen.press("escape")
    assert names(screen, limit=3) == ["broken", "older", "waiting"]
    assert (screen.press("q"), screen.press("x")) == ("quit", "nothing")


@pytest.mark.parametrize(("width", "height"), [(120, 40), (80, 24), (40, 12)])
@pytest.mark.parametrize("rows", [0, 7, 10_000])
@pytest.mark.parametrize("servers", [0, 1, 30])
def test_a_screen_is_exactly_as_large_as_the_terminal(width: int, height: int, rows: int, servers: int) -> None:
    evil = "\x1b[2J\n"
    many = [replace(ROWS[number % 7], change_set=f"cs-{number}") for number in range(rows)]
    view = replace(
        VIEW, change_sets=many, servers=[replace(SERVER, id=f"r-{number}", trouble=evil) for number in range(servers)]
    )
    screen = TopScreen(selected=many[-1].key if many else None)
    out = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with out.capture() as captured:
        out.print(render(view, screen, "top", "since 12:00: no answer", height))
    lines = captured.get().rstrip("\n").split("\n")
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert "\x1b[2J" not in captured.get()
    assert "quit" in lines[-1]
    assert "CHANGE" in captured.get() or width == 40
    if many and width == 120:
        assert sum("ws/cs-" in line for line in lines) >= min(rows, height - 20)
        assert any(line.startswith(f"ws/cs-{rows - 1}") for line in lines), "the selected one"


def test_the_line_below_tells_what_the_owner_does() -> None:
    about = OwnerFacts("active", update="waiting", retry_in=4.1, trouble_code="spark_down", trouble="Spark is away")
    view = replace(VIEW, servers=[replace(SERVER, about=OwnerFacts()), replace(SERVER, id="two", about=about)])
    out = Console(file=io.StringIO(), width=120, height=40, force_terminal=True, color_system=None)
    with out.capture() as captured:
        out.print(render(view, TopScreen(selected=ROWS[0].key), "top", "", 40))
    assert "ws/owned: two  active  update waiting  retry in 4100 ms  spark_down: Spark is away" in captured.get()


def test_figures_for_people() -> None:
    assert [rate_text(rate) for rate in (0, 0.25, 9.9, 10.4, 1234.5)] == ["0", "0.2", "9.9", "10", "1,234"]
    ages = (0.04, 0.96, 41.2, 119, 125, 7300, 200_000)
    assert [age_text(age) for age in ages] == ["0.0s", "1.0s", "41s", "119s", "2m", "2h", "2d"]
    assert change_set_row(ROWS[4], 1000.0) == ("ws/waiting", "waiting", "3", "41s", "", "", "", "", "")
    assert change_set_row(ROWS[0], 1000.0) == ("ws/owned", "owned", "", "", "", "100s", "", "1,200", "r-0")
    assert change_set_row(replace(ROWS[0], has_task=False), 1000.0)[-1] == "", "without a task, nobody owns it"
    assert change_set_row(ROWS[6], 1000.0)[6] == "of a newer version"
    assert headline(VIEW) == [
        "requests 812/s   commits 40/s   queue 904, oldest 60s   tasks 3 wait, 5 in flight   dead letters 2",
        "7 of 9 change sets at work   2 wait, longest 60s   1 update due",
    ]


def test_machines_get_all_of_it_as_json() -> None:
    shown = json.loads(json.dumps(view_object(VIEW, None)))
    assert [row["state"] for row in shown["changeSets"]] == [
        "unreadable", "waiting", "waiting", "updating", "due", "busy", "owned",
    ]  # fmt: skip
    assert shown["changeSets"][6]["lastCommitTime"] == "1970-01-01T00:15:00.000Z"
    assert shown["changeSets"][3]["update"] == {"done": 5, "total": 10, "seconds": 3.0}
    assert (shown["total"], shown["active"], shown["tasks"]) == (9, 7, {"pending": 3, "inFlight": 5})
    assert len(view_object(VIEW, 2)["changeSets"]) == 2


def test_keys_are_those_that_terminals_send() -> None:
    assert parse_keys(b"q\x1b[A\x1bOB\r\n\x1b[5~\x1b[6~j") == [
        "q",
        "up",
        "down",
        "enter",
        "enter",
        "pageup",
        "pagedown",
        "down",
    ]
    assert parse_keys(b"\x1b") == ["escape"]
    assert parse_keys(b"\x1b[1;5C\x00\xff \x1b[200~") == []

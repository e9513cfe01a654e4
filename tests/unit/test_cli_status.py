"""The output of `rebaser status`: JSON for programs, tables and sentences for people."""

import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from rebaser.cli import connect, logs
from rebaser.cli.commands.functions import functions
from rebaser.cli.commands.observing.status import status
from rebaser.cli.errors import CommandFailed
from rebaser.cli.output import console
from rebaser_client.admin.ack_stats import TaskAcks
from rebaser_client.admin.servers import ServerInfo, UpdateInfo, _server_info
from rebaser_client.admin.status import ChangeSetStatus, Overview
from rebaser_client.admin.stream_usage import DurabilityStatus, MessageCost, StreamStatus, TasksStatus
from rebaser_core.commit import Applied, Commit, Computed, Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Set
from rebaser_core.values import Fault

SERVER = ServerInfo("one", "1.2", 3, 1000, "ready", sweeper=True, durability="safe")
UPDATE = UpdateInfo("shop", "main", 300_000, 1_200_000, 12.5)
BUSY = ChangeSetStatus(
    "shop", "main", 4, has_task=True, last_commit=12, covers=9, debt=True, update=UPDATE, owner="r-0", errors=3
)
IDLE = ChangeSetStatus("shop", "other", 0, has_task=False, last_commit=7, covers=7, debt=False)
REQUESTS = StreamStatus(
    "REBASER_REQUESTS",
    "file",
    3,
    1,
    4,
    2_000_000,
    1000,
    10_000_000,
    -1,
    20.0,
    500_000.0,
    MessageCost(900, 200, 30, 34),
    retention="limits",
    discard="new",
    max_age=2_592_000.0,
    max_messages_per_subject=100_000,
    duplicate_window=90.0,
)
TASKS = StreamStatus("REBASER_TASKS", "memory", 1, 0, 0, 0, -1, -1, -1, None, None, None)
QUEUE = TasksStatus(pending=3, in_flight=1204, redelivered=2, waiting_pulls=5, ack_floor=77, ack_wait=6.0)
OVERVIEW = Overview([SERVER], [BUSY, IDLE], [REQUESTS, TASKS], DurabilityStatus("fast", "file", 1), QUEUE)
FAULT = Fault("failed", "no", "b")
ACKS = TaskAcks(60.0, 50, 7, 2, 3, 0.004, 12.5, 6.0)


class Told:
    """Stands in for a client, with the answers that NATS would give."""

    def __init__(self, overview: Overview, acks: TaskAcks) -> None:
        self._overview = overview
        self._acks = acks

    async def status(self, workspace: str | None) -> Overview:
        kept = [one for one in self._overview.change_sets if workspace in (None, one.workspace)]
        return replace(self._overview, change_sets=kept)

    async def state(self, workspace: str, change_set: str) -> ChangeSetState:
        state = ChangeSetState()
        state.fold(1, Commit("c", 0, Kind.REBASE, 0, "o", Applied("s", 1), 0, delta=(Set("a", 1), Derive("b", "cel"))))
        state.fold(2, Commit("d", 1, Kind.DVU, 0, "o", Applied("s", 1), 1, delta=(Computed("b", None, FAULT),)))
        return state

    async def task_acks(self, seconds: float) -> TaskAcks:
        return replace(self._acks, seconds=seconds)


Show = Callable[..., tuple[str, str]]


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Show:
    """A function that runs the command, and returns stdout and stderr."""

    def run(overview: Overview = OVERVIEW, *, task_acks: TaskAcks = ACKS, **options: Any) -> tuple[str, str]:
        @asynccontextmanager
        async def connect_client(nats: str, prefix: str) -> AsyncIterator[Told]:
            yield Told(overview, task_acks)

        monkeypatch.setattr(connect, "connect_client", connect_client)
        monkeypatch.setattr(logs, "configure", lambda *_: None)  # the configuration would remain for all later tests
        assert status(**options) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


def test_machines_get_one_object_with_everything(show: Show) -> None:
    out, err = show(json=True)
    assert err == ""
    assert json.loads(out) == {
        "servers": [
            {
                "id": "one",
                "version": "1.2",
                "owned": 3,
                "slots": 1000,
                "dvu": "ready",
                "sweeper": True,
                "durability": "safe",
                "trouble": "",
                "ready": True,
                "losses": [],
                "held": 0,
            }
        ],
        "changeSets": [
            {
                "workspaceId": "shop",
                "changeSetId": "main",
                "pending": 4,
                "hasTask": True,
                "owner": "r-0",
                "errors": 3,
                "lastCommit": 12,
                "covers": 9,
                "debt": True,
                "update": {
                    "done": 300_000,
                    "total": 1_200_000,
                    "seconds": 12.5,
                    "stage": None,
                    "plan": None,
                    "wave": None,
                    "sparkTag": None,
                },
                "problem": "",
            },
            {
                "workspaceId": "shop",
                "changeSetId": "other",
                "pending": 0,
                "hasTask": False,
                "owner": None,
                "errors": None,
                "lastCommit": 7,
                "covers": 7,
                "debt": False,
                "update": None,
                "problem": "",
            },
        ],
        "streams": [
            {
                "name": "REBASER_REQUESTS",
                "storage": "file",
                "copies": 3,
                "copiesBehind": 1,
                "messages": 4,
                "bytes": 2_000_000,
                "maxMessages": 1000,
                "maxBytes": 10_000_000,
                "maxMessageSize": -1,
                "percentFull": 20.0,
                "bytesPerMessage": 500_000.0,
                "newest": {"payload": 900, "headers": 200, "subject": 30, "record": 34},
                "retention": "limits",
                "discard": "new",
                "maxAge": 2_592_000.0,
                "maxMessagesPerSubject": 100_000,
                "duplicateWindow": 90.0,
            },
            {
                "name": "REBASER_TASKS",
                "storage": "memory",
                "copies": 1,
                "copiesBehind": 0,
                "messages": 0,
                "bytes": 0,
                "maxMessages": -1,
                "maxBytes": -1,
                "maxMessageSize": -1,
                "percentFull": None,
                "bytesPerMessage": None,
                "newest": None,
                "retention": "",
                "discard": "",
                "maxAge": 0.0,
                "maxMessagesPerSubject": -1,
                "duplicateWindow": 0.0,
            },
        ],
        "durability": {"atLeast": "fast", "storage": "file", "copies": 1},
        "tasks": {
            "pending": 3,
            "inFlight": 1204,
            "redelivered": 2,
            "waitingPulls": 5,
            "ackFloor": 77,
            "ackWait": 6.0,
        },
    }


def test_a_log_that_cannot_be_read_is_told_with_what_to_do(show: Show) -> None:
    damaged = replace(IDLE, problem="commit 7 is damaged: id is missing")
    overview = replace(OVERVIEW, change_sets=[BUSY, damaged])
    assert json.loads(show(overview, json=True)[0])["changeSets"][1]["problem"] == damaged.problem
    err = show(overview)[1]
    assert "shop/other cannot be read: commit 7 is damaged: id is missing; see `rebaser doctor shop other`" in err
    assert "shop/main" not in err


def test_machines_get_the_figures_of_acks_beside_it(show: Show) -> None:
    out, _ = show(json=True, acks=5.0)
    assert json.loads(out)["taskAcks"] == {
        "seconds": 5.0,
        "percent": 50,
        "samples": 7,
        "redelivered": 2,
        "mostDeliveries": 3,
        "latencyP50": 0.004,
        "latencyMax": 12.5,
        "ackWait": 6.0,
    }
    assert "taskAcks" not in json.loads(show(json=True)[0])


def rows(out: str) -> list[list[str]]:
    """Return rows and sentences: everything except the title, the headings and the empty line of each table."""
    parts = [part.splitlines() for part in out.split("\n\n")]
    return [line.split("\t") for part in parts[:-1] for line in part[2:]] + [[line] for line in parts[-1]]


def test_a_pipe_gets_a_row_a_line(show: Show) -> None:
    out, err = show()
    assert err == ""
    assert rows(out)[:-1] == [
        ["one", "1.2", "3", "1000", "ready"],
        ["shop", "main", "4", "yes", "12", "9", "yes", "25 % of 1,200,000 values, 12 s"],
        ["shop", "other", "0", "no", "7", "7", "no", ""],
        ["3", "1,204", "2", "77", "5", "6 s"],
        [
            "REBASER_REQUESTS",
            "file x3 (1 behind)",
            "4",
            "2.0 MB",
            "10.0 MB or 1,000 messages",
            "20 %",
            "500.0 kB",
            "1.2 kB (900 B)",
        ],
        ["REBASER_TASKS", "memory x1", "0", "0 B", "", "", "", ""],
        ["REBASER_REQUESTS", "limits", "new", "30 d", "10.0 MB or 1,000 messages", "100,000", "", "90 s"],
        ["REBASER_TASKS", "", "", "", "", "", "", ""],
    ]
    assert [len(rows(show(workspace=name)[0])) for name in ("shop", "nobody")] == [9, 7]


def test_a_terminal_gets_titles(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "out", lambda: Console(file=screen, force_terminal=True, width=200))
    monkeypatch.setattr(console, "is_terminal", lambda: True)
    show()
    shown = screen.getvalue()
    for words in (
        "Servers: 1",
        "Change sets: 2",
        "Streams",
        "DVU due",
        "average",
        "newest (payload)",
        "Limits",
        "Tasks",
        "waiting pulls",
    ):
        assert words in shown


@pytest.mark.parametrize(
    ("durability", "says"),
    [
        (DurabilityStatus("memory", "memory", 1), "durability: memory (storage memory, copies of each stream: 1)"),
        (
            DurabilityStatus("fast", "file", 1),
            (
                "durability: fast (storage file, copies of each stream: 1; safe if nats-server has sync_interval: "
                "always, which clients cannot see)"
            ),
        ),
        (DurabilityStatus("safe", "file", 3), "durability: safe (storage file, copies of each stream: 3)"),
    ],
)
def test_durability_is_a_word_and_what_it_rests_on(show: Show, durability: DurabilityStatus, says: str) -> None:
    assert show(replace(OVERVIEW, durability=durability))[0].splitlines()[-1] == says


def test_a_server_that_is_not_ready_and_streams_that_were_lost_are_told_on_stderr(show: Show) -> None:
    loss = "2026-11-22T04:40:15+00:00 stream S was lost with its contents"
    unready = replace(SERVER, ready=False, trouble="missing: S", losses=(loss,))
    other = replace(SERVER, id="two", losses=(loss,))
    assert show(replace(OVERVIEW, servers=[unready, other]))[1].splitlines() == [
        "server one is not ready: missing: S",
        loss,
    ]


def test_trouble_full_streams_and_missing_servers_are_told_on_stderr(show: Show) -> None:
    troubled = replace(SERVER, trouble="the log is full\x1b[2J")
    nearly = replace(REQUESTS, percent_full=90.0)
    assert show(replace(OVERVIEW, servers=[troubled], streams=[nearly]))[1].splitlines() == [
        "server one has a problem: the log is full\\x1b[2J",
        "stream REBASER_REQUESTS is 90 % full; when it is full, messages are refused",
    ]
    assert show(replace(OVERVIEW, streams=[replace(REQUESTS, percent_full=89.9)]))[1] == ""
    out, err = show(Overview([], [], [], None))
    assert (rows(out), err) == ([], "no server answers; requests wait until one runs (`rebaser serve`)\n")


def test_acks_are_a_sentence(show: Show) -> None:
    assert show(acks=60.0)[0].splitlines()[-1] == (
        "task acks in 60 s, 50 % sampled: 7, 2 delivered more than once (at most 3 times); from the last progress to "
        "the ack: p50 4.0 ms, max 12.5 s, ack wait 6 s"
    )
    none = replace(ACKS, samples=0, latency_p50=None, latency_max=None)
    assert show(acks=60.0, task_acks=none)[0].splitlines()[-1] == (
        "task acks in 60 s, 50 % sampled: 0 (a task is acked when its change set is released)"
    )


def test_acks_that_nobody_samples_are_a_failure_that_says_what_to_set(show: Show) -> None:
    with pytest.raises(CommandFailed, match="REBASER_ACK_SAMPLE=100"):
        show(acks=1.0, task_acks=replace(ACKS, percent=0))


def test_a_pipe_gets_tables_with_headings(show: Show) -> None:
    out, _ = show(OVERVIEW)
    lines = out.splitlines()
    at = lines.index("Change sets: 2")
    assert lines[at + 1].split("\t")[:2] == ["workspace", "change set"]
    assert lines[at + 2].split("\t")[:2] == ["shop", "main"]
    assert lines[at + 4] == ""
    assert {"Servers: 1", "Streams", "Limits", "Tasks"} <= set(lines)


def test_change_sets_are_shown_a_page_at_a_time(show: Show) -> None:
    out, err = show(OVERVIEW, limit=1)
    assert "shop\tmain" in out
    assert "shop\tother" not in out
    assert "1 of 2 change sets; for more: --after shop/main" in err
    out, err = show(OVERVIEW, limit=1, after="shop/main")
    assert "shop\tother" in out
    assert "shop\tmain" not in out


def test_values_are_counted_if_asked(show: Show) -> None:
    out, _ = show(OVERVIEW, values=True)
    assert "1 ok, 1 error" in out
    [first, _] = json.loads(show(OVERVIEW, values=True, json=True)[0])["changeSets"]
    assert first["values"] == {"ok": 1, "stale": 0, "error": 1, "unset": 0}


def test_functions_of_servers_are_told_by_who_has_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ping_servers(*_: object) -> list[ServerInfo]:
        told = {"id": "two", "version": "1", "owned": 0, "slots": 1, "dvu": "", "functions": ["sum", "tax"]}
        tax = {"inputs": ["price"], "params": ["rate", "round"]}
        knows = {"signatures": {"sum": {"inputs": None, "params": []}, "tax": tax}}
        return [replace(SERVER, functions=("sum",)), _server_info(told | knows), _server_info(told | {"id": "old"})]

    monkeypatch.setattr(connect, "ping_servers", ping_servers)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    assert functions(servers=True) == 0
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines()] == [
        ["sum", "?", "?", f"{SERVER.id}, old"],
        ["sum", "any", "none", "two"],
        ["tax", "price", "rate, round", "two"],
        ["tax", "?", "?", "old"],
    ]
    assert functions(servers=True, json=True) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[2] == {"name": "tax", "servers": ["two"], "of": 3, "inputs": ["price"], "params": ["rate", "round"]}
    assert told[3] == {"name": "tax", "servers": ["old"], "of": 3, "inputs": None, "params": None}

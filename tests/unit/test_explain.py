"""Why a change set waits: each reason follows from its facts, and `quiet` is never given while something waits."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rebaser_core.explain
from rebaser_client.admin import explanations
from rebaser_client.admin.explanations import Explainer
from rebaser_core.explain.facts import (
    AttemptFacts,
    BranchCondition,
    ChangeSetFacts,
    DeadFacts,
    LogFacts,
    QueueFacts,
    ServerFacts,
    StreamFacts,
    TaskFacts,
)
from rebaser_core.explain.owner_facts import OwnerFacts
from rebaser_core.explain.reasons import explain
from rebaser_core.ids import ChangeSetKey

NOBODY = ServerFacts("s", slots=10, about=OwnerFacts())
DONE = LogFacts(7, 60.0, owner="s", covers=7)
OWED = replace(DONE, covers=5, debt=2)
QUIET = ChangeSetFacts("ws", "cs", (NOBODY,), log=DONE)
QUEUED = replace(QUIET, queue=QueueFacts(3, 1.0), task=TaskFacts(1.0, delivered=True))
BEHIND = replace(QUEUED, queue=QueueFacts(), log=OWED)
NOT_DELIVERED = TaskFacts(1.0, delivered=False)


def owned(facts: ChangeSetFacts, phase: str, spark: str = "ready", **about: object) -> ChangeSetFacts:
    server = replace(NOBODY, spark=spark, about=OwnerFacts(phase, **about))  # type: ignore[arg-type]
    return replace(facts, servers=(server,))


def failing(facts: ChangeSetFacts, code: str) -> ChangeSetFacts:
    about = OwnerFacts(trouble_code=code, trouble="it broke")
    return replace(facts, servers=(replace(NOBODY, about=about),))


def stream(role: str, full: float | None = None, behind: int = 0) -> tuple[StreamFacts, ...]:
    return (StreamFacts(role, role.upper(), full, 3, behind),)


def attempt(facts: ChangeSetFacts, what: str, held: int = 0, deaths: int = 0) -> ChangeSetFacts:
    assert facts.log is not None
    return replace(facts, log=replace(facts.log, attempt=AttemptFacts(what, held, deaths, 30.0)))


def full(role: str) -> ChangeSetFacts:
    return replace(QUEUED, streams=stream(role, 99.0))


CASES: dict[str, ChangeSetFacts] = {
    "quiet": QUIET,
    "unknown": replace(QUIET, log=None),
    "no_stream_leader": ChangeSetFacts("ws", "cs", (NOBODY,), nats_problem="no answer"),
    "log_unreadable": replace(QUEUED, log=LogFacts(7, problem="damaged")),
    "checkpoint_unreadable": replace(QUEUED, log=replace(DONE, checkpoint_problem="no blob")),
    "no_server": replace(QUEUED, servers=()),
    "server_not_ready": replace(QUEUED, servers=(replace(NOBODY, ready=False, trouble="no stream"),)),
    "log_full": full("commits"),
    "commits_refused": failing(QUEUED, "commit_refused"),
    "requests_full": replace(QUIET, streams=stream("requests", 100.0)),
    "tasks_full": full("tasks"),
    "blobs_full": full("blobs"),
    "dead_letters_full": replace(QUIET, streams=stream("dlq", 99.0)),
    "dead_letters_refused": failing(owned(QUEUED, "active"), "dead_letter_refused"),
    "copies_behind": replace(QUIET, streams=stream("commits", None, 1)),
    "held": attempt(failing(QUEUED, "blob_missing"), "request", held=2),
    "newer_server_needed": attempt(failing(QUEUED, "unsupported_version"), "request", held=2),
    "on_probation": attempt(owned(QUEUED, "active"), "request", deaths=2),
    "dvu_put_off": owned(BEHIND, "active", update="waiting", retry_in=20.0),
    "slots_full": replace(QUEUED, servers=(replace(NOBODY, owned=10),), task=NOT_DELIVERED),
    "loading": owned(QUEUED, "loading", idle=3.0),
    "load_stuck": owned(QUEUED, "loading", idle=21.0, reading="the log, blob sha256:abc"),
    "deciding": owned(QUEUED, "deciding", idle=300.0),
    "owner_stuck": owned(replace(QUEUED, queue=QueueFacts(3, 60.0)), "deciding", idle=60.0),
    "handing_over": owned(QUEUED, "settling", stopping="yield"),
    "spark_starting": owned(BEHIND, "active", "starting", update="running"),
    "spark_down": owned(BEHIND, "active", "down: refused", update="running"),
    "dvu_waiting": owned(BEHIND, "active", update="waiting", failures=2, retry_in=4.0),
    "dvu_running": owned(BEHIND, "active", update="running", done=3, total=9, update_seconds=70.0),
    "dvu_hangs": owned(BEHIND, "active", update="running", done=3, total=9, update_seconds=70.0, silent=46.0),
    "dvu_due": owned(BEHIND, "active", update="owed"),
    "not_published": replace(QUEUED, task=None),
    "task_on_its_way": replace(QUEUED, task=NOT_DELIVERED),
    "task_not_taken": replace(QUEUED, task=replace(NOT_DELIVERED, age=20.0)),
    "tasks_paused": replace(QUEUED, task=replace(NOT_DELIVERED, paused=True)),
    "failing": failing(QUEUED, "broken_chain"),
    "lease_running_out": QUEUED,
    "working": owned(QUEUED, "active"),
    "queue_full": replace(owned(QUEUED, "active"), queue=QueueFacts(3, 1.0, 3)),
    "dead_letters": replace(QUIET, dead=DeadFacts(2, "malformed", "no map", "R", 5.0)),
    "function_missing": replace(QUIET, log=replace(DONE, missing=("company.tax",))),
    "deleted": replace(QUIET, branch=BranchCondition("deleted")),
    "closed": replace(QUIET, branch=BranchCondition("applied", target="main")),
    "protected": replace(QUIET, branch=BranchCondition(protected=True)),
    "conflicts": replace(QUIET, branch=BranchCondition(target="main", conflicts=2)),
    "behind": replace(QUIET, branch=BranchCondition(target="main", behind=True)),
    "inherited_debt": replace(QUIET, log=replace(DONE, covers=5)),
    "server_busy": owned(QUIET, "active", rtt=2.0, lag=0.5),
    "slow_network": owned(QUIET, "active", rtt=2.0),
    "slow_storage": replace(QUIET, api_seconds=3.0),
    "clock_wrong": replace(QUIET, log=replace(DONE, skew=-3600.0)),
}


@pytest.mark.parametrize("code", CASES)
def test_a_reason_follows_from_what_means_it(code: str) -> None:
    first = explain(CASES[code])[0]
    assert first.code == code
    assert first.text
    assert first.advice or code == "quiet"
    assert len(first.text + first.advice) < 400


def test_every_reason_has_a_case() -> None:
    folder = Path(rebaser_core.explain.__file__).parent
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    names = {
        one.value
        for tree in map(ast.parse, (path.read_text() for path in folder.glob("*.py")))
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "WaitReason"
        for one in ast.walk(call.args[0])
        if isinstance(one, ast.Constant)
    }
    assert names <= CASES.keys()
    assert all(code in text for code in CASES)


def test_a_cause_comes_before_what_follows_from_it() -> None:
    everything = replace(QUEUED, servers=(), log=LogFacts(7, problem="damaged"), streams=stream("commits", 99.0))
    assert [reason.code for reason in explain(everything)] == ["log_unreadable", "no_server", "log_full"]
    dead = replace(CASES["dvu_waiting"], dead=DeadFacts(1), branch=BranchCondition(protected=True))
    assert [reason.code for reason in explain(dead)] == ["dvu_waiting", "dead_letters", "protected"]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("JetStream: maximum bytes exceeded", "log_full"),
        ("JetStream: maximum messages exceeded", "log_full"),
        ("JetStream: insufficient resources", "commits_refused"),
    ],
)
def test_a_refused_commit_means_a_full_log_however_full_it_looks_unless_nats_says_otherwise(
    text: str, first: str
) -> None:
    about = OwnerFacts(trouble_code="commit_refused", trouble=text)
    told = explain(replace(QUEUED, servers=(replace(NOBODY, about=about),), streams=stream("commits", 80)))
    assert [reason.code for reason in told] == [first, "failing"]


def test_a_refused_dead_letter_is_told_while_later_requests_are_decided() -> None:
    log = replace(DONE, kind="rebase", age=1.0)
    about = OwnerFacts("active", trouble_code="dead_letter_refused", trouble="maximum bytes exceeded", trouble_age=4.0)
    facts = replace(QUEUED, servers=(replace(NOBODY, about=about),), log=log, streams=stream("dlq", 90.0))
    [first, *_] = explain(facts)
    assert (first.code, first.waits) == ("dead_letters_full", True)
    over = replace(facts, servers=(replace(NOBODY, about=replace(about, trouble_age=20.0)),))
    assert [reason.code for reason in explain(over)] == ["working"]


def test_nobody_can_work_is_told_even_if_nothing_waits() -> None:
    """For instance, NATS has no room, so clients cannot even store requests."""
    unready = replace(NOBODY, ready=False, trouble="NATS stores no messages")
    [reason] = explain(replace(QUIET, servers=(unready,)))
    assert (reason.code, reason.waits) == ("server_not_ready", False)
    assert unready.trouble in reason.text


def test_a_failure_is_over_once_a_later_commit_shows_progress() -> None:
    about = OwnerFacts(trouble_code="commit_refused", trouble="it broke", trouble_age=9.0)
    facts = replace(QUEUED, servers=(replace(NOBODY, about=about),), streams=stream("commits", 80))
    assert facts.log is not None
    for kind, age, first in (
        ("rebase", 20.0, "commits_refused"),
        ("attempt", 1.0, "commits_refused"),
        ("rebase", 1.0, "lease_running_out"),
    ):
        assert explain(replace(facts, log=replace(facts.log, kind=kind, age=age)))[0].code == first


def test_an_owner_that_was_asked_to_decide_just_now_is_not_stuck() -> None:
    """The owner may have been idle for an hour before."""
    assert explain(owned(QUEUED, "deciding", idle=3600.0))[0].code == "deciding"
    assert explain(owned(replace(QUEUED, queue=QueueFacts(9, 3600.0)), "deciding", idle=0.1))[0].code == "deciding"


STUCK = CASES["owner_stuck"]


@pytest.mark.parametrize(
    ("about", "codes"),
    [
        ({"append_waits": 15.0}, ["slow_storage"]),
        ({"append_waits": 0.7}, ["slow_storage"]),
        ({"append_waits": 0.1, "append_took": 0.8}, ["slow_storage"]),
        ({"append_waits": 0.2, "append_took": 0.4}, ["owner_stuck"]),
        ({"append_waits": 15.0, "rtt": 2.0}, ["owner_stuck", "slow_network"]),
        ({"append_waits": 15.0, "lag": 2.0}, ["owner_stuck", "server_busy"]),
        ({"append_took": 0.6, "rtt": 0.2}, ["owner_stuck"]),
    ],
)
def test_an_owner_whose_append_waits_for_the_disk_is_not_stuck(about: dict[str, float], codes: list[str]) -> None:
    facts = owned(replace(STUCK, api_seconds=3.0), "deciding")
    reasons = explain(replace(facts, servers=(replace(NOBODY, about=OwnerFacts("deciding", 60.0, **about)),)))  # type: ignore[arg-type]
    told = [reason for reason in reasons if (reason.code, reason.waits) != ("slow_storage", False)]
    assert [reason.code for reason in told] == codes
    if codes == ["slow_storage"]:
        assert len(reasons) == 1
        assert "15 s" in told[0].text or "0.7 s" in told[0].text or "0.8 s" in told[0].text


HOUR = 3600.0


@pytest.mark.parametrize(
    ("here", "servers", "wrong"),
    [
        (0.0, [0.0, 9.0], []),
        (HOUR, [-HOUR, -HOUR], ["this machine"]),  # of which servers report how much they are ahead
        (-HOUR, [], ["this machine"]),
        (0.0, [HOUR, 0.0], ["server 0"]),
        (0.0, [-HOUR], ["server 0"]),
        (HOUR, [0.0, 0.0], ["NATS"]),
        (HOUR, [0.0], ["NATS"]),
        (HOUR, [0.0, HOUR, 0.0], ["NATS", "server 1"]),
        (HOUR, [0.0, -HOUR], ["this machine", "server 0"]),  # two say so and two so: NATS is right
    ],
)
def test_the_clock_that_differs_from_the_others_is_wrong(here: float, servers: list[float], wrong: list[str]) -> None:
    about = [ServerFacts(f"{number}", about=OwnerFacts(skew=ahead)) for number, ahead in enumerate(servers)]
    facts = replace(QUIET, servers=tuple(about), skew=here, log=replace(DONE, owner="0" if servers else ""))
    reasons = [reason for reason in explain(facts) if reason.code != "quiet"]
    assert [reason.code for reason in reasons] == ["clock_wrong"] * len(wrong)
    for reason, name in zip(reasons, wrong, strict=True):
        assert reason.text.startswith(f"the clock of {name} is 60 min ")
        assert f"the clock of {name} (NTP)" in reason.advice


def test_what_is_quiet_may_have_values_in_error() -> None:
    [well] = explain(QUIET)
    assert (well.code, well.text, well.advice) == (
        "quiet",
        "nothing waits: requests and values are up to date as of commit 7",
        "",
    )
    for errors, failing in ((1, "1 value is"), (1200, "1,200 values are")):
        [reason] = explain(replace(QUIET, log=replace(DONE, errors=errors)))
        assert (reason.code, reason.waits) == ("quiet", False)
        assert reason.text.startswith(f"nothing waits, but {failing} in error")
        assert "rebaser explain ws cs ID" in reason.advice


def test_a_clock_that_was_wrong_when_it_last_wrote_is_forgiven_if_it_is_right_now() -> None:
    facts = replace(CASES["clock_wrong"], servers=(replace(NOBODY, about=OwnerFacts(skew=0.0)),))
    assert [reason.code for reason in explain(facts)] == ["quiet"]


def test_a_slow_append_of_an_update_comes_before_the_update() -> None:
    facts = owned(BEHIND, "active", update="running", done=9, total=9, update_seconds=70.0, append_waits=12.0)
    assert [reason.code for reason in explain(facts)] == ["slow_storage", "dvu_running"]


@pytest.mark.parametrize(
    ("done", "total", "seconds", "hangs"),
    [(0, 9, 21.0, True), (0, 9, 19.0, False), (1, 9, 59.0, False), (1, 9, 61.0, True), (0, 0, 59.0, False)],
)
def test_an_update_without_a_single_value_may_hang_in_a_function(
    done: int, total: int, seconds: float, hangs: bool
) -> None:
    facts = owned(BEHIND, "active", update="running", done=done, total=total, update_seconds=seconds, sees_jobs=True)
    assert ("a function may be slow or hang" in explain(facts)[0].advice) == hangs


@pytest.mark.parametrize(("seconds", "hangs"), [(59.0, False), (61.0, True)])
def test_an_update_on_a_spark_that_shows_no_progress_gets_more_time(seconds: float, hangs: bool) -> None:
    facts = owned(BEHIND, "active", update="running", done=0, total=9, update_seconds=seconds)
    assert ("a function may be slow or hang" in explain(facts)[0].advice) == hangs


@pytest.mark.parametrize(
    ("about", "hangs"),
    [
        ({"silent": 21.0, "sees_jobs": True}, True),
        ({"silent": 19.0, "sees_jobs": True}, False),
        ({"silent": 44.0}, False),
        ({"silent": 46.0, "spark_waits": 2}, False),
        ({"silent": 46.0, "spark_waits": 2, "function": "company.tax"}, True),
    ],
)
def test_an_update_without_progress_hangs_unless_it_may_wait_for_its_turn(about: dict[str, Any], hangs: bool) -> None:
    running: dict[str, Any] = {"update": "running", "done": 3, "total": 9, "update_seconds": 50.0}
    facts = owned(BEHIND, "active", **running, **about)
    [reason] = explain(facts)
    assert reason.code == ("dvu_hangs" if hangs else "dvu_running")
    assert str(about.get("function", "")) in reason.text


def test_servers_that_are_too_old_to_say_explain_nothing_wrong() -> None:
    assert [one.code for one in explain(replace(QUEUED, servers=(ServerFacts("old"),)))] == ["working"]


SOME = st.sampled_from(list(CASES.values()))


@given(st.tuples(SOME, SOME, SOME, SOME, SOME, SOME))
def test_nothing_is_quiet_while_something_waits(some: tuple[ChangeSetFacts, ...]) -> None:
    servers, queue, task, log, branch, rest = some
    facts = replace(rest, servers=servers.servers, queue=queue.queue, task=task.task, log=log.log, branch=branch.branch)
    reasons = explain(facts)
    codes = [reason.code for reason in reasons]
    assert len(codes) > 0
    if facts.works or facts.nats_problem:
        assert any(reason.waits for reason in reasons)
        assert not {"quiet", "unknown"} & set(codes)
    if "quiet" in codes:
        assert codes == ["quiet"]


def test_a_task_behind_others_waits_for_its_turn_while_servers_ask_for_tasks() -> None:
    behind = replace(NOT_DELIVERED, age=20.0, ahead=5, pulls=2)
    assert explain(replace(QUEUED, task=behind))[0].code == "slots_full"
    assert explain(replace(QUEUED, task=replace(behind, pulls=0)))[0].code == "task_not_taken"
    assert explain(replace(QUEUED, task=replace(behind, ahead=0)))[0].code == "task_not_taken"


def test_the_slots_of_a_server_that_is_not_ready_are_not_free() -> None:
    servers = (replace(NOBODY, ready=False), replace(NOBODY, owned=10))
    facts = replace(QUEUED, servers=servers, task=replace(NOT_DELIVERED, age=20.0))
    assert explain(facts)[0].code == "slots_full"


@pytest.mark.anyio
async def test_a_task_that_was_taken_meanwhile_is_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([CASES["task_not_taken"], CASES["deciding"]])

    class Looking(Explainer):
        def __init__(self) -> None:
            pass

        async def facts(self, key: ChangeSetKey, patience: float = 0.0) -> ChangeSetFacts:
            return next(found)

    monkeypatch.setattr(explanations, "CONFIRM", 0.0)
    assert [one.code for one in (await Looking().explain(ChangeSetKey("ws", "cs"))).reasons] == ["deciding"]

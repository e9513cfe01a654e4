"""Traces of requests: from a client over a real NATS to a server, its commits and its answers."""

import time
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from opentelemetry.sdk.trace import SpanProcessor

from rebaser.change_set.attempts.held_requests import QueueBlocked
from rebaser.telemetry.catalogue import TRACES_LIMITED
from rebaser.telemetry.clocks import NATS_CLOCK
from rebaser.telemetry.span_maker import MAX_LATE
from rebaser_client import BlockingRebaserClient, RebaserClient, Request, RequestRejected, Set, Success, Update
from rebaser_client.jetstream import JetStream, NoAnswerError
from rebaser_core.branches.branch import Apply
from rebaser_core.encoding.envelope import MESSAGE_ID, REPLY_INBOX
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.messages.headers.traces import read_trace
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.owners import Death, serving
from tests.support.owners import Engine as Idle
from tests.support.poison import KEY, Fleet
from tests.support.traces import (
    APPEND,
    ENQUEUE,
    PROCESS,
    STORE,
    Recorder,
    exemplars,
    headers_of,
    newest_commit,
    sender,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
def fleet(js: JetStream, subjects: Subjects, recorder: Recorder) -> Fleet:
    fleet = Fleet(js, subjects)
    settings = fleet.context.settings.model_copy(update={"batch_max_requests": 32})
    fleet.context = replace(fleet.context, settings=settings, traces=recorder.server())
    return fleet


async def test_a_server_answers_into_the_trace_of_a_request(
    js: JetStream, subjects: Subjects, recorder: Recorder
) -> None:
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("r"), "ws", "cs", (Set("a", 1),)))
    inbox, reply = js.connection.open_reply(timeout=60)
    async with serving(js, subjects, Idle(), traces=recorder.server()):
        given = headers | {REPLY_INBOX: inbox} | headers_of(1) | {"tracestate": "vendor=1"}
        await js.publish(subjects.requests(KEY), payload, given)
        await js.publish(subjects.task(KEY), b"")
        answer = read_trace((await reply).headers)
        await until(recorder, PROCESS)
    js.connection.close_reply(inbox)
    commit = read_trace(await newest_commit(js, subjects))
    decided, append = recorder.one(PROCESS), recorder.one(APPEND)
    assert answer is not None
    assert commit is not None
    assert (answer.trace_id, answer.span_id, answer.state) == (sender(1).trace_id, decided.context.span_id, "vendor=1")
    assert (commit.trace_id, commit.span_id, commit.state) == (sender(1).trace_id, append.context.span_id, "vendor=1")
    assert decided.parent.span_id == sender(1).span_id


async def test_a_commit_is_linked_to_each_request_that_it_decides(fleet: Fleet, recorder: Recorder) -> None:
    for number in range(10):
        await fleet.send(f"r{number}", **headers_of(number))
    await fleet.send("untraced")
    await fleet.send("unsampled", **headers_of(99, flags=0))
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == []
    append, decided = recorder.one(APPEND), recorder.spans(PROCESS)
    assert [span.parent.span_id for span in decided] == [sender(number).span_id for number in range(10)]
    assert append.parent.span_id == decided[0].context.span_id
    assert [link.context.span_id for link in append.links] == [span.context.span_id for span in decided[1:]]
    assert append.attributes["messaging.batch.message_count"] == 12
    for span in decided[1:]:
        assert [link.context.span_id for link in span.links] == [append.context.span_id]
    assert {span.attributes["messaging.message.id"] for span in decided} == {f"r{number}" for number in range(10)}


async def test_the_span_of_a_commit_counts_how_often_it_was_sent_again(
    fleet: Fleet, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is stored at once, but the answer is lost."""
    await fleet.send("r", **headers_of(1))
    publish, calls = JetStream.publish, 0

    async def unanswered(self: JetStream, subject: str, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        answer = await publish(self, subject, *arguments, **named)
        calls += 1
        if calls <= 1:
            raise NoAnswerError("lost")
        return answer

    async with fleet.owner(redelivered=False) as owner:
        monkeypatch.setattr(JetStream, "publish", unanswered)
        assert await owner.decide_all() == []
    assert recorder.one(APPEND).attributes["rebaser.retries"] == 1


async def test_a_request_that_is_answered_again_begins_a_trace_of_its_own(fleet: Fleet, recorder: Recorder) -> None:
    for number, again in enumerate(({}, {"Nats_Msg_Id": "other"}, {"Nats_Msg_Id": "redriven", "X_Redrive": "1"})):
        await fleet.send("r", **again, **headers_of(number))
    await fleet.send("new", Nats_Msg_Id="new", X_Redrive="1", **headers_of(3))
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == []
    first, *others = recorder.spans(PROCESS)
    assert first.parent.span_id == sender(0).span_id
    assert [span.parent for span in others] == [None] * 3
    assert [span.links[0].context.span_id for span in others] == [sender(number).span_id for number in (1, 2, 3)]
    assert recorder.one(APPEND).parent.span_id == first.context.span_id


@pytest.mark.parametrize("place", ["log.commit_log.CommitLog._publish", "processor.Processor._answer_all"])
async def test_a_takeover_loses_no_span_of_a_request(
    fleet: Fleet, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The first owner dies before or after the commit; in both cases, the next owner records the request."""

    def dies(*_: object, **__: object) -> None:
        raise Death

    await fleet.send("r", **headers_of(1))
    with monkeypatch.context() as patch:
        patch.setattr(f"rebaser.change_set.{place}", dies)
        async with fleet.owner(redelivered=False) as owner:
            queued = owner.queued
            with pytest.raises(Death):
                await owner.decide_all()
    assert recorder.spans() == []
    async with fleet.owner(redelivered=False) as owner:
        owner.queued = queued  # even if the request is decided, it is not deleted yet
        assert await owner.decide_all() == []
    decided = recorder.one(PROCESS)
    assert decided.parent.span_id == sender(1).span_id
    assert decided.attributes["rebaser.commit.sequence"] == 1


@pytest.mark.usefixtures("traced_program")
async def test_requests_in_one_call_are_traces_of_their_own_unless_the_caller_has_one(
    js: JetStream, subjects: Subjects, nats_url: str, recorder: Recorder
) -> None:
    async with (
        serving(js, subjects, Idle(), traces=recorder.server()),
        RebaserClient.connect(nats_url, prefix=subjects.prefix) as client,
    ):
        requests = [Request("ws", "cs", [Set("a", number)]) for number in range(5)]
        bad = Request("ws", "cs", [Set("", 1)])
        outcomes = await client.enqueue_many([*requests, bad])
        await until(recorder, PROCESS, 5)
    assert [outcome.error is None for outcome in outcomes] == [True] * 5 + [False]
    assert len({span.context.trace_id for span in recorder.spans()}) == 6
    assert {(ENQUEUE, None), (STORE, ENQUEUE), (PROCESS, STORE), (APPEND, PROCESS)} == recorder.parents()
    [failed] = [span for span in recorder.spans(ENQUEUE) if "error.type" in span.attributes]
    assert failed.attributes["error.type"] == outcomes[5].error.code  # type: ignore[union-attr]
    assert len(recorder.spans(STORE)) == 5


@pytest.mark.usefixtures("traced_program")
async def test_what_the_caller_gets_is_on_its_span(
    js: JetStream, subjects: Subjects, nats_url: str, recorder: Recorder
) -> None:
    async with (
        serving(js, subjects, Idle(), traces=recorder.server()),
        RebaserClient.connect(nats_url, prefix=subjects.prefix) as client,
    ):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        with pytest.raises(RequestRejected):
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 2)], expect_at=0)
        await client.enqueue_updates("ws", "cs", [Set("a", 3)])
        await until(recorder, PROCESS, 3)
    told = [
        (span.attributes.get("rebaser.outcome"), span.attributes.get("error.type")) for span in recorder.spans(ENQUEUE)
    ]
    assert told == [("success", None), ("error", "moved"), (None, None)]
    rejected = recorder.spans(PROCESS)[1]
    assert (rejected.attributes["rebaser.outcome"], rejected.attributes["error.type"]) == ("error", "moved")
    assert not rejected.status.is_ok


@pytest.mark.usefixtures("traced_program")
@pytest.mark.parametrize("method", ["on_start", "on_end"])
async def test_a_span_processor_of_the_program_that_fails_harms_no_request(
    js: JetStream, subjects: Subjects, nats_url: str, recorder: Recorder, events: Events, method: str
) -> None:
    failing = Mock(spec=SpanProcessor, **{f"{method}.side_effect": OSError("disk full")})
    recorder.provider.add_span_processor(failing)
    async with (
        serving(js, subjects, Idle()),
        RebaserClient.connect(nats_url, prefix=subjects.prefix) as client,
    ):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        await client.enqueue_updates("ws", "cs", [Set("a", 2)])
        [outcome] = await client.enqueue_many([Request("ws", "cs", [Set("a", 3)])])
        assert outcome.error is None
        assert (await client.values("ws", "cs"))["a"].value == 3
    assert getattr(failing, method).call_count >= 3
    [event] = events.named("span_failed")
    assert event["reason"] == "OSError: disk full"


@pytest.mark.usefixtures("traced_program")
async def test_a_blocking_client_goes_on_with_the_trace_of_its_thread(
    js: JetStream, subjects: Subjects, nats_url: str, recorder: Recorder
) -> None:
    def call() -> None:
        with (
            BlockingRebaserClient.connect(nats_url, prefix=subjects.prefix) as client,
            recorder.tracer.start_as_current_span("caller"),
        ):
            client.enqueue_updates("ws", "cs", [Set("a", 1)])

    await anyio.to_thread.run_sync(call)
    assert recorder.parents() == {("caller", None), (ENQUEUE, "caller"), (STORE, ENQUEUE)}


async def test_a_request_of_no_trace_begins_one_by_chance_or_because_it_was_slow(
    js: JetStream, subjects: Subjects, fleet: Fleet, recorder: Recorder
) -> None:
    async def decide(id_: str, headers: dict[str, str], **given: float) -> list[Any]:
        fleet.context = replace(fleet.context, traces=recorder.server(**given))
        before = len(recorder.spans())
        await fleet.send(id_, **headers)
        async with fleet.owner(redelivered=False) as owner:
            with recorder.tracer.start_as_current_span("what the program does besides"):
                assert await owner.decide_all() == []
        return recorder.spans()[before:-1]

    assert await decide("untraced", {}) == []
    assert await decide("unsampled", headers_of(1, flags=0), ratio=1.0) == []
    append, chosen = await decide("chosen", {}, ratio=1.0)
    assert (chosen.parent, append.parent.span_id) == (None, chosen.context.span_id)
    assert read_trace(await newest_commit(js, subjects)) is not None
    for number, headers in enumerate(({}, headers_of(1, flags=0))):
        append, slow = await decide(f"slow{number}", headers, slower_than=-1e6)
        assert (slow.parent, append.parent.span_id) == (None, slow.context.span_id)
        assert slow.start_time <= append.start_time <= append.end_time <= slow.end_time
        assert len(slow.links) == number
        assert read_trace(await newest_commit(js, subjects)) is None, "nobody knew before the append"
        assert f"{slow.context.trace_id:032x}" in exemplars(), "a scrape names the trace of a slow request"


async def test_slow_requests_get_few_traces_if_all_are_slow(
    fleet: Fleet, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    monkeypatch.setattr(NATS_CLOCK, "now_ns", lambda: now)
    fleet.context = replace(fleet.context, traces=recorder.server(slower_than=-1e6))
    await fleet.send(*(f"r{number}" for number in range(3 * MAX_LATE)))
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == []
    assert len(recorder.spans(PROCESS)) == MAX_LATE


@pytest.mark.parametrize("sampled", [True, False])
async def test_only_so_many_requests_are_recorded_in_a_second_whoever_chose_them(
    fleet: Fleet, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, sampled: bool
) -> None:
    now = time.time_ns()
    monkeypatch.setattr(NATS_CLOCK, "now_ns", lambda: now)
    fleet.context = replace(fleet.context, traces=recorder.server(ratio=1.0, per_second=3))
    before = TRACES_LIMITED.count("chosen").value
    for second in (1, 2):
        await fleet.send(*(f"r{second}-{number}" for number in range(5)), **(headers_of(1) if sampled else {}))
        async with fleet.owner(redelivered=False) as owner:
            assert await owner.decide_all() == []
        assert len(recorder.spans(PROCESS)) == 3 * second
        now += 10**9
    assert TRACES_LIMITED.count("chosen").value == before + 4


async def test_the_spans_of_requests_and_commits_have_the_clock_of_nats(fleet: Fleet, recorder: Recorder) -> None:
    fleet.context = replace(fleet.context, traces=recorder.server(ratio=1.0))
    await fleet.send("r")
    NATS_CLOCK.compare(-600.0)  # that clock is 10 minutes ahead
    try:
        async with fleet.owner(redelivered=False) as owner:
            assert await owner.decide_all() == []
    finally:
        NATS_CLOCK.compare(0.0)
    for name in (PROCESS, APPEND):
        span = recorder.one(name)
        assert time.time_ns() + 300 * 10**9 < span.start_time <= span.end_time


async def test_slow_loads_and_checkpoints_get_traces(
    js: JetStream, subjects: Subjects, client: RebaserClient, recorder: Recorder
) -> None:
    large: list[Update] = [Set(f"v/{number}", "x" * 1000) for number in range(1500)]  # more than a message holds
    async with serving(js, subjects, Idle(), traces=recorder.server(), checkpoint_bytes=1024):
        await client.enqueue_updates_with_reply("ws", "fast", large)
    assert recorder.spans() == []
    slow = recorder.server(slower_than=-1e6)
    async with serving(js, subjects, Idle(), traces=slow, checkpoint_bytes=1024):
        await client.enqueue_updates_with_reply("ws", "slow", large)
        await until(recorder, "checkpoint")
    for name in ("load", "checkpoint"):
        [span, *_] = [one for one in recorder.spans(name) if one.attributes["rebaser.change_set"] == "slow"]
        assert span.parent is None
        assert span.start_time <= span.end_time
    assert recorder.spans("checkpoint")[-1].attributes["rebaser.bytes"] > 1000


async def test_the_headers_of_what_belongs_to_no_trace_are_those_without_traces(
    js: JetStream, subjects: Subjects, client: RebaserClient, recorder: Recorder
) -> None:
    found: list[list[str]] = []
    for name, traces in (("off", None), ("on", recorder.server())):
        key = ChangeSetKey.of("ws", name)
        await client.enqueue_updates("ws", name, [Set("a", 1)], request_id="r")
        request = await js.last(subjects.requests_stream, subjects.requests(key))
        assert request is not None
        headers, _ = encode(EnqueueUpdatesRequest(RequestId("r"), "ws", name, (Set("a", 1),)))
        assert headers.items() <= request.headers.items()
        assert list(request.headers) == [*headers, MESSAGE_ID]
        async with serving(js, subjects, Idle(), traces=traces):
            await client.enqueue_updates_with_reply("ws", name, [Set("a", 2)])
            found.append(list(await newest_commit(js, subjects, key)))
    assert found[0] == found[1]
    assert "traceparent" not in found[0]
    assert recorder.spans() == []


@pytest.mark.parametrize(
    "parent", ["", "x", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "9" * 10_000, "00-é", "ff-" + "1" * 52]
)
async def test_a_damaged_position_harms_no_request(fleet: Fleet, recorder: Recorder, parent: str) -> None:
    await fleet.send("r", traceparent=parent, tracestate="=" * 10_000)
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == []
        assert owner.commits.state.cells.keys() == {"r"}
    assert recorder.spans() == []


async def test_log_events_of_a_request_name_its_trace(
    js: JetStream, subjects: Subjects, fleet: Fleet, recorder: Recorder, events: Events
) -> None:
    await fleet.send("dead", X_MESSAGE_TYPE="Nothing", **headers_of(1))
    await fleet.send("held", X_MESSAGE_VERSION="99", **headers_of(2))
    async with fleet.owner(redelivered=False) as owner:
        with pytest.raises(QueueBlocked) as blocked:
            await owner.processor.process(owner.queued)
        [pending] = blocked.value.dead
        await owner.processor.publish_dead_letter(pending)
    [dead] = events.named("request_dead")
    [held] = events.named("request_held")
    assert [event["trace_id"] for event in (dead, held)] == [f"{sender(number).trace_id:032x}" for number in (1, 2)]
    letter = await js.last(subjects.dlq_stream, subjects.dlq(KEY))
    assert letter is not None
    assert read_trace(letter.headers) == sender(1)


async def test_the_request_that_an_apply_sends_to_its_branch_continues_the_trace_of_the_apply(
    js: JetStream, subjects: Subjects, client: RebaserClient, recorder: Recorder
) -> None:
    async with serving(js, subjects, Idle(), traces=recorder.server()):
        await client.enqueue_updates_with_reply("ws", "main", [Set("a", 1)])
        await client.create_branch("ws", "fix", follow="manual")
        edited = await client.enqueue_updates_with_reply("ws", "fix", [Set("a", 2)])
        assert isinstance(edited.status, Success)
        action = Apply("fix", at=edited.status.commit)
        headers, payload = encode(EnqueueUpdatesRequest(RequestId("apply"), "ws", "main", None, action=action))
        await js.publish(subjects.requests(ChangeSetKey("ws", "main")), payload, headers | headers_of(1))
        await until(recorder, PROCESS, 2)
    apply, settle = recorder.spans(PROCESS)
    assert apply.parent.span_id == sender(1).span_id
    assert settle.attributes["rebaser.change_set"] == "fix"
    assert settle.parent.span_id == apply.context.span_id

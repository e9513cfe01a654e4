"""Traces of updates: from the request that makes one due to the update, its stages and its Spark jobs."""

from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import pytest
from structlog.contextvars import get_contextvars

from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.log.encoded_commit import EncodedCommit
from rebaser.dvu.spark.engine import Engine
from rebaser.dvu.spark.session_manager import ActiveSession
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import Kind
from rebaser_core.errors import FencedError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.messages.headers.traces import read_trace
from rebaser_core.streams.subjects import Subjects
from tests.support.owners import DOUBLE, serving
from tests.support.poison import KEY
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
    short,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


class Session:
    """A Spark session that computes in a thread of this process."""

    task_slots = 4
    sent_bytes = 0

    def run(self, packets: list[bytes], **_: object) -> list[list[bytes]]:
        return [evaluate_packet(packet) for packet in packets]


class Sessions:
    """Gives out one session, once `go` is set."""

    state = "ready"

    def __init__(self) -> None:
        self.ready = self.go = anyio.Event()

    async def check(self) -> None: ...

    async def run(self) -> None: ...

    async def compile(self) -> None: ...

    async def close(self) -> None: ...

    async def session(self) -> ActiveSession:
        await self.go.wait()
        return ActiveSession(cast("Any", Session()))


class Computing(Engine):
    """The engine, with its queue and its jobs, on a session that computes in this process."""

    def __init__(self) -> None:
        super().__init__("sc://localhost")
        self.sessions = Sessions()
        self._sessions = cast("Any", self.sessions)


@pytest.fixture
async def engine() -> AsyncIterator[Computing]:
    async with Computing() as engine:
        yield engine


@pytest.mark.usefixtures("traced_program")
async def test_a_request_is_one_trace_from_its_caller_to_the_spark_job(
    js: JetStream, subjects: Subjects, nats_url: str, recorder: Recorder, engine: Computing
) -> None:
    engine.sessions.go.set()
    async with (
        serving(js, subjects, engine, traces=recorder.server()),
        RebaserClient.connect(nats_url, prefix=subjects.prefix) as client,
    ):
        with recorder.tracer.start_as_current_span("caller"):
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE], wait="derived")
        await until(recorder, "dvu")
    assert recorder.parents() == {
        ("caller", None), (ENQUEUE, "caller"), (STORE, ENQUEUE), (PROCESS, STORE), (APPEND, PROCESS), ("dvu", APPEND),
        ("dvu plan", "dvu"), ("dvu spark", "dvu"), ("dvu absorb", "dvu"), ("spark job", "dvu"), (APPEND, "dvu"),
    }  # fmt: skip
    assert len({span.context.trace_id for span in recorder.spans()}) == 1
    assert [short(span) for span in recorder.spans()][:3] == [STORE, APPEND, PROCESS]
    asked, decided, commits = recorder.one(ENQUEUE), recorder.one(PROCESS), recorder.spans(APPEND)
    assert (asked.attributes["rebaser.outcome"], decided.attributes["rebaser.outcome"]) == ("success", "success")
    assert [one.attributes["rebaser.commit.sequence"] for one in (asked, decided, *commits)][:3] == [1, 1, 1]
    assert decided.attributes["messaging.destination.name"] == subjects.requests(KEY)
    assert 0 <= decided.attributes["rebaser.queue.seconds"] < 3600
    assert f"{decided.context.trace_id:032x}" in exemplars()
    assert decided.start_time <= commits[0].start_time <= commits[0].end_time <= decided.end_time
    update, job = recorder.one("dvu"), recorder.one("spark job")
    assert (update.attributes["rebaser.covers"], update.attributes["rebaser.changed"]) == (2, 1)
    assert (update.attributes["rebaser.plan"], update.attributes["rebaser.waves"]) == ("packets", 1)
    assert (job.attributes["rebaser.spark.result"], job.attributes["rebaser.spark.callers"]) == ("done", 1)
    assert job.attributes["server.address"] == "localhost"
    assert recorder.one(STORE).attributes["rebaser.updates"] == 2
    assert [event.name for event in asked.events] == ["applied", "derived"]
    for stage in ("plan", "spark", "absorb"):
        about = recorder.one(f"dvu {stage}").attributes
        assert (about["rebaser.wave"], about["rebaser.packets"]) == (1, 1)
        assert about["rebaser.bytes"] > 0
    found = read_trace(await newest_commit(js, subjects))
    assert found is not None
    assert found.span_id == commits[1].context.span_id


async def test_updates_that_share_a_job_are_linked_with_it(
    js: JetStream, subjects: Subjects, recorder: Recorder, engine: Computing
) -> None:
    keys = [ChangeSetKey.of("ws", f"cs{number}") for number in range(3)]
    async with serving(js, subjects, engine, traces=recorder.server()):
        for number, key in enumerate(keys):
            updates = (Set("a", 1), DOUBLE)
            headers, payload = encode(EnqueueUpdatesRequest(RequestId("r"), "ws", key.change_set, updates))
            await js.publish(subjects.requests(key), payload, headers | headers_of(number, flags=min(number, 1)))
            await js.publish(subjects.task(key), b"")
        with anyio.fail_after(60):
            while engine.load[0] != (3, 0):  # noqa: ASYNC110 - calls are queued without a word
                await anyio.sleep(0.01)
        engine.sessions.go.set()
        await until(recorder, "dvu", 2)
    job, updates_ = recorder.one("spark job"), {span.context.span_id: span for span in recorder.spans("dvu")}
    assert job.attributes["rebaser.spark.callers"] == 3
    parent = updates_.pop(job.parent.span_id)
    [other] = updates_.values()
    assert [link.context.span_id for link in job.links] == [other.context.span_id]
    assert [link.context.span_id for link in other.links] == [job.context.span_id]
    assert not parent.links


async def test_an_update_is_linked_to_all_commits_that_it_covers(
    js: JetStream, subjects: Subjects, recorder: Recorder, engine: Computing
) -> None:
    """The newest commit is the parent of the update. If an update fails, the next one is linked to its commits."""
    async with serving(js, subjects, engine, traces=recorder.server()):
        for number in range(4):
            updates = (Set("a", number), DOUBLE)
            headers, payload = encode(EnqueueUpdatesRequest(RequestId(f"r{number}"), "ws", "cs", updates))
            await js.publish(subjects.requests(KEY), payload, headers | headers_of(number))
            if number == 0:
                await js.publish(subjects.task(KEY), b"")
            await until(recorder, PROCESS, number + 1)
        engine.sessions.go.set()
        await until(recorder, "dvu", 2)
    first, second = recorder.spans("dvu")
    commits = recorder.spans(APPEND)
    assert first.parent.span_id == commits[0].context.span_id
    ids = [
        span.context.span_id
        for span in commits
        if span.parent.span_id not in {first.context.span_id, second.context.span_id}
    ]
    assert second.parent.span_id == ids[3]
    assert [link.context.span_id for link in second.links] == [ids[2], ids[1]]


async def test_an_update_has_no_part_in_commits_that_owe_none(
    js: JetStream, subjects: Subjects, recorder: Recorder, engine: Computing
) -> None:
    engine.sessions.go.set()
    async with serving(js, subjects, engine, traces=recorder.server()):
        for number, updates in enumerate([(Set("b", 1),), (Set("a", 1), DOUBLE), (Set("b", 2),), (Set("a", 2),)]):
            headers, payload = encode(EnqueueUpdatesRequest(RequestId(f"r{number}"), "ws", "cs", updates))
            await js.publish(subjects.requests(KEY), payload, headers | headers_of(number))
            if number == 0:
                await js.publish(subjects.task(KEY), b"")
            await until(recorder, PROCESS, number + 1)
            await until(recorder, "dvu", (number + 1) // 2)
    updates_ = recorder.spans("dvu")
    assert [span.context.trace_id for span in updates_] == [sender(1).trace_id, sender(3).trace_id]
    assert [span.links for span in updates_] == [(), ()]


async def test_an_append_that_fails_leaves_no_span(
    js: JetStream, subjects: Subjects, recorder: Recorder, engine: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, failures = CommitLog._publish, [FencedError("as if another owner had appended")]

    async def publish(commits: CommitLog, encoded: EncodedCommit, **more: Any) -> int:
        if encoded.commit.kind is Kind.DVU and failures:
            raise failures.pop()
        return await append(commits, encoded, **more)

    monkeypatch.setattr(CommitLog, "_publish", publish)
    engine.sessions.go.set()
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("r"), "ws", "cs", (Set("a", 1), DOUBLE)))
    async with serving(js, subjects, engine, traces=recorder.server()):
        await js.publish(subjects.requests(KEY), payload, headers | headers_of(1))
        await js.publish(subjects.task(KEY), b"")
        await until(recorder, "dvu")
    update = recorder.one("dvu")
    assert (update.attributes["rebaser.result"], update.status.is_ok) == ("fenced", False)
    assert (APPEND, "dvu") not in recorder.parents()


async def test_a_slow_update_gets_a_trace_afterwards(
    js: JetStream, subjects: Subjects, client: RebaserClient, recorder: Recorder, engine: Computing
) -> None:
    engine.sessions.go.set()
    async with serving(js, subjects, engine, traces=recorder.server(updates_slower_than=0.0)):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE], wait="derived")
        await until(recorder, "dvu")
    assert recorder.parents() == {
        ("dvu", None), ("dvu plan", "dvu"), ("dvu spark", "dvu"), ("dvu absorb", "dvu"), (APPEND, "dvu"),
    }  # fmt: skip
    assert read_trace(await newest_commit(js, subjects)) is None


async def test_log_events_of_an_update_name_its_trace(
    js: JetStream, subjects: Subjects, recorder: Recorder, engine: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    evaluate = engine.evaluate

    async def looks(*given: Any, **more: Any) -> Any:
        seen.append(get_contextvars())
        return await evaluate(*given, **more)

    monkeypatch.setattr(engine, "evaluate", looks)
    engine.sessions.go.set()
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("r"), "ws", "cs", (Set("a", 1), DOUBLE)))
    async with serving(js, subjects, engine, traces=recorder.server()):
        await js.publish(subjects.requests(KEY), payload, headers | headers_of(1))
        await js.publish(subjects.task(KEY), b"")
        await until(recorder, "dvu")
    update = recorder.one("dvu").context
    assert seen == [{"trace_id": f"{update.trace_id:032x}", "span_id": f"{update.span_id:016x}"}]
    assert get_contextvars() == {}

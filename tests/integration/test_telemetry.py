"""The metrics of a server in this process change exactly when what they count happens."""

import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import pytest
import structlog

from rebaser.pings import answer_pings, describe
from rebaser.runtime.measured import MeasuredBlobs, MeasuredJetStream
from rebaser.telemetry.log_events import EventCounter
from rebaser_client import RebaserClient, Set, Update
from rebaser_client.admin.servers import ping
from rebaser_client.blobs import BlobMissing, open_blobs
from rebaser_client.jetstream import ApiError, JetStream, NoAnswerError, OrderedConsumer
from rebaser_client.jetstream.api_calls import call_slot
from rebaser_client.jetstream.errors import TRY_AGAIN
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.blobs.address import address_of
from rebaser_core.encoding.envelope import REPLY_INBOX
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.figures import figures, moved
from tests.support.owners import DOUBLE, Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
async def client(topology: object, nats_url: str, subjects: Subjects) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        yield client


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not holds():  # noqa: ASYNC110 - a scrape polls
            await anyio.sleep(0.01)


async def test_an_update_shows_while_it_is_due_and_when_it_has_ended(
    js: JetStream, subjects: Subjects, nats_url: str
) -> None:
    engine = Engine()
    async with (
        serving(js, subjects, engine) as server,
        RebaserClient.connect(nats_url, prefix=subjects.prefix) as client,
    ):
        before = figures(server)
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        with anyio.fail_after(60):
            await engine.asked.wait()
        during = figures(server)
        assert during["change_sets_dvu", "running"] == during["change_sets_owned", "active"] == 1
        assert during["debt_age_seconds_max",] > 0
        assert during["dvu_seconds", "done"] == before["dvu_seconds", "done"]
        engine.go.set()
        await until(lambda: figures(server)["dvu_seconds", "done"] > before["dvu_seconds", "done"])
        after = figures(server)
        assert after["freshness_seconds",] == before["freshness_seconds",] + 1
        assert after["debt_age_seconds_max",] == 0
        assert after["values_held",] == 2
        assert after["log_tail_bytes_max",] > 0
        told = moved(before)
        assert {told["dvu_stage_seconds", stage] for stage in ("plan", "spark", "absorb")} == {1}
        assert (told["dvu_values_total", "reached"], told["dvu_values_total", "changed"]) == (1, 1)
        assert ("dvu_values_total", "errors") not in told
        assert told["commit_bytes_total", "inline"] > 100
        assert told["load_seconds",] == told["append_seconds", "dvu"] == 1
        assert not [key for key in told if key[0] == "ownership_ended_total"]
    assert moved(before)["ownership_ended_total", "shutdown"] == 1


async def test_streams_show_as_last_checked(js: JetStream, subjects: Subjects) -> None:
    engine = Engine()
    async with serving(js, subjects, engine, sweep_interval=0.5) as server:
        await until(lambda: figures(server)["last_sweep_timestamp_seconds",] > 0)
        await js.publish(f"{subjects.root}.dlq.ws.cs", b"x")
        server._context.stream_watch.check_soon()
        await until(lambda: figures(server)["stream_messages", "dlq"] == 1)
        found = figures(server)
        assert re.fullmatch(r"2\.\d+\.\d+", server.snapshot().nats_version)
        async with call_slot(), call_slot():
            assert figures(server)["nats_api_in_flight",] >= 2
        await until(lambda: figures(server)["nats_api_in_flight",] == 0)
    assert found["stream_bytes", "dlq"] > 0
    assert 0 < abs(found["clock_ahead_seconds",]) < 300  # the same clock, which NATS has read earlier
    assert found["sweeper",] == 1
    assert found["oldest_request_age_seconds",] == found["change_sets_waiting",] == found["change_sets_in_debt",] == 0


async def test_the_fleet_knows_the_age_of_an_update_that_no_server_runs(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    async with serving(js, subjects, Engine(), sweep_interval=600) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        assert figures(server)["oldest_debt_age_seconds",] == 0, "no sweep yet"
        await server._sweeper.sweep()
        first = figures(server)["oldest_debt_age_seconds",]
        await server._sweeper.sweep()
        assert 0 < first < figures(server)["oldest_debt_age_seconds",] < 300
        assert figures(server)["change_sets_in_debt",] == 1


@pytest.mark.parametrize("wrong", [-3600, 3600])
async def test_a_wrong_clock_makes_no_update_and_no_sweep_look_old(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    """Otherwise, two alerts would hide the one that names the clock."""
    real = time.time
    async with serving(js, subjects, Engine(), sweep_interval=600) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        monkeypatch.setattr(time, "time", lambda: real() + wrong)
        await server._sweeper.sweep()
        found = figures(server)
    assert 0 < found["oldest_debt_age_seconds",] < 300
    assert abs(found["last_sweep_timestamp_seconds",] - real()) < 300


async def test_owners_and_checkpoints_show(js: JetStream, subjects: Subjects, client: RebaserClient) -> None:
    before = figures()
    large: list[Update] = [Set(f"v/{number}", "x" * 1000) for number in range(1500)]  # more than a message can hold
    quick = {"checkpoint_bytes": 1024, "quiescent_period": 0.2, "sweep_interval": 600}
    async with serving(js, subjects, Engine(), **quick) as server:
        await client.enqueue_updates_with_reply("ws", "cs", large)
        await until(lambda: ("checkpoint_seconds",) in moved(before))
        await until(lambda: ("ownership_ended_total", "quiet") in moved(before))
        assert figures(server)["values_held",] == 0
    told = moved(before)
    assert told["checkpoint_bytes_total",] > 1000
    assert told["append_seconds", "checkpoint"] >= 1
    assert told["commit_bytes_total", "blob"] > 1_000_000
    assert ("tasks_redelivered_total",) not in told


async def test_a_task_that_was_given_back_shows(js: JetStream, subjects: Subjects, client: RebaserClient) -> None:
    before = figures()
    async with serving(js, subjects, Engine(), sweep_interval=600):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
    assert ("tasks_redelivered_total",) not in moved(before)
    async with serving(js, subjects, Engine(), sweep_interval=600):
        await until(lambda: moved(before).get(("tasks_redelivered_total",)) == 1)


async def test_a_task_without_a_slot_shows(js: JetStream, subjects: Subjects, client: RebaserClient) -> None:
    engine = Engine()
    async with serving(js, subjects, engine, concurrency=1, sweep_interval=600) as server:
        await client.enqueue_updates_with_reply("ws", "first", [Set("a", 1), DOUBLE])
        with anyio.fail_after(60):
            await engine.asked.wait()
        key = ChangeSetKey("ws", "second")
        server._held[key] = server._owners[ChangeSetKey("ws", "first")].lease.task
        assert (figures(server)["tasks_held",], describe(server)["held"]) == (1, 1)
        server._successor_tasks[key] = server._held[key]
        assert (figures(server)["tasks_held",], describe(server)["held"]) == (1, 2)
        del server._successor_tasks[key]
        del server._held[key]
        server._context.deleter.add([10**9], "created")
        assert figures(server)["deletes_queued",] >= 1


async def test_a_task_that_was_returned_with_a_delay_does_not_delay_status(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS counts it as delivered, but it is no sign of a server whose answer is late."""
    monkeypatch.setattr("rebaser_client.admin.status.PATIENCE", 3600.0)
    for name in ("BLOCKED_RETRY", "BLOCKED_RETRY_MAX"):
        monkeypatch.setattr(f"rebaser.change_set.attempts.held_requests.{name}", 3600.0)
    key = ChangeSetKey("ws", "cs")
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("r"), "ws", "cs", None, address_of(b"not stored")))
    async with serving(js, subjects, Engine(), retry_for=7200, sweep_interval=600) as server:
        await js.publish(subjects.requests(key), payload, headers)
        await publish_task(js, subjects, key)
        await until(lambda: describe(server)["held"] == 1)
        async with anyio.create_task_group() as group:
            group.start_soon(answer_pings, server._context, lambda: describe(server))
            with anyio.fail_after(120):
                await ping(js.connection, subjects, patience=60.0, enough=bool, again=0.1)  # it answers from now on
                [seen] = (await client.status()).servers
            group.cancel_scope.cancel()
    assert (seen.owned, seen.held) == (0, 1)


async def test_a_pull_is_no_request(js: JetStream, subjects: Subjects, client: RebaserClient) -> None:
    async with serving(js, subjects, Engine(), sweep_interval=600):
        await client.enqueue_updates_with_reply("ws", "main", [Set("a", 1)])
        await client.create_branch("ws", "fix", "main")
        before = figures()
        await client.enqueue_updates_with_reply("ws", "main", [Set("a", 2)])
        # The owner of the branch checks the target after this request, so it sees the edit however slow the machine is.
        await client.enqueue_updates_with_reply("ws", "fix", [Set("b", 1)])
        await until(lambda: ("append_seconds", "pull") in moved(before))
        told = moved(before)
        assert (told["append_seconds", "pull"], told["append_seconds", "requests"]) == (1, 2)
        await client.enqueue_updates_with_reply("ws", "main", [Set("a", 3)])
        await client.rebase("ws", "fix")
        told = moved(before)
    assert told["append_seconds", "requests"] >= 2, "a rebase that a request asked for is a request"


@pytest.fixture
def counted(events: Events) -> Iterator[None]:
    """Count log events, as a server process does."""
    processors = structlog.get_config()["processors"]
    counter = EventCounter("debug")
    processors.insert(0, counter)
    yield
    processors.remove(counter)


Failure = Callable[[], Exception]


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(
    ("why", "failure"),
    [("unanswered", lambda: NoAnswerError("no answer")), ("refused", lambda: ApiError(503, TRY_AGAIN, "try again"))],
)
async def test_an_append_that_is_repeated_shows(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
    failure: Failure,
) -> None:
    publish, failed = JetStream.publish, list[str]()

    async def lost(self: JetStream, subject: str, *rest: Any, **more: Any) -> Any:
        if subject == subjects.commits(ChangeSetKey("ws", "cs")) and not failed:
            failed.append(subject)
            if why == "unanswered":
                await publish(self, subject, *rest, **more)
            raise failure()
        return await publish(self, subject, *rest, **more)

    before = figures()
    monkeypatch.setattr(JetStream, "publish", lost)
    async with serving(js, subjects, Engine(), sweep_interval=600):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
    assert moved(before)["append_retries_total", why] == 1


@pytest.mark.usefixtures("counted")
async def test_a_reply_to_a_foreign_inbox_and_a_change_set_without_a_task_show(
    js: JetStream, subjects: Subjects
) -> None:
    before = figures()
    request = EnqueueUpdatesRequest(RequestId("r"), "ws", "cs", (Set("a", 1),))
    headers, payload = encode(request)
    inbox = subjects.commits(ChangeSetKey("ws", "other"))
    await js.publish(subjects.requests(ChangeSetKey("ws", "cs")), payload, headers | {REPLY_INBOX: inbox})
    async with serving(js, subjects, Engine(), sweep_interval=0.5):
        await until(lambda: ("replies_lost_total", "inbox") in moved(before))
        await until(lambda: ("sweep_seconds",) in moved(before))
    told = moved(before)
    assert told["replies_lost_total", "inbox"] == told["stranded_total",] == 1


@pytest.mark.usefixtures("counted")
async def test_a_reader_that_begins_anew_shows(js: JetStream, subjects: Subjects) -> None:
    before, key = figures(), ChangeSetKey("ws", "cs")
    async with OrderedConsumer(
        js, subjects.requests_stream, subjects.requests(key), start="all", max_count=1
    ) as consumer:
        for _ in range(5):
            await js.publish(subjects.requests(key), b"x")
        await until(lambda: ("consumer_resets_total", "full") in moved(before))
        for _ in range(5):
            await anext(consumer)


async def test_calls_of_the_api_show(js: JetStream, subjects: Subjects) -> None:
    before, measured = figures(), MeasuredJetStream(js.connection)
    await measured.stream_info(subjects.commits_stream)
    with pytest.raises(ApiError):
        await measured.stream_info("NONE")
    assert moved(before) == {("nats_api_seconds", "done"): 1, ("nats_api_seconds", "failed"): 1}


async def test_operations_on_blobs_show(js: JetStream, subjects: Subjects) -> None:
    before, blobs = figures(), MeasuredBlobs(open_blobs(None, js, subjects.blobs_bucket))
    address = await blobs.put(b"x" * 100)
    assert await blobs.has(address)
    assert await blobs.get(address) == b"x" * 100
    with pytest.raises(BlobMissing):  # the store works
        await blobs.get(address_of(b"missing"))
    await js.delete_stream(f"OBJ_{subjects.blobs_bucket}")
    with pytest.raises(RebaserError):
        await blobs.put(b"y" * 100)
    assert moved(before) == {
        ("blob_seconds", "put"): 2, ("blob_seconds", "has"): 1, ("blob_seconds", "get"): 2,
        ("blob_bytes_total", "put"): 100, ("blob_bytes_total", "get"): 100, ("blob_errors_total", "put"): 1,
    }  # fmt: skip

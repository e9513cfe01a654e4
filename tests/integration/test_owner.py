"""A server's owners with a DVU that takes too long, or has to finish: requests go on, and nothing is thrown away."""

import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

import rebaser.change_set.log.checkpointer
import rebaser.dvu.update
from rebaser.change_set import processor
from rebaser.change_set.lease import Lease, Task
from rebaser.change_set.lifecycle import Reason
from rebaser.change_set.log.commit_log import CommitLog, open_log
from rebaser.change_set.owner import Owner
from rebaser.change_set.poison import PoisonDetector
from rebaser.change_set.readers.request_reader import RequestReader
from rebaser.runtime.context import Context
from rebaser.runtime.dead_letters import DeadLetterPublisher
from rebaser.server import Server
from rebaser.settings import Settings
from rebaser.sweeper.sweeper import Sweeper
from rebaser.sweeper.unroutable import UNROUTABLE_KEY
from rebaser_client import RebaserClient, Set, cooperative
from rebaser_client.errors import NotConnectedError
from rebaser_client.jetstream import JetStream, Message, PullConsumer, PullMessage
from rebaser_client.log.reader import LoadedState, StateLoader
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core import thresholds
from rebaser_core.blob_address import address_of
from rebaser_core.commit import Applied, Attempt, Kind
from rebaser_core.encoding.envelope import REPLY_INBOX
from rebaser_core.errors import DvuError, TransientError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, Success, encode, encode_updates_blob
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds
from tests.conftest import Events
from tests.support.contexts import context_of
from tests.support.owners import DOUBLE, Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("ws", "cs")


@pytest.fixture
async def client(nats_url: str, subjects: Subjects) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as connected:
        yield connected


async def test_a_dvu_that_takes_too_long_is_tried_again_and_requests_go_on(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    engine = Engine()
    async with serving(js, subjects, engine, dvu_timeout=0.05) as server, anyio.create_task_group() as group:
        group.start_soon(events.wait_for, lambda entry: entry["event"] == "dvu_failed" and entry["attempt"] == 2)
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        await client.enqueue_updates_with_reply("ws", "cs", [Set("b", 1)])
    assert server.describe()["trouble"] == "the update of ws.cs took longer than 0.05 s"
    async with serving(js, subjects, engine):
        engine.go.set()
        response = await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 2)], wait="derived")
        assert response.id
    assert (await client.values("ws", "cs"))["double"].value == 4


async def test_an_update_that_has_ended_is_not_said_to_be_at_work(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    engine = Engine()
    async with serving(js, subjects, engine) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        await engine.asked.wait()
        assert server._owners[KEY].progress is not None
        engine.go.set()
        while server._owners[KEY].progress is not None:
            await checkpoint()


async def test_a_checkpoint_waits_for_the_update_that_is_due_and_not_for_one_that_fails(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    """Else the update would wait for the checkpoint, which is longer work than most updates."""
    engine = Engine()
    heavy = Set("heavy", "x" * 2000)

    async def written(times: int) -> int:
        """At which log sequence."""
        with anyio.fail_after(30):
            while len(events.named("checkpoint_written")) < times:
                await checkpoint()
        return int(events.named("checkpoint_written")[-1]["seq"])

    async with serving(js, subjects, engine, checkpoint_bytes=1024):
        engine.go.set()
        reply = await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE, heavy])
        assert isinstance(reply.status, Success)
        assert await written(1) == reply.status.commit + 1
        assert not (await client.state("ws", "cs")).owes
        engine.fails = True
        reply = await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 2), heavy])
        assert isinstance(reply.status, Success)
        assert await written(2) == reply.status.commit
        assert (await client.state("ws", "cs")).owes


async def test_a_full_checkpoint_that_could_not_be_written_is_tried_again(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it replaces is gone: until it stands nobody else can read the change set."""
    tries: list[bool] = []
    written = anyio.Event()
    write = rebaser.change_set.log.checkpointer.write

    async def fail_at_first(context: Context, commits: CommitLog, *, full: bool = False) -> None:
        tries.append(full)
        if len(tries) == 1:
            raise TransientError("the blob store is away")
        await write(context, commits, full=full)
        written.set()

    async with serving(js, subjects, Engine()) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        monkeypatch.setattr(rebaser.change_set.log.checkpointer, "write", fail_at_first)
        server.streams_recreated(frozenset([f"OBJ_{subjects.blobs_bucket}"]))
        with anyio.fail_after(30):
            await written.wait()
    assert tries == [True, True]


async def test_the_commit_of_a_large_request_names_the_blob_that_brought_it(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("rebaser.change_set.log.commit_parts.encode_delta")  # nothing is encoded again
    many = [Set(f"v{number}", "x" * 100) for number in range(6_000)]
    async with serving(js, subjects, Engine()):
        reply = await client.enqueue_updates_with_reply("ws", "cs", many)
        assert isinstance(reply.status, Success)
    async for commit in client.watch("ws", "cs", after=0):
        assert commit.delta_blob is not None
        assert commit.delta_blob.address == address_of(encode_updates_blob(many))
        assert commit.delta == tuple(many)
        break


async def test_planning_that_hangs_is_left_to_itself(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(thresholds, "now", Thresholds(plan_on_loop_max_elements=0))  # what is little is planned at once
    monkeypatch.setattr(rebaser.dvu.update, "plan", lambda *_: over.wait(60))
    try:
        async with serving(js, subjects, Engine(), dvu_timeout=0.05), anyio.create_task_group() as group:
            group.start_soon(events.wait_for, lambda entry: entry["event"] == "dvu_failed")
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
            await client.enqueue_updates_with_reply("ws", "cs", [Set("b", 1)])
    finally:
        over.set()


async def test_a_request_of_a_newer_version_lets_the_running_dvu_finish(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    """Else each try of a request that nobody can read yet would throw away what the DVU did so far."""
    engine = Engine()
    async with serving(js, subjects, engine, retry_for=3600):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        await engine.asked.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(events.wait_for, lambda entry: entry["event"] == "request_held")
            headers, payload = encode(EnqueueUpdatesRequest(RequestId("new"), "ws", "cs", (Set("a", 2),)))
            await js.publish(subjects.requests(KEY), payload, headers | {"X-MESSAGE-VERSION": "99"})
            await publish_task(js, subjects, KEY)
        engine.go.set()
        async for commit in client.watch("ws", "cs", after=0):
            if commit.kind is Kind.DVU:
                break
    assert (await client.values("ws", "cs"))["double"].value == 2
    assert len(events.named("dvu_done")) == 1
    assert not events.named("dvu_failed")


async def test_a_request_whose_blob_comes_late_is_applied_then_by_the_server_that_missed_it(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    """Only one of a newer version is left to other servers."""
    data = encode_updates_blob([Set("a", 1)])
    request = EnqueueUpdatesRequest(RequestId("late"), "ws", "cs", None, address_of(data))
    headers, payload = encode(request)
    async with serving(js, subjects, Engine(), retry_for=3600) as server:
        async with anyio.create_task_group() as group:
            group.start_soon(events.wait_for, lambda entry: entry["event"] == "request_held")
            await js.publish(subjects.requests(KEY), payload, headers)
            await publish_task(js, subjects, KEY)
        await server._context.blobs.put(data)
        async for commit in client.watch("ws", "cs", after=0):
            if commit.requests:
                break
    assert (await client.values("ws", "cs"))["a"].value == 1


async def test_a_dead_request_in_front_of_one_that_is_held_is_copied_and_answered(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    """It does not wait for the other, which may be held for hours."""
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("new"), "ws", "cs", (Set("a", 2),)))
    inbox = js.connection.new_inbox()
    await js.publish(subjects.requests(KEY), b"no request", headers | {REPLY_INBOX: inbox})
    await js.publish(subjects.requests(KEY), payload, headers | {"X-MESSAGE-VERSION": "99"})
    async with js.connection.subscribe(inbox) as replies, serving(js, subjects, Engine(), retry_for=3600):
        await publish_task(js, subjects, KEY)
        await anext(replies)
    letter = await js.last(subjects.dlq_stream, subjects.dlq(KEY))
    assert letter is not None
    assert letter.data == b"no request"


async def test_a_task_that_names_no_change_set_goes_to_the_dead_letters(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that fails, the server goes on, and the task comes again."""
    real, failing = DeadLetterPublisher.publish, [True]

    async def publish(self: DeadLetterPublisher, *args: object) -> None:
        if failing:
            failing.pop()
            raise NotConnectedError("there is no connection to NATS")
        await real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(DeadLetterPublisher, "publish", publish)
    await js.publish(f"{subjects.root}.tasks.ws.$.process", b"", {"X-Mine": "kept"})
    async with serving(js, subjects, Engine(), concurrency=1, quiescent_period=0.1):
        await events.wait_for(lambda entry: entry["event"] == "task_refusal_failed")
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        await js.publish(f"{subjects.root}.tasks.$.cs.process", b"")
        while await js.last(subjects.tasks_stream, f"{subjects.root}.tasks.$.cs.process"):
            await checkpoint()
    letter = await js.last(subjects.dlq_stream, subjects.dlq(UNROUTABLE_KEY))
    assert letter is not None
    assert letter.headers["X-Original-Subject"] == f"{subjects.root}.tasks.$.cs.process"
    assert letter.headers["X-Reason-Code"] == "invalid_id"


async def test_others_have_their_turns_while_a_batch_is_read(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a thousand owners would hold up the loop for as long as all their batches take together."""
    monkeypatch.setattr(cooperative, "TIME_SLICE", 0.0)
    monkeypatch.setattr(processor, "LOOK_AFTER", 0.0)
    real, ticks, seen = RequestReader.read, 0, list[int]()

    async def read(self: RequestReader, message: Message) -> object:
        seen.append(ticks)
        return await real(self, message)

    async def tick() -> None:
        nonlocal ticks
        while True:
            await checkpoint()
            ticks += 1

    monkeypatch.setattr(RequestReader, "read", read)
    for number in range(5):
        await client.enqueue_updates("ws", "cs", [Set("a", number)])
    async with serving(js, subjects, Engine()), anyio.create_task_group() as group:
        group.start_soon(tick)
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 5)])
        group.cancel_scope.cancel()
    assert len(seen) == len(set(seen)) == 6


async def test_what_did_not_fit_into_a_commit_is_decided_next(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else has to come for it."""
    monkeypatch.setattr(PoisonDetector, "batchable_prefix", lambda *_: 1)
    for id_ in ("a", "b", "c"):
        headers, payload = encode(EnqueueUpdatesRequest(RequestId(id_), "ws", "cs", (Set(id_, 1),)))
        await js.publish(subjects.requests(KEY), payload, headers)
    await publish_task(js, subjects, KEY)
    async with serving(js, subjects, Engine()):
        decided: list[str] = []
        async for commit in client.watch("ws", "cs", after=0):
            decided += [one.request_id for one in commit.requests]
            if len(decided) == 3:
                break
    assert decided == ["a", "b", "c"]


@pytest.fixture
def no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody mends what a last look missed."""

    async def sweep(_: Sweeper) -> int:
        return 0

    monkeypatch.setattr(Sweeper, "sweep", sweep)


@pytest.mark.usefixtures("no_sweep")
async def test_the_last_look_finds_the_very_next_request(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came while the task was being given up, and its own task was refused."""
    release, left = Lease.release, [True]

    async def release_and_store(self: Lease) -> None:
        await release(self)
        if left and left.pop():
            headers, payload = encode(EnqueueUpdatesRequest(RequestId("late"), "ws", "cs", (Set("a", 2),)))
            assert (await js.publish(subjects.requests(KEY), payload, headers)).sequence == 2

    monkeypatch.setattr(Lease, "release", release_and_store)
    async with serving(js, subjects, Engine(), quiescent_period=0.2):
        await client.enqueue_updates("ws", "cs", [Set("a", 1)])
        async for commit in client.watch("ws", "cs", after=0):
            if [one.request_id for one in commit.requests] == ["late"]:
                break
    assert (await client.values("ws", "cs"))["a"].value == 2


@pytest.mark.usefixtures("no_sweep")
async def test_a_last_look_that_fails_leaves_the_change_set_to_another_owner(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, next_, left, looks = Lease.release, JetStream.next, [True], [True]

    async def release_and_store(self: Lease) -> None:
        await release(self)
        if left and left.pop():
            headers, payload = encode(EnqueueUpdatesRequest(RequestId("late"), "ws", "cs", (Set("a", 2),)))
            await js.publish(subjects.requests(KEY), payload, headers)

    async def cut_off(self: JetStream, stream: str, *rest: Any) -> object:
        if stream == subjects.requests_stream and not left and looks and looks.pop():
            raise TransientError("no answer")
        return await next_(self, stream, *rest)

    monkeypatch.setattr(Lease, "release", release_and_store)
    monkeypatch.setattr(JetStream, "next", cut_off)
    with anyio.fail_after(30):
        async with serving(js, subjects, Engine(), quiescent_period=0.2):
            await client.enqueue_updates("ws", "cs", [Set("a", 1)])
            async for commit in client.watch("ws", "cs", after=0):
                if [one.request_id for one in commit.requests] == ["late"]:
                    break
    assert not looks


async def test_who_is_given_a_task_that_had_an_owner_knows_it(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What killed that owner is found by this, and by nothing else."""
    told: list[bool] = []

    def detector(*given: Any, redelivered: bool, **more: Any) -> PoisonDetector:
        told.append(redelivered)
        return PoisonDetector(*given, redelivered=redelivered, **more)

    monkeypatch.setattr("rebaser.change_set.owner.PoisonDetector", detector)
    with anyio.fail_after(30):
        async with serving(js, subjects, Engine()) as server:
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
            server._owners[KEY].stop(Reason.TRANSIENT)
            while len(told) < 2:
                await checkpoint()
    assert told == [False, True]


class FailsAtFirst(Engine):
    async def evaluate(self, packets: Sequence[bytes], **_: object) -> list[list[bytes]]:
        if not self.go.is_set():
            raise DvuError("not now")
        return await super().evaluate(packets)


@pytest.mark.usefixtures("no_sweep")
async def test_the_last_look_finds_debt(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    """Of an owner that yields while its update waits to be tried again."""
    engine = FailsAtFirst()
    async with serving(js, subjects, engine) as server:
        async with anyio.create_task_group() as group:
            group.start_soon(events.wait_for, lambda entry: entry["event"] == "dvu_failed")
            response = await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        engine.go.set()
        server._owners[KEY].stop(Reason.YIELD)
        assert isinstance(response.status, Success)
        await client.wait_covered("ws", "cs", response.status.commit)
    assert (await client.values("ws", "cs"))["double"].value == 2


async def test_an_owner_whose_update_is_fenced_ends(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    """Else it would compute the same update again and again, and nobody would bring the values up to date."""
    engine = Engine()
    async with serving(js, subjects, engine) as server:
        response = await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        assert isinstance(response.status, Success)
        await engine.asked.wait()
        commits = await open_log(server._context, KEY)
        async with commits.append_lock():
            await commits.append(commits.draft(Kind.REBASE, delta=(Set("a", 2),), debt=2))
        engine.go.set()
        await client.wait_covered("ws", "cs", response.status.commit + 1)
    assert (await client.values("ws", "cs"))["double"].value == 4
    assert len(events.named("dvu_fenced")) == 1


async def test_an_owner_that_a_request_shows_to_be_fenced_gives_nothing_back(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS would take that for the word of the owner that fenced it, and deliver the task a second time."""
    given_back: list[float] = []

    async def nak(_: Task, delay: float) -> None:
        given_back.append(delay)

    monkeypatch.setattr(Task, "nak", nak)
    async with serving(js, subjects, Engine(), ack_wait=1.5) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        owner = server._owners[KEY]
        commits = await open_log(server._context, KEY)
        async with commits.append_lock():
            await commits.append(commits.draft(Kind.REBASE, delta=(Set("a", 2),)))
        await client.enqueue_updates("ws", "cs", [Set("a", 3)])
        while server._owners.get(KEY) is owner:
            await checkpoint()
        assert not given_back
    assert [entry["fenced"] for entry in events.named("decide_failed")] == [True]


async def test_an_owner_that_wrote_a_checkpoint_lets_go_once_it_is_quiet(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    async with serving(js, subjects, Engine(), quiescent_period=0.1, checkpoint_bytes=1024) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("heavy", "x" * 2000)])
        while server._owners:
            await checkpoint()
        assert server._slots_taken == 0
    assert len(events.named("checkpoint_written")) == 1


async def test_the_next_owner_knows_what_is_decided(js: JetStream, subjects: Subjects, client: RebaserClient) -> None:
    """By its sequence: an outcome may be forgotten before its request is deleted."""
    for number in (1, 2):
        async with serving(js, subjects, Engine()) as server:
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", number)])
            owner = server._owners[KEY]
            assert owner._processor is not None
            assert owner._processor.applied.sequence == number
    async with serving(js, subjects, Engine()) as server:
        await publish_task(js, subjects, KEY)
        while KEY not in server._owners or server._owners[KEY]._processor is None:
            await checkpoint()
        assert server._owners[KEY]._processor.applied.sequence == 2  # type: ignore[union-attr]


async def test_what_another_owner_decides_while_the_next_one_loads_is_decided_for_it_too(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log must not seem to be ahead of the queue, as if the queue had been restored from a backup."""
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    load = StateLoader.load

    async def load_late(self: StateLoader, key: ChangeSetKey, **more: Any) -> LoadedState:
        monkeypatch.undo()
        before = (await js.stream_info(subjects.requests_stream)).last_sequence
        await client.enqueue_updates("ws", "cs", [Set("a", 2)])
        context = context_of(js, subjects, Settings(server_id="other"))
        commits = await open_log(context, KEY)
        info = await js.stream_info(subjects.requests_stream)
        assert info.last_sequence == before + 1
        async with commits.append_lock():
            await commits.append(commits.draft(Kind.REBASE, applied=Applied(info.created, info.last_sequence)))
        return await load(self, key, **more)

    monkeypatch.setattr(StateLoader, "load", load_late)
    async with serving(js, subjects, Engine()):
        with anyio.fail_after(30):
            while await js.last(subjects.requests_stream, subjects.requests(KEY)):  # noqa: ASYNC110 - a server deletes it
                await anyio.sleep(0.01)
    assert await client.values("ws", "cs") == {}, "neither is decided again"


async def test_a_task_that_comes_while_its_owner_lets_go_has_an_owner_at_once(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would come again only when its ack wait is over."""
    releasing, let_go = anyio.Event(), anyio.Event()

    async def release(_: Lease) -> None:
        releasing.set()
        await let_go.wait()

    async with serving(js, subjects, Engine()) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        owner = server._owners[KEY]
        with monkeypatch.context() as patch:
            patch.setattr(Lease, "release", release)
            owner.stop(Reason.YIELD)
            await releasing.wait()
            reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.7.7.1.0"
            server._tasks_requested += 1
            server._accept(PullMessage(subjects.task(KEY), reply, b"", None, js))
            let_go.set()
            while server._owners.get(KEY) is owner:
                await checkpoint()
        successor = server._owners[KEY]
        assert successor.lease.task.sequence == 7
        assert not server._successor_tasks


async def test_an_owner_whose_consumer_fails_ends_and_the_next_one_reads_on(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    async with serving(js, subjects, Engine()) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        owner = server._owners[KEY]
        assert owner._consumer is not None
        owner._consumer._failure = TransientError("no consumer can be made")
        owner._check_queue()
        while server._owners.get(KEY) is owner:
            await checkpoint()
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 2)])
    assert len(events.named("consume_failed")) == 1


async def test_an_owner_that_has_lost_its_task_says_no_more_about_it(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    async with serving(js, subjects, Engine()) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        owner = server._owners[KEY]
        owner.lose_task(hung=True)
        assert owner.lease.lost


async def test_a_server_that_was_paused_for_longer_than_its_lease_lets_go(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    async with serving(js, subjects, Engine(), ack_wait=1.5) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        owner = server._owners[KEY]
        async with anyio.create_task_group() as group:
            group.start_soon(events.wait_for, lambda entry: entry["event"] == "lease_lost")
            server._kept_alive_at -= 2.0
        assert owner.lease.lost


@pytest.mark.parametrize("waiting", ["_successor_tasks", "_held"])
async def test_a_task_that_waits_for_an_owner_is_kept(js: JetStream, subjects: Subjects, waiting: str) -> None:
    """Else it is delivered to another server meanwhile, and both own the change set."""
    server = Server(context_of(js, subjects, Settings(server_id="test"), Engine()))
    reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.7.7.1.0"
    getattr(server, waiting)[KEY] = Task(KEY, PullMessage(subjects.task(KEY), reply, b"", None, js), js)
    started, server._kept_alive_at = server._kept_alive_at, server._kept_alive_at - 1.0
    with anyio.fail_after(30):
        async with js.connection.subscribe(reply) as said, anyio.create_task_group() as group:
            group.start_soon(server._keepalive_loop)
            assert (await anext(said)).data == b"+WPI"
            group.cancel_scope.cancel()
    assert server._kept_alive_at >= started, "otherwise the server would take itself for one that was paused"


@pytest.mark.parametrize("waiting", ["_successor_tasks", "_held"])
async def test_a_task_that_waits_for_an_owner_is_given_back_by_a_server_that_stops(
    js: JetStream, subjects: Subjects, waiting: str
) -> None:
    """Else nobody gets it before its ack wait is over."""
    server = Server(context_of(js, subjects, Settings(server_id="test"), Engine()))
    reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.7.7.1.0"
    getattr(server, waiting)[KEY] = Task(KEY, PullMessage(subjects.task(KEY), reply, b"", None, js), js)
    with anyio.fail_after(30):
        async with js.connection.subscribe(reply) as said:
            async with anyio.create_task_group() as owners:
                await server._shut_down(owners)
            await js.connection.publish(reply, b"nothing was said")
            assert (await anext(said)).data == b"-NAK"


@pytest.mark.parametrize("waiting", ["_successor_tasks", "_held"])
async def test_a_task_that_waits_is_let_go_with_the_leases_of_a_server_that_was_paused(
    js: JetStream, subjects: Subjects, events: Events, waiting: str
) -> None:
    server = Server(context_of(js, subjects, Settings(server_id="test"), Engine()))
    reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.7.7.1.0"
    getattr(server, waiting)[KEY] = Task(KEY, PullMessage(subjects.task(KEY), reply, b"", None, js), js)
    server._kept_alive_at -= 3600.0
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(server._keepalive_loop)
            await events.wait_for(lambda entry: entry["event"] == "lease_lost")
            group.cancel_scope.cancel()
    assert not getattr(server, waiting)


@pytest.mark.parametrize(("hung", "deaths"), [(True, 2), (False, 1)])
async def test_an_owner_that_stood_still_counts_as_a_death_of_what_it_tried_and_one_whose_task_is_gone_does_not(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    monkeypatch: pytest.MonkeyPatch,
    hung: bool,
    deaths: int,
) -> None:
    commits = await open_log(context_of(js, subjects, Settings(server_id="test")), KEY)
    async with commits.append_lock():
        await commits.append(commits.draft(Kind.ATTEMPT, attempt=Attempt(1, 0, 1, deaths=1)))
    trying = anyio.Event()

    async def read(*_: object) -> None:
        trying.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(RequestReader, "read", read)
    async with serving(js, subjects, Engine()) as server:
        await client.enqueue_updates("ws", "cs", [Set("a", 1)])
        await trying.wait()
        server._owners[KEY].lose_task(hung=hung)
        assert server._owners[KEY].lease.lost
        while KEY in server._owners:
            await checkpoint()
    assert (await client.state("ws", "cs")).attempts[1].deaths == deaths


async def test_a_state_that_was_read_from_the_new_log_is_not_reported_as_lost(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    """Another server recreated the stream, and this one opened the change set before it noticed the loss."""
    async with serving(js, subjects, Engine()) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        owner = server._owners[KEY]
        last = (await client.state("ws", "cs")).last
        owner.log_loss(last)
        assert not events.named("change_set_lost")
        owner.log_loss(last + 1)
        [lost] = events.named("change_set_lost")
        assert (lost["seq"], lost["values"]) == (last, 1)


class Pull:
    """Counts the tasks that are asked for."""

    def __init__(self) -> None:
        self.credit = 0

    def add_credit(self, number: int) -> None:
        self.credit += number


async def test_a_task_is_asked_for_once_for_each_slot(js: JetStream, subjects: Subjects) -> None:
    """More would keep tasks from servers that have room for them."""
    server = Server(context_of(js, subjects, Settings(server_id="test", concurrency=5), Engine()))
    pull = Pull()
    server._pull = cast("PullConsumer", pull)
    for _ in range(2):
        server._fill_slots()
        assert pull.credit == 5
    server._slots_taken, server._tasks_requested = 2, 2
    for _ in range(2):
        server._fill_slots()
        assert pull.credit == 6
    server._slots_taken, server._tasks_requested, server._overbooked = 5, 0, 1
    reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.7.7.1.0"
    server._held[KEY] = Task(KEY, PullMessage(subjects.task(KEY), reply, b"", None, js), js)
    server._fill_slots()
    assert pull.credit == 6


async def test_what_was_lost_with_its_stream_is_forgotten(js: JetStream, subjects: Subjects) -> None:
    server = Server(context_of(js, subjects, Settings(server_id="test"), Engine()))
    reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.7.7.1.0"
    task = Task(KEY, PullMessage(subjects.task(KEY), reply, b"", None, js), js)
    server._held[KEY] = server._successor_tasks[KEY] = task
    server._context.deleter.add([1])
    server.streams_lost({subjects.commits_stream: 2_000_001})
    assert (len(server._held), len(server._successor_tasks), server._context.deleter._queue) == (1, 1, [1])
    server.streams_lost({subjects.tasks_stream: 2_000_001, subjects.requests_stream: 2_000_001})
    assert (len(server._held), len(server._successor_tasks), server._context.deleter._queue) == (0, 0, [])


async def test_a_server_whose_slots_are_taken_asks_for_no_task(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = anyio.Event()

    async def read(*_: object) -> None:
        reading.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(RequestReader, "read", read)
    async with serving(js, subjects, Engine(), concurrency=1) as server:
        assert server._pull is not None
        assert server._pull.outstanding == 1
        await client.enqueue_updates("ws", "cs", [Set("a", 1)])
        await reading.wait()
        assert server._pull.outstanding == 0


async def test_an_owner_that_breaks_leaves_its_slot_to_the_next(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Owner._load

    async def break_at_first(owner: Owner) -> None:
        monkeypatch.setattr(Owner, "_load", load)
        raise ZeroDivisionError

    monkeypatch.setattr(Owner, "_load", break_at_first)
    given_back, nak = list[float](), Task.nak

    async def note(task: Task, delay: float) -> None:
        given_back.append(delay)
        await nak(task, delay)

    monkeypatch.setattr(Task, "nak", note)
    async with serving(js, subjects, Engine(), concurrency=1):
        response = await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        assert given_back == [0.0], "otherwise the task would come again only when its ack wait is over"
    assert isinstance(response.status, Success)
    assert len(events.named("owner_failed")) == 1


async def test_a_task_that_fails_comes_again_at_once_and_only_then_later_and_later(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been bad luck; what goes on is no reason to load everything again and again."""
    delays: list[float] = []
    real, tried_often = JetStream.nak, anyio.Event()

    async def nak(self: JetStream, message: PullMessage, delay: float = 0.0) -> None:
        if message.subject == subjects.task(KEY):
            delays.append(delay)
            delay = min(delay, 0.01)
            if len(delays) == 5:
                tried_often.set()
        await real(self, message, delay)

    async def load(*_: object) -> LoadedState:
        raise TransientError("the blob store is away")

    async with serving(js, subjects, Engine()) as server:
        monkeypatch.setattr(JetStream, "nak", nak)
        monkeypatch.setattr(StateLoader, "load", load)
        await client.enqueue_updates("ws", "cs", [Set("a", 1)])
        with anyio.fail_after(30):
            await tried_often.wait()
        assert delays[:5] == [0.0, 0.5, 1.0, 2.0, 4.0]
        assert server.describe()["trouble"] == "the blob store is away"
        assert server.describe()["ready"]


async def test_a_change_set_that_takes_longer_to_load_than_a_turn_gets_its_turn(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two want one slot. Each would let it go as soon as it is loaded, for ever."""
    monkeypatch.setattr("rebaser.server.CROWD_CHECK", 0.02)
    real = StateLoader.load

    async def load(self: StateLoader, key: ChangeSetKey) -> LoadedState:
        await anyio.sleep(0.3)
        return await real(self, key)

    monkeypatch.setattr(StateLoader, "load", load)
    async with serving(js, subjects, Engine(), concurrency=1, turn=0.2):
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for name in ("one", "two"):
                    group.start_soon(client.enqueue_updates_with_reply, "ws", name, [Set("a", 1)])

"""An owner begins where the one before it ended, and ends when it is idle, fenced or stopped."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rebaser.change_set.attempts.poison import PoisonDetector
from rebaser.change_set.lease import Lease, Task
from rebaser.change_set.lifecycle import Reason
from rebaser.change_set.loading import open_log
from rebaser.change_set.log import checkpointer
from rebaser.runtime.dead_letters import DeadLetterPublisher
from rebaser.runtime.quiet_checkpoints import MAX_WRITERS, SHARE
from rebaser.settings import Settings
from rebaser.sweeper.sweeper import Sweeper
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_client.log.reader import LoadedState, StateLoader
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.commit import Applied, Kind
from rebaser_core.encoding.envelope import REPLY_INBOX
from rebaser_core.errors import DvuError, TransientError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, Success, encode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Recompute
from tests.conftest import Events
from tests.support.contexts import context_of
from tests.support.owners import DOUBLE, Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("ws", "cs")


@pytest.fixture
def no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run no sweeps, which would repair what a recheck missed."""

    async def sweep(_: Sweeper) -> int:
        return 0

    monkeypatch.setattr(Sweeper, "sweep", sweep)


@pytest.mark.usefixtures("no_sweep")
async def test_the_recheck_finds_the_very_next_request(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request came while the task was being given up, and its own task was refused."""
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
async def test_a_recheck_that_fails_leaves_the_change_set_to_another_owner(
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
    with anyio.fail_after(60):
        async with serving(js, subjects, Engine(), quiescent_period=0.2):
            await client.enqueue_updates("ws", "cs", [Set("a", 1)])
            async for commit in client.watch("ws", "cs", after=0):
                if [one.request_id for one in commit.requests] == ["late"]:
                    break
    assert not looks


async def test_who_is_given_a_task_that_had_an_owner_knows_it(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this shows the next owner that something may have killed the last one."""
    told: list[bool] = []

    def detector(*given: Any, redelivered: bool, **more: Any) -> PoisonDetector:
        told.append(redelivered)
        return PoisonDetector(*given, redelivered=redelivered, **more)

    monkeypatch.setattr("rebaser.change_set.owner.PoisonDetector", detector)
    with anyio.fail_after(60):
        async with serving(js, subjects, Engine()) as server:
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
            server._owners[KEY].stop(Reason.TRANSIENT)
            while len(told) < 2:
                await checkpoint()
    assert told == [False, True]


@pytest.mark.usefixtures("no_sweep")
async def test_the_recheck_finds_a_commit_that_its_owner_has_not_read(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that had lost the task appended the commit after this owner had loaded the log. Its own task was
    refused."""
    release, late = Lease.release, list[int]()

    async def append_and_release(self: Lease) -> None:
        if not late:
            commits = await open_log(context_of(js, subjects, Settings(server_id="other")), KEY)
            async with commits.append_lock():
                covers = commits.state.covers
                await commits.append(commits.draft(Kind.REBASE, recompute=(Recompute(),), covers=covers, debt=1))
            late.append(commits.state.last)
        await release(self)

    monkeypatch.setattr(Lease, "release", append_and_release)
    engine = Engine()
    engine.go.set()
    async with serving(js, subjects, engine, quiescent_period=0.2):
        await client.enqueue_updates("ws", "cs", [Set("a", 1)])
        with anyio.fail_after(60):
            while not late:
                await checkpoint()
            await client.wait_covered("ws", "cs", late[0])


class FailsAtFirst(Engine):
    async def evaluate(self, packets: Sequence[bytes], **_: object) -> list[list[bytes]]:
        if not self.go.is_set():
            raise DvuError("not now")
        return await super().evaluate(packets)


@pytest.mark.usefixtures("no_sweep")
async def test_the_recheck_finds_debt(js: JetStream, subjects: Subjects, client: RebaserClient, events: Events) -> None:
    """The debt is that of an owner that yields while its update waits to be retried."""
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


@pytest.mark.usefixtures("no_sweep")
async def test_an_owner_that_cannot_copy_a_dead_request_leaves_it_to_the_next_one_when_it_ends(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, it would keep its slot without deciding requests for as long as there is no room for dead letters."""
    refused = anyio.Event()

    async def refuse(*_: object) -> None:
        refused.set()
        raise TransientError("no room")

    inbox = js.connection.new_inbox()
    await js.publish(subjects.requests(KEY), b"no request", {REPLY_INBOX: inbox})
    async with js.connection.subscribe(inbox) as replies, serving(js, subjects, Engine()) as server:
        with monkeypatch.context() as patch, anyio.fail_after(60):
            patch.setattr(DeadLetterPublisher, "publish", refuse)
            await publish_task(js, subjects, KEY)
            await refused.wait()
            first = server._owners[KEY]
            first.stop(Reason.YIELD)
            while server._owners.get(KEY, first) is first:
                await checkpoint()
        with anyio.fail_after(60):
            await anext(replies)


async def test_an_owner_that_a_request_shows_to_be_fenced_gives_nothing_back(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS would take that for an answer of the owner that fenced it, and deliver the task a second time."""
    given_back: list[float] = []

    async def nak(_: Task, delay: float) -> None:
        given_back.append(delay)

    monkeypatch.setattr(Task, "nak", nak)
    async with serving(js, subjects, Engine()) as server:
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
    async with serving(js, subjects, Engine(), quiescent_period=0.1, checkpoint_bytes=2000 * SHARE) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("heavy", "x" * 2000 * SHARE)])
        while server._owners:
            await checkpoint()
        assert server._slots_taken == 0
    assert len(events.named("checkpoint_written")) == 1


@pytest.mark.parametrize("commits", [1, 4])
async def test_a_quiet_change_set_with_many_new_commits_gets_a_checkpoint_before_it_is_released(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events, commits: int
) -> None:
    """Its commits may be far apart in the stream, so that each of them would make the next load longer."""
    async with serving(js, subjects, Engine(), quiescent_period=0.1, checkpoint_bytes=2000 * SHARE) as server:
        for number in range(commits):
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", number)])
        with anyio.fail_after(60):
            while server._owners:
                await checkpoint()
    assert len(events.named("checkpoint_written")) == (commits > 1)
    assert (await client.values("ws", "cs"))["a"].value == commits - 1


async def test_a_quiet_change_set_is_released_although_its_checkpoint_fails(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise TransientError("the blob store is away")

    monkeypatch.setattr(checkpointer, "write", fail)
    async with serving(js, subjects, Engine(), quiescent_period=0.1, checkpoint_bytes=1000 * SHARE) as server:
        for number in range(2):
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", number)])
        with anyio.fail_after(60):
            while server._owners:
                await checkpoint()
    assert len(events.named("checkpoint_failed")) == 1


async def test_a_busy_change_set_writes_no_checkpoint_although_its_timer_fires(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    """Requests postpone the release, but they do not set the timer again."""
    async with serving(js, subjects, Engine(), quiescent_period=0.05, checkpoint_bytes=SHARE * 40_000) as server:
        with anyio.fail_after(60), anyio.move_on_after(0.5):
            while True:
                await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
                assert not events.named("checkpoint_written")
        with anyio.fail_after(60):
            while server._owners:
                await checkpoint()
    assert len(events.named("checkpoint_written")) == 1


async def test_only_a_few_quiet_change_sets_write_checkpoints_at_once_and_the_others_can_yield(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If checkpoints take long, for instance because the blob store is slow, no slot stays taken for them."""
    writing, most, go = 0, 0, anyio.Event()

    async def write(*_: object, **__: object) -> None:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        await go.wait()
        writing -= 1

    monkeypatch.setattr(checkpointer, "write", write)
    async with serving(js, subjects, Engine(), quiescent_period=0.1, checkpoint_bytes=SHARE * 100) as server:
        for number in range(MAX_WRITERS + 2):
            await client.enqueue_updates_with_reply("ws", f"cs{number}", [Set("a", 1)])
        with anyio.fail_after(60):
            while writing < MAX_WRITERS:
                await checkpoint()
            await anyio.sleep(0.3)
            waiting = [
                owner for key, owner in server._owners.items() if key not in server._context.quiet_checkpoints._writing
            ]
            assert len(waiting) == 2
            assert not any(owner.lifecycle.jobs for owner in waiting)
            waiting[0].stop(Reason.YIELD)
            while waiting[0].key in server._owners:
                await checkpoint()
            go.set()
            while server._owners:
                await checkpoint()
    assert most == MAX_WRITERS
    assert not server._context.quiet_checkpoints._writing
    assert not server._context.quiet_checkpoints._waiting


async def test_the_next_owner_knows_what_is_decided(js: JetStream, subjects: Subjects, client: RebaserClient) -> None:
    """The sequence shows it: an outcome may be forgotten before its request is deleted."""
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
        with anyio.fail_after(60):
            while await js.last(subjects.requests_stream, subjects.requests(KEY)):  # noqa: ASYNC110 - a server deletes it
                await anyio.sleep(0.01)
    assert await client.values("ws", "cs") == {}, "neither is decided again"


async def test_an_owner_whose_consumer_fails_ends_and_the_next_one_reads_on(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    async with serving(js, subjects, Engine()) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        owner = server._owners[KEY]
        assert owner.queue is not None
        owner.queue.failure = TransientError("no consumer can be made")
        owner.check_queue()
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

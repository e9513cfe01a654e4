"""An owner's updates and checkpoints: a slow one delays no request, and no finished work is lost."""

import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint

import rebaser.change_set.log.checkpointer
import rebaser.dvu.update
from rebaser.change_set.loading import open_log
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.runtime.context import Context
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core import thresholds
from rebaser_core.commit import Kind
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, Success, encode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds
from tests.conftest import Events
from tests.support.owners import DOUBLE, Engine, serving

KEY = ChangeSetKey("ws", "cs")

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def test_a_dvu_that_takes_too_long_is_tried_again_and_requests_go_on(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    engine = Engine()
    async with serving(js, subjects, engine, dvu_timeout=0.05) as server, anyio.create_task_group() as group:
        group.start_soon(events.wait_for, lambda entry: entry["event"] == "dvu_failed" and entry["attempt"] == 2)
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        await client.enqueue_updates_with_reply("ws", "cs", [Set("b", 1)])
    assert (
        server.snapshot().trouble
        == "the update of ws.cs took longer than 0.05 s (REBASER_DVU_TIMEOUT) and will be retried"
    )
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
        assert KEY in server._context.running_updates
        engine.go.set()
        while KEY in server._context.running_updates:
            await checkpoint()


async def test_a_checkpoint_waits_for_the_update_that_is_due_and_not_for_one_that_fails(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    """Otherwise, the update would wait for the checkpoint, which takes longer than most updates."""
    engine = Engine()
    heavy = Set("heavy", "x" * 2000)

    async def written(times: int) -> int:
        """Return the log sequence of the checkpoint."""
        with anyio.fail_after(60):
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
    """What the checkpoint replaces is lost: until it is stored, no other reader can load the change set."""
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
        with anyio.fail_after(60):
            await written.wait()
    assert tries == [True, True]


async def test_planning_that_hangs_is_left_to_itself(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    # Otherwise, small updates are planned at once.
    monkeypatch.setattr(thresholds, "now", Thresholds(plan_on_loop_max_elements=0))
    monkeypatch.setattr(rebaser.dvu.update, "plan", lambda *_: over.wait(300))
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
    """Otherwise, each attempt at an unreadable request would discard the progress of the DVU."""
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
    assert len(events.named("dvu_ended")) == 1
    assert not events.named("dvu_failed")


@pytest.mark.usefixtures("no_ack_wait")
async def test_an_owner_whose_update_is_fenced_ends(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    """Otherwise, it would compute the same update again and again, and nobody would update the values."""
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

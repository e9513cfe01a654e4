"""Requests that NATS does not deliver are found without heartbeats."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import anyio
import pytest

from rebaser.runtime import queue_watch
from rebaser.runtime.queue_watch import QueueWatch
from rebaser.settings import Settings
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import JetStream, OrderedConsumer
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.contexts import context_of
from tests.support.ordered import count_consumers

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("ws", "cs")


@pytest.fixture
async def queue(js: JetStream, subjects: Subjects) -> AsyncIterator[OrderedConsumer]:
    async with OrderedConsumer(js, subjects.requests_stream, subjects.requests(KEY), idle_heartbeat=3600) as consumer:
        yield consumer


@pytest.fixture
def watch(js: JetStream, subjects: Subjects, queue: OrderedConsumer) -> QueueWatch:
    return QueueWatch(context_of(js, subjects, Settings()), {KEY: queue}.get)


async def delete_consumers(js: JetStream, stream: str) -> None:
    for name in (await js.call(f"CONSUMER.NAMES.{stream}"))["consumers"]:
        await js.delete_consumer(stream, name)
    assert await count_consumers(js, stream) == 0


async def test_a_request_that_no_consumer_delivers_is_delivered_after_the_third_check(
    js: JetStream, subjects: Subjects, client: RebaserClient, queue: OrderedConsumer, watch: QueueWatch, events: Events
) -> None:
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    await queue.wait()
    first = queue.take(1)[0].stream_sequence
    await delete_consumers(js, subjects.requests_stream)
    await client.enqueue_updates("ws", "cs", [Set("a", 2)])
    for _ in range(2):
        await watch.check()
        assert not events.named("ordered_reset"), "the request could still be on its way"
    await watch.check()
    assert len(events.named("ordered_reset")) == 1
    await queue.wait()
    assert [message.stream_sequence for message in queue.take(10)] == [first + 1]


async def test_a_request_that_is_queued_or_taken_is_not_missed(
    js: JetStream, subjects: Subjects, client: RebaserClient, queue: OrderedConsumer, watch: QueueWatch, events: Events
) -> None:
    """A request stays in the stream while it is decided, and after that if its delete was lost."""
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    await queue.wait()
    for _ in range(4):
        await watch.check()
    queue.take(1)
    for _ in range(4):
        await watch.check()
    assert not events.named("ordered_reset")
    assert await count_consumers(js, subjects.requests_stream) == 1


async def test_queues_without_an_owner_and_foreign_subjects_are_left_alone(
    js: JetStream, subjects: Subjects, client: RebaserClient, watch: QueueWatch, events: Events
) -> None:
    await client.enqueue_updates("ws", "other", [Set("a", 1)])
    await js.publish(f"{subjects.root}.requests.a b.c".replace(" ", "%"), b"")
    for _ in range(4):
        await watch.check()
    assert not events.named("ordered_reset")


@asynccontextmanager
async def open_queues(
    js: JetStream, subjects: Subjects, count: int
) -> AsyncIterator[dict[ChangeSetKey, OrderedConsumer]]:
    """Open the queues of `count` change sets."""
    queues = {}
    async with AsyncExitStack() as stack:
        for number in range(count):
            key = ChangeSetKey("ws", f"cs-{number}")
            consumer = OrderedConsumer(js, subjects.requests_stream, subjects.requests(key), idle_heartbeat=3600)
            queues[key] = await stack.enter_async_context(consumer)
        yield queues


async def test_all_consumers_that_were_lost_at_once_are_replaced_by_one_check(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_watch, "READS", 2)
    async with open_queues(js, subjects, 7) as queues:
        watch = QueueWatch(context_of(js, subjects, Settings()), queues.get)
        await delete_consumers(js, subjects.requests_stream)
        for key in queues:
            await client.enqueue_updates(key.workspace, key.change_set, [Set("a", 1)])
        for _ in range(3):
            await watch.check()
        with anyio.fail_after(60):
            for queue in queues.values():
                await queue.wait()


async def test_queues_whose_requests_stay_although_they_were_delivered_do_not_hide_one_that_gets_nothing(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests of all queues but one were taken and not deleted. A check reads only one queue that is not stuck."""
    monkeypatch.setattr(queue_watch, "READS", 1)
    async with open_queues(js, subjects, 4) as queues:
        watch = QueueWatch(context_of(js, subjects, Settings()), queues.get)
        for key, queue in queues.items():
            await client.enqueue_updates(key.workspace, key.change_set, [Set("a", 1)])
            await queue.wait()
            queue.take(1)
        for _ in range(6):  # the first two checks read nothing, and each of the others one queue
            await watch.check()
        assert not events.named("ordered_reset")
        key, queue = next(iter(queues.items()))
        await delete_consumers(js, subjects.requests_stream)
        await client.enqueue_updates(key.workspace, key.change_set, [Set("a", 2)])
        for _ in range(3):
            await watch.check()
        with anyio.fail_after(60):
            await queue.wait()


async def test_of_a_busy_server_only_queues_that_had_requests_before_are_looked_at(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    """The others are thousands, and nearly all of their requests have been decided and are about to be deleted."""
    looked_at: list[str] = []

    def queue_of(key: ChangeSetKey) -> None:
        looked_at.append(key.change_set)

    watch = QueueWatch(context_of(js, subjects, Settings()), queue_of)
    for name in ("a", "b", "c"):
        await client.enqueue_updates("ws", name, [Set("a", 1)])
        await watch.check()
    assert sorted(looked_at) == ["a", "a", "b"]


async def test_a_consumer_that_has_delivered_a_newer_request_is_not_suspected(
    js: JetStream, subjects: Subjects, client: RebaserClient, queue: OrderedConsumer, events: Events
) -> None:
    """Its decided requests have not been deleted yet. To look for undelivered ones, the check would have to read each
    queue."""
    reads: list[str] = []

    class Reads:
        def __getattr__(self, name: str) -> Any:
            reads.append(name)
            return getattr(js, name)

    watch = QueueWatch(context_of(cast("JetStream", Reads()), subjects, Settings()), {KEY: queue}.get)
    for number in range(4):
        await client.enqueue_updates("ws", "cs", [Set("a", number)])
        await queue.wait()
        queue.take(10)
        await watch.check()
    await watch.check()
    assert "next" not in reads
    for _ in range(2):
        await watch.check()
    assert "next" in reads, "the last request has not been deleted for two checks"
    assert not events.named("ordered_reset")

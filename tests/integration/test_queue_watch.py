"""Requests that NATS does not deliver are found without heartbeats."""

from collections.abc import AsyncIterator

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


async def test_a_request_that_no_consumer_delivers_is_delivered_after_the_second_check(
    js: JetStream, subjects: Subjects, client: RebaserClient, queue: OrderedConsumer, watch: QueueWatch
) -> None:
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    await queue.wait()
    first = queue.take(1)[0].stream_sequence
    await delete_consumers(js, subjects.requests_stream)
    await client.enqueue_updates("ws", "cs", [Set("a", 2)])
    await watch.check()
    assert queue.pending == 0, "the request could still be on its way"
    await watch.check()
    await queue.wait()
    assert [message.stream_sequence for message in queue.take(10)] == [first + 1]


async def test_a_request_that_is_queued_or_taken_is_not_missed(
    js: JetStream, subjects: Subjects, client: RebaserClient, queue: OrderedConsumer, watch: QueueWatch, events: Events
) -> None:
    """A request stays in the stream while it is decided, and after that if its delete was lost."""
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    await queue.wait()
    for _ in range(3):
        await watch.check()
    queue.take(1)
    for _ in range(3):
        await watch.check()
    assert not events.named("ordered_reset")
    assert await count_consumers(js, subjects.requests_stream) == 1


async def test_queues_without_an_owner_and_foreign_subjects_are_left_alone(
    js: JetStream, subjects: Subjects, client: RebaserClient, watch: QueueWatch, events: Events
) -> None:
    await client.enqueue_updates("ws", "other", [Set("a", 1)])
    await js.publish(f"{subjects.root}.requests.a b.c".replace(" ", "%"), b"")
    for _ in range(3):
        await watch.check()
    assert not events.named("ordered_reset")


async def test_of_too_many_suspects_each_is_read_at_some_time(
    js: JetStream, subjects: Subjects, client: RebaserClient, queue: OrderedConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the three queues has a request that was taken and not deleted, so each is a suspect at each check."""
    keys = [ChangeSetKey("ws", name) for name in ("a", "b", "cs")]
    monkeypatch.setattr(queue_watch, "MAX_READS", 1)
    read: set[str] = set()
    for key in keys:
        await client.enqueue_updates(key.workspace, key.change_set, [Set("a", 1)])
    await queue.wait()
    queue.take(1)
    watch = QueueWatch(context_of(js, subjects, Settings()), dict.fromkeys(keys, queue).get)

    async def is_stuck(subject: str, _: object) -> bool:
        read.add(subject)
        return False

    monkeypatch.setattr(watch, "_is_stuck", is_stuck)
    with anyio.fail_after(60):
        while len(read) < len(keys):
            await watch.check()

"""The rules of JetStream about acknowledgements, retention and replay, on a real nats-server."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from rebaser_client.jetstream import ApiError, Consumer, JetStream, NoAnswerError, Stream
from rebaser_core.streams.subjects import Subjects

pytestmark = pytest.mark.anyio


class Streams:
    """Makes the stream of a test."""

    def __init__(self, js: JetStream, name: str) -> None:
        self.js = js
        self.name = name
        self.subject = f"{name}.a"

    async def make(self, count: int = 0, **config: Any) -> Stream:
        """Make a stream with `count` messages."""
        fields = {"name": self.name, "subjects": [f"{self.name}.>"], "storage": "memory", "num_replicas": 1}
        stream = await self.js.add_stream(fields | config)
        await self.js.publish_all(self.subject, [b"x"] * count)
        return stream

    async def consumer(self, count: int, ack_policy: str = "explicit", **config: Any) -> Consumer:
        """Make a consumer of a stream with `count` messages."""
        return await (await self.make(count)).create_consumer({"name": "c", "ack_policy": ack_policy, **config})


@pytest.fixture
async def streams(js: JetStream, subjects: Subjects) -> AsyncIterator[Streams]:
    yield Streams(js, subjects.prefix)
    await js.delete_stream(subjects.prefix)


# -- acknowledgements --------------------------------------------------------------------------------------------------


async def test_a_message_acknowledges_itself(streams: Streams) -> None:
    consumer = await streams.consumer(2)
    first, second = [message async for message in consumer.fetch(2)]
    assert (first.stream, first.consumer) == (consumer.stream, consumer.name)
    await first.ack()
    await second.ack_sync()
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor_stream, info.ack_floor_consumer) == (0, 2, 2)


async def test_the_ack_floor_is_below_the_first_that_is_open(streams: Streams) -> None:
    consumer = await streams.consumer(4)
    messages = [message async for message in consumer.fetch(4)]
    for number in (0, 1, 3):
        await messages[number].ack_sync()
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor_stream, info.ack_floor_consumer) == (1, 2, 2)


async def test_what_is_given_back_or_ended_can_be_confirmed(streams: Streams) -> None:
    consumer = await streams.consumer(1, ack_wait=30_000_000_000)
    message = await consumer.next()
    assert message is not None
    await message.progress(confirmed=True)
    await message.nak(confirmed=True)
    again = await consumer.next()
    assert again is not None
    assert again.delivered == 2
    await again.term("enough", confirmed=True)
    assert (await consumer.info()).num_ack_pending == 0


async def test_an_ack_that_nobody_confirms_is_told(js: JetStream, streams: Streams) -> None:
    consumer = await streams.consumer(1)
    message = await consumer.next()
    assert message is not None
    await js.delete_stream(consumer.stream)
    for acknowledge in (message.nak, message.progress, message.term):
        with pytest.raises(Exception, match="responder"):
            await acknowledge(confirmed=True)


async def test_an_ack_asks_for_the_next_messages(js: JetStream, streams: Streams) -> None:
    consumer = await streams.consumer(4)
    first = await consumer.next()
    assert first is not None
    more = [message async for message in js.ack_next(first, 2)]
    assert [message.stream_sequence for message in more] == [2, 3]
    info = await consumer.info()
    assert (info.ack_floor_stream, info.num_ack_pending) == (1, 2)


async def test_an_ack_asks_for_what_is_there_and_no_more(js: JetStream, streams: Streams) -> None:
    consumer = await streams.consumer(3)
    first = await consumer.next()
    assert first is not None
    with anyio.fail_after(100):  # the pull itself would last longer
        more = [message async for message in js.ack_next(first, 5, expires=200, no_wait=True)]
        assert [message.stream_sequence for message in more] == [2, 3]
        assert [message async for message in js.ack_next(more[0], 5, expires=200, no_wait=True)] == []
    assert (await consumer.info()).ack_floor_stream == 2


async def test_with_ack_all_one_ack_is_for_all_before(streams: Streams) -> None:
    consumer = await streams.consumer(5, "all")
    messages = [message async for message in consumer.fetch(5)]
    await messages[2].ack_sync()
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor_stream) == (2, 3)


async def test_with_ack_none_a_reader_that_leaves_early_loses_what_was_kept_for_it(streams: Streams) -> None:
    consumer = await streams.consumer(10, "none")
    async with consumer.consume(max_messages=6) as messages:
        assert (await anext(messages)).stream_sequence == 1
        while messages.buffered < 5:
            await anyio.lowlevel.checkpoint()
    async with consumer.consume(max_messages=6) as messages:
        assert (await anext(messages)).stream_sequence == 7


# -- storing -----------------------------------------------------------------------------------------------------------


async def test_a_stream_that_confirms_nothing_is_sent_to_without_waiting(js: JetStream, streams: Streams) -> None:
    stream = await streams.make(no_ack=True)
    await js.publish_unconfirmed(streams.subject, b"one", {"A": "b"})
    while not (await stream.info()).messages:
        await anyio.lowlevel.checkpoint()
    stored = await stream.get_message(1)
    assert stored is not None
    assert (stored.data, stored.headers["A"]) == (b"one", "b")
    with pytest.raises(NoAnswerError):
        await js.publish(streams.subject, b"two", timeout=0.2)


async def test_interest_keeps_a_message_until_all_have_acknowledged_it(js: JetStream, streams: Streams) -> None:
    stream = await streams.make(retention="interest")
    await js.publish(streams.subject, b"nobody is interested")
    assert (await stream.info()).messages == 0
    consumers = [await stream.create_consumer({"name": name, "ack_policy": "explicit"}) for name in "ab"]
    await js.publish(streams.subject, b"both are")
    for consumer, left in zip(consumers, (1, 0), strict=True):
        assert (await stream.info()).messages == 1
        message = await consumer.next()
        assert message is not None
        await message.ack_sync()
        while (await stream.info()).messages != left:
            await anyio.lowlevel.checkpoint()


async def test_a_work_queue_has_one_consumer_for_each_message(streams: Streams) -> None:
    stream = await streams.make(retention="workqueue")
    await stream.create_consumer({"name": "a", "ack_policy": "explicit"})
    with pytest.raises(ApiError, match="not allowed on workqueue"):
        await stream.create_consumer({"name": "b", "ack_policy": "explicit"})


# -- replay ------------------------------------------------------------------------------------------------------------


async def test_replay_original_keeps_the_pauses_in_between(js: JetStream, streams: Streams) -> None:
    stream = await streams.make(1)
    await anyio.sleep(2)  # this pause is replayed
    await js.publish(streams.subject, b"x")
    instant = await stream.create_consumer({"name": "i", "ack_policy": "explicit", "replay_policy": "instant"})
    original = await stream.create_consumer({"name": "o", "ack_policy": "explicit", "replay_policy": "original"})
    began = anyio.current_time()
    async with original.consume() as replayed, instant.consume() as read:
        assert [(await anext(read)).stream_sequence for _ in range(2)] == [1, 2]
        first, second = await anext(replayed), await anext(replayed)
    assert (first.stream_sequence, second.stream_sequence) == (1, 2)
    pause = (second.timestamp_ns - first.timestamp_ns) / 1e9
    assert anyio.current_time() - began > 0.9 * pause >= 1.8


async def test_pedantic_refuses_what_would_be_put_right_silently(streams: Streams) -> None:
    stream = await streams.make(consumer_limits={"inactive_threshold": 60_000_000_000})
    wanted = {"name": "c", "ack_policy": "explicit"}
    with pytest.raises(ApiError, match="pedantic"):
        await stream.create_consumer(wanted, pedantic=True)
    put_right = await stream.create_consumer(wanted)
    assert put_right.cached_info.config["inactive_threshold"] == 60_000_000_000

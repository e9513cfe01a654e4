"""`consume`, `fetch` and `next` with a real nats-server, while pulls end and connections break."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from rebaser_client.jetstream import (
    Connection,
    Consumer,
    ConsumerDeletedError,
    JetStream,
    Messages,
    NoRespondersError,
    PullMessage,
    PullWarning,
    Stream,
)
from rebaser_core.streams.subjects import Subjects
from tests.support.nats_proxy import Frame, Proxy

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stream(js: JetStream, subjects: Subjects) -> AsyncIterator[Stream]:
    name = subjects.prefix
    yield await js.add_stream({"name": name, "subjects": [f"{name}.>"], "storage": "memory", "num_replicas": 1})
    await js.delete_stream(name)


@pytest.fixture
async def consumer(stream: Stream) -> Consumer:
    return await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": -1})


@pytest.fixture
async def lossy(proxy: Proxy, consumer: Consumer) -> AsyncIterator[Consumer]:
    """The consumer, which is pulled from through `proxy`."""
    async with Connection.connect(proxy.url) as connection:
        yield await JetStream(connection).get_consumer(consumer.stream, consumer.name)


async def add(js: JetStream, stream: Stream, count: int, size: int = 0) -> None:
    await js.publish_all(f"{stream.name}.a", [b"x" * size] * count, window=200)


async def take(js: JetStream, messages: AsyncIterator[PullMessage], count: int) -> list[int]:
    sequences = []
    for _ in range(count):
        message = await anext(messages)
        await js.ack(message)
        sequences.append(message.stream_sequence)
    return sequences


async def waiting(consumer: Consumer, count: int) -> None:
    while (await consumer.info()).num_waiting != count:
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("options", [{}, {"max_messages": 1}, {"max_messages": 3, "threshold_messages": 3}])
async def test_messages_come_in_order_without_end(
    js: JetStream, stream: Stream, consumer: Consumer, options: dict[str, Any]
) -> None:
    count = 100 if options else 2000
    await add(js, stream, count)
    async with consumer.consume(**options) as messages:
        assert await take(js, messages, count) == list(range(1, count + 1))
        await add(js, stream, 2)
        assert await take(js, messages, 2) == [count + 1, count + 2]


async def test_no_more_is_kept_than_the_limit(js: JetStream, stream: Stream, consumer: Consumer) -> None:
    await add(js, stream, 100)
    async with consumer.consume(max_messages=20) as messages:
        await take(js, messages, 1)
        while messages.buffered < 19:
            await anyio.lowlevel.checkpoint()
        assert (await consumer.info()).num_pending == 80
        await take(js, messages, 8)
        assert (await consumer.info()).num_pending == 80  # 11 are left, and the threshold is 10
        await take(js, messages, 2)
        while (await consumer.info()).num_pending > 70:
            await anyio.lowlevel.checkpoint()


async def test_bytes_are_the_limit_and_counted_as_the_server_does(
    js: JetStream, stream: Stream, lossy: Consumer, proxy: Proxy
) -> None:
    left: list[int] = []

    def watch(frame: Frame) -> bool:
        if frame.headers.startswith(b"NATS/1.0 409 Message Size"):
            left.append(int(frame.headers.rpartition(b":")[2]))
        return False

    proxy.lose = watch
    for size in range(100):
        headers = {f"X-{size}": "y" * (size % 7)} if size % 2 else None
        await js.publish(f"{stream.name}.{'a' * (1 + size % 5)}", b"x" * size, headers)
    async with lossy.consume(max_bytes=3000) as messages:
        while not left:
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert messages._state.free == left[0]  # the credits that count as free are those that the server did not use
        assert messages.outstanding == 0
        kept = messages.buffered
        assert 10 < kept < 40
        assert await take(js, messages, 100) == list(range(1, 101))


async def test_a_message_that_never_fits_holds_up_the_rest_until_it_is_gone(
    js: JetStream, stream: Stream, consumer: Consumer
) -> None:
    told: list[PullWarning] = []
    await add(js, stream, 1, size=5000)
    async with consumer.consume(max_bytes=1000, on_warning=told.append) as messages:
        while not told:
            await anyio.lowlevel.checkpoint()
        await stream.delete_message(1)
        await add(js, stream, 3, size=10)
        assert await take(js, messages, 3) == [2, 3, 4]
    assert all("larger than the 1000 bytes" in warned.reason for warned in told)


async def test_stop_gives_back_what_was_not_taken(js: JetStream, stream: Stream, consumer: Consumer) -> None:
    """No message may go to a waiting pull, where it would stay until its ack wait is over; one in fifty did."""
    for turn in range(50):
        await add(js, stream, 10)
        messages = consumer.consume()  # opens when it is read
        assert await take(js, messages, 1) == [10 * turn + 1]
        await messages.stop()
        assert [message async for message in messages] == []
        async with consumer.fetch(9, expires=20) as batch:
            assert sorted(await take(js, batch, 9)) == list(range(10 * turn + 2, 10 * turn + 11))


async def test_a_stop_that_is_cancelled_gives_back_what_was_not_taken(js: JetStream, stream: Stream) -> None:
    config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 3600 * 10**9}
    consumer = await stream.create_consumer(config)
    await add(js, stream, 6)
    messages = consumer.consume(max_messages=6)
    assert await take(js, messages, 1) == [1]
    with anyio.CancelScope() as scope:
        scope.cancel()
        await messages.stop()
    assert scope.cancelled_caught
    assert sorted(await take(js, consumer.fetch(5), 5)) == [2, 3, 4, 5, 6]


async def test_drain_keeps_what_came_and_pulls_no_more(js: JetStream, stream: Stream, consumer: Consumer) -> None:
    await add(js, stream, 30)
    async with consumer.consume(max_messages=10) as messages:
        await take(js, messages, 1)
        while messages.buffered < 9:
            await anyio.lowlevel.checkpoint()
        await messages.drain()
        rest = [message.stream_sequence async for message in messages]
        assert rest == list(range(2, 11))
    info = await consumer.info()
    assert (info.num_pending, info.num_waiting) == (20, 0)


async def test_what_was_never_opened_can_be_stopped_and_drained(consumer: Consumer) -> None:
    for end in (Messages.stop, Messages.drain):
        messages = consumer.consume()
        await end(messages)
        assert [message async for message in messages] == []


async def test_a_callback_gets_each_message_until_it_is_drained(
    js: JetStream, stream: Stream, consumer: Consumer
) -> None:
    await add(js, stream, 50)
    got: list[int] = []
    messages = consumer.consume(max_messages=10)

    async def handle(message: PullMessage) -> None:
        got.append(message.stream_sequence)
        await js.ack(message)
        if len(got) == 50:
            await messages.drain()

    await messages.run(handle)
    assert got == list(range(1, 51))


async def test_what_a_callback_raises_ends_it(js: JetStream, stream: Stream, consumer: Consumer) -> None:
    async def fail(_: PullMessage) -> None:
        raise ZeroDivisionError

    await add(js, stream, 2)
    with pytest.raises(ZeroDivisionError):
        await consumer.consume().run(fail)
    assert (await consumer.info()).num_waiting == 0


async def test_stopping_ends_a_reader_who_waits(consumer: Consumer) -> None:
    async with anyio.create_task_group() as group:
        messages = consumer.consume()
        group.start_soon(messages.run, print)  # type: ignore[arg-type]
        await waiting(consumer, 1)
        await messages.stop()
    await waiting(consumer, 0)


async def test_a_consumer_that_is_deleted_ends_it_after_what_came(
    js: JetStream, stream: Stream, consumer: Consumer
) -> None:
    await add(js, stream, 2)
    async with consumer.consume() as messages:
        assert await take(js, messages, 1) == [1]
        while (await consumer.info()).delivered_stream < 2:
            await anyio.lowlevel.checkpoint()
        await consumer.delete()
        assert await take(js, messages, 1) == [2]
        with pytest.raises(ConsumerDeletedError):
            await anext(messages)


async def test_it_goes_on_after_its_connection_was_cut(
    js: JetStream, stream: Stream, lossy: Consumer, proxy: Proxy
) -> None:
    got: set[int] = set()
    async with lossy.consume(max_messages=10) as messages:
        for turn in range(3):
            await proxy.cut()
            await add(js, stream, 20)
            while len(got) < 20 * (turn + 1):
                got.update(await take(js, messages, 1))
    assert got == set(range(1, 61))


@pytest.mark.parametrize(("cut", "with_its_stream"), [(True, False), (False, False), (True, True)])
async def test_one_who_wants_it_is_told_that_the_consumer_went_unnoticed(
    stream: Stream, lossy: Consumer, proxy: Proxy, cut: bool, with_its_stream: bool
) -> None:
    proxy.lose = lambda frame: frame.headers.startswith(b"NATS/1.0 409")
    async with lossy.consume(idle_heartbeat=0.5, end_when_gone=True) as messages:
        await waiting(lossy, 1)
        await (stream.delete() if with_its_stream else stream.delete_consumer(lossy.name))
        if cut:
            await proxy.cut()
        with anyio.fail_after(60), pytest.raises(ConsumerDeletedError):
            await anext(messages)


async def test_a_consumer_that_is_there_ends_nothing(
    js: JetStream, stream: Stream, lossy: Consumer, proxy: Proxy
) -> None:
    async with lossy.consume(end_when_gone=True) as messages:
        await waiting(lossy, 1)
        await proxy.cut()
        await add(js, stream, 1)
        assert await take(js, messages, 1) == [1]


async def test_missed_heartbeats_warn_and_pull_again(
    js: JetStream, stream: Stream, lossy: Consumer, proxy: Proxy
) -> None:
    told: list[PullWarning] = []
    proxy.lose = lambda frame: frame.headers.startswith(b"NATS/1.0 1")
    async with lossy.consume(idle_heartbeat=0.5, on_warning=told.append) as messages:
        while not told:
            await anyio.lowlevel.checkpoint()
        await add(js, stream, 1)
        assert await take(js, messages, 1) == [1]
    assert told[0].event == "pull_heartbeats_missed"


# -- fetch and next ----------------------------------------------------------------------------------------------------


async def test_fetch_ends_when_all_came_or_time_is_over(js: JetStream, stream: Stream, consumer: Consumer) -> None:
    await add(js, stream, 7)
    assert [message.stream_sequence async for message in consumer.fetch(5)] == [1, 2, 3, 4, 5]
    assert [message.stream_sequence async for message in consumer.fetch(5, expires=2)] == [6, 7]
    assert [message async for message in consumer.fetch(5, expires=0.05)] == []


async def test_fetch_of_bytes_ends_before_what_does_not_fit(js: JetStream, stream: Stream, consumer: Consumer) -> None:
    await add(js, stream, 10, size=300)
    got = [message.stream_sequence async for message in consumer.fetch(max_bytes=1000, expires=20)]
    assert got == [1, 2]  # each has 300 bytes, its subject, and an ack subject of about 60
    got = [message.stream_sequence async for message in consumer.fetch(max_bytes=100, expires=20)]
    assert got == []


async def test_fetch_of_messages_and_bytes_ends_with_the_first_limit(
    js: JetStream, stream: Stream, consumer: Consumer
) -> None:
    await add(js, stream, 10, size=300)
    got = [message.stream_sequence async for message in consumer.fetch(2, max_bytes=5000, expires=20)]
    assert got == [1, 2]
    got = [message.stream_sequence async for message in consumer.fetch(5, max_bytes=1000, expires=20)]
    assert got == [3, 4]


async def test_next_is_one_message_or_none(js: JetStream, stream: Stream, consumer: Consumer) -> None:
    assert await consumer.next(expires=0.05) is None
    await add(js, stream, 2)
    for expected in (1, 2):
        message = await consumer.next()
        assert message is not None
        assert message.stream_sequence == expected


async def test_a_batch_that_is_left_gives_back_the_rest(js: JetStream, stream: Stream, consumer: Consumer) -> None:
    await add(js, stream, 3)
    async with consumer.fetch(3) as batch:
        assert await take(js, batch, 1) == [1]
    async with consumer.fetch(2, expires=20) as batch:
        assert sorted(await take(js, batch, 2)) == [2, 3]


async def test_a_consumer_that_is_not_there_is_told_from_one_that_is_empty(consumer: Consumer) -> None:
    await consumer.delete()
    with pytest.raises(NoRespondersError):
        await consumer.next()


async def test_fetch_belongs_to_a_group(js: JetStream, stream: Stream) -> None:
    wanted = {"name": "g", "ack_policy": "explicit", "priority_groups": ["jobs"], "priority_policy": "overflow"}
    consumer = await stream.create_consumer(wanted)
    await add(js, stream, 2)
    assert await consumer.next(group="jobs", min_pending=3, expires=0.1) is None
    await add(js, stream, 1)
    message = await consumer.next(group="jobs", min_pending=3)
    assert message is not None
    assert message.stream_sequence == 1


async def test_consume_keeps_its_pin_and_another_takes_over(js: JetStream, stream: Stream) -> None:
    wanted = {"name": "p", "ack_policy": "explicit", "priority_groups": ["g"], "priority_policy": "pinned_client"}
    consumer = await stream.create_consumer(wanted)
    pins: list[str] = []
    await add(js, stream, 100)
    async with consumer.consume(max_messages=4, group="g", on_pinned=pins.append) as first:
        assert await take(js, first, 90) == list(range(1, 91))
        assert len(pins) == 1
        assert (await consumer.info()).priority_groups[0].pinned_client_id == pins[0]
        async with consumer.consume(max_messages=4, group="g", on_pinned=pins.append) as second:
            await waiting(consumer, 1)
            await first.stop()
            await consumer.unpin("g")
            got: set[int] = set()
            while len(got) < 10:
                got.update(await take(js, second, 1))
            assert got == set(range(91, 101))
    assert len(set(pins)) == 2

"""The ordered consumer: each message once and in order, from any start, within its bounds, with nothing left behind."""

import resource
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from rebaser_client.jetstream import ApiError, JetStream, NoAnswerError, OrderedConsumer
from rebaser_client.jetstream.errors import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from rebaser_core.errors import ConfigError
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.ordered import count_consumers, fill, ordered_stream, read

pytestmark = pytest.mark.anyio

MANY = 300
HEARTBEAT = 0.5  # seconds; silence is noticed after two of them


@pytest.fixture
async def stream(js: JetStream, subjects: Subjects) -> AsyncIterator[str]:
    async with ordered_stream(js, subjects) as name:
        yield name


async def stored_at(js: JetStream, stream: str, sequence: int) -> datetime:
    """Return when a message was stored, rounded down to a microsecond."""
    async with OrderedConsumer(js, stream, f"{stream}.>", start=sequence) as consumer:
        message = await anext(consumer)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=message.timestamp_ns // 1000)


def peak_memory() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def test_who_leaves_hears_nothing_more_and_the_server_forgets_the_consumer(js: JetStream, stream: str) -> None:
    with anyio.fail_after(60):
        async with OrderedConsumer(js, stream, f"{stream}.k") as consumer:
            assert await count_consumers(js, stream) == 1
            consumer.close_soon()
            await js.publish(f"{stream}.k", b"late")
            while await count_consumers(js, stream):
                await anyio.lowlevel.checkpoint()
            assert consumer.pending == 0


async def test_one_that_was_closed_leaves_nothing_with_the_connection(js: JetStream, stream: str) -> None:
    """A server creates and closes such consumers as long as it runs."""
    connection = js.connection

    def kept() -> list[int]:
        return [
            len(some)
            for some in (connection._on_tick, connection._on_reconnect, connection._on_close, connection._subscriptions)
        ]

    before = kept()
    async with OrderedConsumer(js, stream, f"{stream}.>"):
        assert kept() == [count + 1 for count in before]
    assert kept() == before


async def test_messages_come_in_order_with_their_numbers(js: JetStream, stream: str) -> None:
    await js.publish(f"{stream}.k", b"first", {"X-A": "1"})
    await js.publish(f"{stream}.other", b"no")
    await js.publish(f"{stream}.k", b"second")
    async with OrderedConsumer(js, stream, f"{stream}.k") as consumer:
        one, two = await anext(consumer), await anext(consumer)
    assert (one.subject, one.data, one.headers, one.stream_sequence) == (f"{stream}.k", b"first", {"X-A": "1"}, 1)
    assert (two.data, two.headers, two.stream_sequence, two.consumer_sequence) == (b"second", {}, 3, 2)
    assert one.timestamp_ns <= two.timestamp_ns
    assert (one.pending, two.pending) == (1, 0)


async def test_take_keeps_to_its_bounds_but_always_gives_one(js: JetStream, stream: str) -> None:
    for _ in range(5):
        await js.publish(f"{stream}.k", b"x" * 100)
    async with OrderedConsumer(js, stream, f"{stream}.k") as consumer:
        while consumer.pending < 5:
            await anyio.lowlevel.checkpoint()
        assert len(consumer.take(2)) == 2
        assert len(consumer.take(10, max_bytes=50)) == 1
        assert len(consumer.take(10, max_bytes=250)) == 2
        assert consumer.take(10) == []
        assert consumer.pending == 0


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ("all", [0, 1, 2, 9]),
        (2, [1, 2, 9]),
        (7, []),
        ("last", [2, 9]),
        ("new", [9]),
        (timedelta(), [1, 2, 9]),
        (-timedelta(days=1), [0, 1, 2, 9]),
        (timedelta(days=1), [9]),
    ],
)
async def test_each_start_begins_where_it_says(js: JetStream, stream: str, start: Any, wanted: list[int]) -> None:
    """A timedelta means: so long after the second message was stored."""
    await fill(js, stream, 3)
    if isinstance(start, timedelta):
        start += await stored_at(js, stream, 2)
    if start == 7:
        await fill(js, stream, 4, start=3)
        wanted = [6, 9]
    async with OrderedConsumer(js, stream, f"{stream}.k", start=start) as consumer:
        await fill(js, stream, 1, start=9)
        assert await read(consumer, len(wanted)) == wanted


async def test_last_per_subject_gives_the_newest_of_each_then_goes_on(js: JetStream, stream: str) -> None:
    for number, key in enumerate("abab"):
        await fill(js, stream, 1, number, key)
    async with OrderedConsumer(js, stream, f"{stream}.*", start="last_per_subject") as consumer:
        assert await read(consumer, 2) == [2, 3]
        await fill(js, stream, 1, 7, "a")
        assert await read(consumer, 1) == [7]


async def test_last_per_subject_begins_once_though_more_is_stored_while_it_opens(
    js: JetStream, stream: str, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = js.create_consumer

    async def create_after_more(*given: Any) -> Any:
        await fill(js, stream, 1, 7, "a")
        return await create(*given)

    monkeypatch.setattr(js, "create_consumer", create_after_more)
    for number, key in enumerate("abab"):
        await fill(js, stream, 1, number, key)
    async with OrderedConsumer(js, stream, f"{stream}.*", start="last_per_subject") as consumer:
        assert await read(consumer, 2) == [3, 7]
    assert events.named("ordered_reset") == []


async def test_a_caller_chooses_what_adr_17_leaves_open_and_no_more(js: JetStream, stream: str) -> None:
    given = {"description": "mine", "ack_policy": "none", "max_deliver": 1, "mem_storage": True, "flow_control": True}
    async with OrderedConsumer(js, stream, f"{stream}.k", config=given):
        (name,) = (await js.call(f"CONSUMER.NAMES.{stream}"))["consumers"]
        config = (await js.consumer_info(stream, name)).config
    wanted = {
        **given,
        "num_replicas": 1,
        "idle_heartbeat": 5_000_000_000,
        "ack_wait": 22 * 3600 * 1_000_000_000,
        "deliver_policy": "all",
        "filter_subject": f"{stream}.k",
    }
    assert {field: config[field] for field in wanted} == wanted
    assert "durable_name" not in config


@pytest.mark.parametrize(
    "wrong",
    [
        {"durable_name": "d"},
        {"deliver_subject": "s"},
        {"deliver_group": "g"},
        {"num_replicas": 1},
        {"ack_policy": "explicit"},
        {"max_deliver": 2},
        {"flow_control": False},
        {"mem_storage": False},
    ],
)
def test_what_an_ordered_consumer_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    (field,) = wrong
    with pytest.raises(ConfigError, match=field):
        OrderedConsumer(cast("JetStream", SimpleNamespace(connection=None)), "s", "s.k", config=wrong)


async def test_headers_only_leaves_the_payload_out(js: JetStream, stream: str) -> None:
    await js.publish(f"{stream}.k", b"long", {"X-Debt": "3"})
    async with OrderedConsumer(js, stream, f"{stream}.k", headers_only=True) as consumer:
        message = await anext(consumer)
    assert message.data == b""
    assert message.headers["X-Debt"] == "3"


async def test_what_is_needless_counts_as_delivered(js: JetStream, stream: str, events: Events) -> None:
    """The last message in the stream is never needless, so that a reader notices that it has read all of it."""
    await js.publish_all(f"{stream}.k", [b"%d" % number for number in range(MANY)], window=64)
    seen: list[tuple[str, bytes]] = []

    def is_needless(subject: str, raw_headers: bytes) -> bool:
        seen.append((subject, raw_headers))
        return len(seen) != 5

    with anyio.fail_after(60):
        async with OrderedConsumer(
            js, stream, f"{stream}.k", headers_only=True, is_needless=is_needless, idle_heartbeat=HEARTBEAT
        ) as consumer:
            while consumer.delivered < MANY:  # nothing is taken
                await consumer.wait()
                await anyio.lowlevel.checkpoint()
            assert len(seen) == 5, "messages that come while others wait are queued"
            assert [message.stream_sequence for message in consumer.take(MANY)] == list(range(5, MANY + 1))
            await fill(js, stream, 1)
            await consumer.wait()
            assert [message.stream_sequence for message in consumer.take(MANY)] == [MANY + 1]
    assert len(seen) == 5
    assert {subject for subject, _ in seen} == {f"{stream}.k"}
    assert all(b"\r\nNats-Msg-Size: 1\r\n" in raw for _, raw in seen)
    assert not events.named("ordered_reset")


async def test_a_replaced_consumer_does_not_repeat_what_was_needless(js: JetStream, stream: str) -> None:
    await fill(js, stream, MANY)
    seen = 0

    def is_needless(*_: object) -> bool:
        nonlocal seen
        seen += 1
        if seen == MANY // 2:
            consumer.replace("a test")
        return True

    with anyio.fail_after(60):
        async with OrderedConsumer(js, stream, f"{stream}.k", is_needless=is_needless) as consumer:
            assert await read(consumer, 1) == [MANY - 1]
    assert seen == MANY - 1


async def test_a_status_is_recognized_by_its_reply_subject(js: JetStream, stream: str, events: Events) -> None:
    """A publisher can store a message whose first header line looks like a status."""
    status = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
    async with OrderedConsumer(js, stream, f"{stream}.k") as consumer:
        generation = consumer._generation
        assert generation is not None
        consumer._on_message(generation, "inbox", f"$JS.FC.{stream}.1", b"", status)
        assert not consumer.pending
        consumer._on_message(generation, f"{stream}.k", f"$JS.ACK.{stream}.c.1.1.1.1.0", b"x", status)
        assert [message.data for message in consumer.take(2)] == [b"x"]
        consumer._on_message(generation, f"{stream}.k", "elsewhere", b"y", b"NATS/1.0\r\nX: 1\r\n\r\n")
        assert not consumer.pending
        assert len(events.named("ordered_foreign_message")) == 1
    assert not events.named("ordered_reset")


async def test_deletes_and_other_subjects_leave_gaps_that_are_none(js: JetStream, stream: str, events: Events) -> None:
    for number in range(10):
        await fill(js, stream, 1, number)
        await fill(js, stream, 1, number, "other")
    await js.delete_message(stream, 1)
    await js.delete_message(stream, 9)
    async with OrderedConsumer(js, stream, f"{stream}.k") as consumer:
        assert await read(consumer, 8) == [1, 2, 3, 5, 6, 7, 8, 9]
    assert not events.named("ordered_reset")


@pytest.mark.parametrize("bounds", [{"max_count": 10}, {"max_bytes": 200}])
async def test_what_a_slow_reader_has_no_room_for_waits_in_the_stream(
    js: JetStream, stream: str, bounds: Any, events: Events
) -> None:
    await js.publish_all(f"{stream}.k", [b"%020d" % number for number in range(MANY)], window=64)
    async with OrderedConsumer(js, stream, f"{stream}.k", **bounds) as consumer:
        got: list[int] = []
        while not events.named("ordered_reset"):
            await js.stream_info(stream)
        for _ in range(10):
            await js.stream_info(stream)
        assert len(events.named("ordered_reset")) == 1  # no consumer is created until there is room
        while len(got) < MANY:
            await consumer.wait()
            assert consumer.pending <= 10
            got += [int(message.data) for message in consumer.take(3)]
    assert got == list(range(MANY))
    assert await count_consumers(js, stream) == 0


@pytest.mark.parametrize("bounds", [{"max_count": 10}, {"max_bytes": 200}])
async def test_a_slow_reader_that_iterates_gets_all(js: JetStream, stream: str, bounds: Any, events: Events) -> None:
    await js.publish_all(f"{stream}.k", [b"%020d" % number for number in range(MANY)], window=64)
    async with OrderedConsumer(js, stream, f"{stream}.k", **bounds) as consumer:
        while not events.named("ordered_reset"):
            await js.stream_info(stream)
        with anyio.fail_after(60):
            assert [int((await anext(consumer)).data) for _ in range(MANY)] == list(range(MANY))


async def test_a_reader_who_stops_is_not_flooded(js: JetStream, stream: str, events: Events) -> None:
    """The server sends no more than flow control allows, so a large backlog causes no reset."""
    await js.publish_all(f"{stream}.k", [b"%d " % number + b"x" * 60_000 for number in range(MANY)])
    async with OrderedConsumer(js, stream, f"{stream}.k") as consumer:
        await consumer.wait()
        got: list[int] = []
        while len(got) < MANY:
            await consumer.wait()
            assert consumer.pending < MANY // 2
            got += [int(message.data.split()[0]) for message in consumer.take(5)]
            await js.stream_info(stream)  # gives the server time to send what it may
    assert got == list(range(MANY))
    assert not events.named("ordered_reset")


async def test_no_stream_is_an_error_at_once(js: JetStream) -> None:
    with pytest.raises(ApiError) as refused:
        async with OrderedConsumer(js, "nothere", "nothere.k"):
            pass
    assert refused.value.err_code == STREAM_NOT_FOUND


async def test_a_consumer_that_is_refused_leaves_no_subscription(js: JetStream, stream: str) -> None:
    before = list(js.connection._subscriptions)
    with pytest.raises(ApiError):
        async with OrderedConsumer(js, stream, f"{stream}.k", config={"replay_policy": "nonsense"}):
            pass
    assert list(js.connection._subscriptions) == before


async def test_a_consumer_whose_creation_is_not_answered_is_deleted(
    js: JetStream, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its inbox would keep it alive as long as the connection exists."""
    before, create = list(js.connection._subscriptions), js.create_consumer

    async def lose_answer(*given: Any) -> Any:
        await create(*given)
        raise NoAnswerError("no answer")

    monkeypatch.setattr(js, "create_consumer", lose_answer)
    with pytest.raises(NoAnswerError):
        async with OrderedConsumer(js, stream, f"{stream}.k"):
            pass
    assert await count_consumers(js, stream) == 0
    assert list(js.connection._subscriptions) == before


@pytest.mark.parametrize("count", [2000, pytest.param(10_000, marks=pytest.mark.long)])
async def test_thousands_at_once_each_get_their_own(js: JetStream, stream: str, count: int) -> None:
    began, memory = anyio.current_time(), peak_memory()
    got: dict[int, int] = {}
    consumers = [OrderedConsumer(js, stream, f"{stream}.{key}") for key in range(count)]
    tasks = len(anyio.get_running_tasks())

    async def follow(key: int, opened: Callable[[], None]) -> None:
        async with consumers[key] as consumer:
            opened()
            got[key] = (await read(consumer, 1))[0]

    async with anyio.create_task_group() as group:
        for key in range(count):
            ready = anyio.Event()
            group.start_soon(follow, key, ready.set)
            if key % 100 == 99:
                await ready.wait()
        assert len(anyio.get_running_tasks()) <= tasks + count  # those of the readers, and none for the consumers
        print(f"{count} consumers: {anyio.current_time() - began:.1f} s, {peak_memory() - memory:.0f} MiB here")
        for key in range(count):
            await fill(js, stream, 1, start=key, key=str(key))
    print(f"all read and gone after {anyio.current_time() - began:.1f} s")
    assert got == {key: key for key in range(count)}
    assert await count_consumers(js, stream) == 0


async def test_cancelled_while_opening_leaves_no_consumer(
    js: JetStream, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nats-server may execute the deletion before the creation that it got first, if both arrive at the same time. It
    removes such a consumer by itself."""
    overtook: set[str] = set()
    real = js.call

    async def call(subject: str, *args: Any, **named: Any) -> Any:
        try:
            return await real(subject, *args, **named)
        except ApiError as error:
            if error.err_code == CONSUMER_NOT_FOUND:
                overtook.add(subject.rpartition(".")[2])
            raise

    monkeypatch.setattr(js, "call", call)
    for turns in range(6):
        with anyio.CancelScope() as scope:

            async def cancel_after(turns: int, scope: anyio.CancelScope) -> None:
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(cancel_after, turns, scope)
                async with OrderedConsumer(js, stream, f"{stream}.k"):
                    await anyio.sleep_forever()
    assert {consumer.name async for consumer in js.list_consumers(stream)} <= overtook

"""The ordered consumer recovers from every loss: messages, heartbeats, connections, servers, streams."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client.background_context import BackgroundContext
from rebaser_client.jetstream import Connection, JetStream, OrderedConsumer
from rebaser_client.jetstream.infos import StreamInfo
from rebaser_client.jetstream.ordered import requests
from rebaser_client.nats.errors import ClientClosedError, NotAllowed
from rebaser_client.nats.hooks import TICK
from rebaser_core.errors import TransientError
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.nats_proxy import Frame, Proxy
from tests.support.ordered import STREAM, count_consumers, fill, ordered_stream, read

MANY = 300
HEARTBEAT = 0.5  # seconds; silence is noticed after two of them

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stream(js: JetStream, subjects: Subjects) -> AsyncIterator[str]:
    async with ordered_stream(js, subjects) as name:
        yield name


def lose_once(matches: Callable[[Frame], bool]) -> Callable[[Frame], bool]:
    """Lose the first frame for which `matches` returns true."""
    left = [True]

    def lose(frame: Frame) -> bool:
        if left[0] and matches(frame):
            left[0] = False
            return True
        return False

    return lose


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
async def test_last_per_subject_means_the_same_after_a_message_was_lost(
    js: JetStream, lossy: JetStream, proxy: Proxy, stream: str, lost: int
) -> None:
    for number, key in enumerate("abcdabcda"):
        await fill(js, stream, 1, number, key)
    await js.publish(f"{stream}.other.one", b"no")
    proxy.lose = lose_once(lambda frame: frame.delivery and frame.consumer_sequence == lost)
    async with OrderedConsumer(
        lossy, stream, f"{stream}.*", start="last_per_subject", idle_heartbeat=HEARTBEAT
    ) as consumer:
        assert await read(consumer, 4) == [5, 6, 7, 8]
        await fill(js, stream, 3, 20, "a")
        assert await read(consumer, 3) == [20, 21, 22]
    assert await count_consumers(js, stream) == 0


async def test_last_per_subject_leaves_out_nothing_that_came_while_it_was_interrupted(
    js: JetStream, lossy: JetStream, proxy: Proxy, stream: str, events: Events
) -> None:
    for number, key in enumerate("abab"):
        await fill(js, stream, 1, number, key)
    proxy.lose = lambda frame: frame.delivery
    async with OrderedConsumer(
        lossy, stream, f"{stream}.*", start="last_per_subject", idle_heartbeat=HEARTBEAT
    ) as consumer:
        await fill(js, stream, 3, 10, "a")
        await events.wait_for(lambda entry: entry["event"] == "ordered_reset")
        proxy.lose = lambda _: False
        assert await read(consumer, 4) == [3, 10, 11, 12]


LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
LATER = datetime(2200, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("start", ["all", 1, "new", LONG_AGO, LATER])
async def test_a_lost_first_message_is_noticed_by_the_second(
    js: JetStream, lossy: JetStream, proxy: Proxy, stream: str, start: Any
) -> None:
    proxy.lose = lose_once(lambda frame: frame.delivery and frame.consumer_sequence == 1)
    async with OrderedConsumer(lossy, stream, f"{stream}.k", start=start) as consumer:
        await fill(js, stream, MANY)
        assert await read(consumer, MANY) == list(range(MANY))


@pytest.mark.parametrize("start", ["all", 1, "new", "last", "last_per_subject", LONG_AGO, LATER])
async def test_a_lost_only_message_is_noticed_by_a_heartbeat(
    js: JetStream, lossy: JetStream, proxy: Proxy, stream: str, start: Any
) -> None:
    proxy.lose = lose_once(lambda frame: frame.delivery)
    async with OrderedConsumer(lossy, stream, f"{stream}.k", start=start, idle_heartbeat=HEARTBEAT) as consumer:
        await fill(js, stream, 1, start=5)
        assert await read(consumer, 1) == [5]


async def test_any_lost_messages_are_made_good(js: JetStream, lossy: JetStream, proxy: Proxy, stream: str) -> None:
    seen = 0

    def every_hundredth(frame: Frame) -> bool:
        nonlocal seen
        seen += frame.delivery
        return frame.delivery and seen % 100 == 50

    proxy.lose = every_hundredth
    await fill(js, stream, MANY)
    async with OrderedConsumer(lossy, stream, f"{stream}.k", idle_heartbeat=HEARTBEAT) as consumer:
        assert await read(consumer, MANY) == list(range(MANY))


@pytest.mark.parametrize("start", ["new", LATER])
async def test_a_start_is_kept_through_resets_before_the_first_message(
    js: JetStream, lossy: JetStream, proxy: Proxy, stream: str, events: Events, start: Any
) -> None:
    """`new` refers to the time when it was opened, not when its consumer was created again."""
    await fill(js, stream, 3)
    proxy.lose = lambda frame: frame.delivery or frame.heartbeat
    async with OrderedConsumer(lossy, stream, f"{stream}.k", start=start, idle_heartbeat=HEARTBEAT) as consumer:
        await fill(js, stream, 3, start=10)
        await events.wait_for(lambda entry: entry["event"] == "ordered_reset")
        proxy.lose = lambda _: False
        assert await read(consumer, 3) == [10, 11, 12]


@pytest.mark.parametrize("start", ["new", "last"])
async def test_a_start_is_kept_if_a_message_is_missed_before_the_consumer_is_confirmed(
    js: JetStream, lossy: JetStream, proxy: Proxy, stream: str, events: Events, start: Any
) -> None:
    await fill(js, stream, 1)
    await js.stream_info(stream)
    first = 1 if start == "new" else 0
    held: list[Frame] = []
    asked = anyio.Event()

    def lose(frame: Frame) -> bool:
        if b"consumer_create_response" in frame.payload and not held:
            held.append(frame)
            asked.set()
            return True
        return frame.delivery and not events.named("ordered_reset") and int(frame.payload) == first

    async def release() -> None:
        await asked.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(events.wait_for, lambda entry: entry["event"] == "ordered_reset")
            await fill(js, stream, 2, start=1)
        await fill(js, stream, 1, start=3)
        await proxy.say(held[0].raw)

    proxy.lose = lose
    async with anyio.create_task_group() as group:
        group.start_soon(release)
        async with OrderedConsumer(lossy, stream, f"{stream}.k", start=start) as consumer:
            assert await read(consumer, 4 - first) == list(range(first, 4))
    while await count_consumers(js, stream):
        await lossy.connection.wait_connected()


async def test_one_silence_is_one_reset(js: JetStream, stream: str, events: Events) -> None:
    """A new consumer gets as much time as the first one to be heard."""
    async with OrderedConsumer(js, stream, f"{stream}.k", idle_heartbeat=60) as consumer:
        # Checks, and the number that may occur by themselves meanwhile.
        silence, real = consumer._max_silent_checks, 2
        assert silence * consumer._check_every * TICK == 2 * 60
        with anyio.fail_after(60):
            for resets in (1, 2):
                for _ in range(silence - real):
                    consumer._tick()
                assert len(events.named("ordered_reset")) == resets - 1
                for _ in range(real):
                    consumer._tick()
                while await count_consumers(js, stream) != 1 or consumer._replacing is not None:
                    await anyio.lowlevel.checkpoint()
                assert len(events.named("ordered_reset")) == resets
    assert {entry["reason"] for entry in events.named("ordered_reset")} == {"heartbeats were missed"}


async def test_a_consumer_that_takes_long_to_create_is_not_replaced_meanwhile(
    js: JetStream, stream: str, monkeypatch: pytest.MonkeyPatch, events: Events
) -> None:
    create, asked, go_on = js.create_consumer, anyio.Event(), anyio.Event()

    async def create_late(*given: Any) -> Any:
        asked.set()
        await go_on.wait()
        return await create(*given)

    async with OrderedConsumer(js, stream, f"{stream}.k", idle_heartbeat=1) as consumer:
        monkeypatch.setattr(js, "create_consumer", create_late)
        consumer._reset("test")
        with anyio.fail_after(60):
            await asked.wait()
            for _ in range(20):
                consumer._tick()
            assert [entry["reason"] for entry in events.named("ordered_reset")] == ["test"]
            go_on.set()
            await fill(js, stream, 1)
            assert await read(consumer, 1) == [0]


async def test_missed_heartbeats_start_a_new_consumer(
    js: JetStream, lossy: JetStream, proxy: Proxy, stream: str, events: Events
) -> None:
    async with OrderedConsumer(lossy, stream, f"{stream}.k", idle_heartbeat=HEARTBEAT) as consumer:
        await fill(js, stream, 2)
        assert await read(consumer, 2) == [0, 1]
        proxy.lose = lambda frame: frame.delivery or frame.heartbeat
        await fill(js, stream, 2, start=2)
        await events.wait_for(lambda entry: "heartbeats" in entry.get("reason", ""))
        proxy.lose = lambda _: False
        assert await read(consumer, 2) == [2, 3]
    assert await count_consumers(js, stream) == 0


async def test_a_deleted_consumer_is_replaced(js: JetStream, stream: str) -> None:
    async with OrderedConsumer(js, stream, f"{stream}.k", idle_heartbeat=HEARTBEAT) as consumer:
        await fill(js, stream, 2)
        assert await read(consumer, 2) == [0, 1]
        names = (await js.call(f"CONSUMER.NAMES.{stream}"))["consumers"]
        for name in names:
            await js.delete_consumer(stream, name)
        await fill(js, stream, 2, start=2)
        assert await read(consumer, 2) == [2, 3]


async def test_a_stream_that_went_back_is_told(js: JetStream, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens after a restore from a backup: the next messages would have sequences that were read already."""
    await fill(js, stream, 3)
    async with OrderedConsumer(js, stream, f"{stream}.k") as consumer:
        assert await read(consumer, 3) == [0, 1, 2]
        info = await js.stream_info(stream)

        async def earlier(_: JetStream, __: str) -> StreamInfo:
            return replace(info, last_sequence=2)

        monkeypatch.setattr(JetStream, "stream_info", earlier)
        consumer._reset("as after a reconnect")
        with anyio.fail_after(60), pytest.raises(TransientError, match="set back to message 2"):
            await consumer.wait()


async def test_cuts_of_the_connection_lose_and_double_nothing(
    js: JetStream, lossy: JetStream, proxy: Proxy, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "INACTIVE", 3600)  # the server removes no consumers by itself
    count = 20_000
    await fill(js, stream, count)
    async with OrderedConsumer(lossy, stream, f"{stream}.k") as consumer:
        got: list[int] = []
        cuts = 0
        while len(got) < count:
            await consumer.wait()
            got += [int(message.data) for message in consumer.take(500)]
            if len(got) // 4000 > cuts:
                cuts += 1
                await proxy.cut()
    assert got == list(range(count))
    assert cuts >= 4
    while await count_consumers(js, stream):  # a consumer of a broken connection is deleted once there is a connection
        await lossy.connection.wait_connected()


async def test_a_restarted_server_is_followed(own_nats: EmbeddedNats) -> None:
    async with Connection.connect(own_nats.url) as connection:
        js = JetStream(connection)
        await js.ensure_stream({**STREAM, "name": "s", "subjects": ["s.>"]})
        async with OrderedConsumer(js, "s", "s.k") as consumer:
            await fill(js, "s", 5)
            assert await read(consumer, 3) == [0, 1, 2]
            await own_nats.kill()
            await own_nats.start()
            await connection.wait_connected()
            await fill(js, "s", 5, start=5)
            assert await read(consumer, 7) == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("recreate", [False, True])
async def test_a_stream_that_is_gone_ends_the_consumer_after_what_was_queued(
    js: JetStream, stream: str, recreate: bool
) -> None:
    await fill(js, stream, 2)
    async with OrderedConsumer(js, stream, f"{stream}.k", idle_heartbeat=HEARTBEAT) as consumer:
        assert await read(consumer, 1) == [0]
        await consumer.wait()
        await js.call(f"STREAM.DELETE.{stream}")
        if recreate:
            await js.ensure_stream({**STREAM, "name": stream, "subjects": [f"{stream}.>"]})
            await fill(js, stream, 5)
        assert await read(consumer, 1) == [1]
        with pytest.raises(TransientError) as lost:
            await consumer.wait()
        assert lost.value.code == "stream_lost"


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("the connection is closed", ClientClosedError),
        ("NATS does not allow it any more", NotAllowed),
        ("something is broken", TransientError),
        ("the stream is gone", TransientError),
    ],
)
async def test_whatever_ends_a_consumer_is_told_to_who_waits(
    nats_url: str, js: JetStream, stream: str, end: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = anyio.Event()
    refusals = {"NATS does not allow it any more": NotAllowed("publish", "any"), "something is broken": KeyError()}

    async def refuse(*_: object) -> None:
        raise refusals[end]

    async def wait() -> None:
        with pytest.raises(error):
            await consumer.wait()

    background = BackgroundContext(Connection.connect(nats_url))  # any task may close it
    connection = await background.open()
    async with (
        OrderedConsumer(JetStream(connection), stream, f"{stream}.*", on_ready=told.set) as consumer,
        anyio.create_task_group() as group,
    ):
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        if end == "the connection is closed":
            await background.close()
        elif end == "the stream is gone":
            await js.delete_stream(stream)
        else:
            monkeypatch.setattr(requests.ConsumerRequests, "create", refuse)
            consumer._reset("test")
        with anyio.fail_after(60):
            await told.wait()
    await background.close()

"""Pulling with credits, whatever happens to a pull."""

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream, PullConsumer, PullMessage
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TASKS_CONSUMER, TASKS_GROUP, TopologyOptions, tasks_consumer
from tests.conftest import Events
from tests.support.nats_proxy import Frame, Proxy

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def add(js: JetStream, subjects: Subjects, *names: str) -> None:
    for name in names:
        await js.publish(f"{subjects.root}.tasks.w.{name}.process", b"")


async def take(js: JetStream, pull: PullConsumer, count: int) -> list[str]:
    """Take the next `count` tasks, ack each, and return their change sets."""
    names = []
    for _ in range(count):
        message = await anext(pull)
        await js.ack_sync(message)
        names.append(message.subject.split(".")[-2])
    return names


async def waiting(js: JetStream, subjects: Subjects, count: int) -> None:
    """Return when the server has `count` waiting pulls."""
    while (await js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER)).num_waiting != count:
        await anyio.lowlevel.checkpoint()


def tasks(js: JetStream, subjects: Subjects, **options: float) -> PullConsumer:
    return PullConsumer(js, subjects.tasks_stream, TASKS_CONSUMER, group=TASKS_GROUP, **options)  # type: ignore[arg-type]


async def test_no_more_comes_than_there_is_credit_for(js: JetStream, subjects: Subjects) -> None:
    await add(js, subjects, "a", "b", "c")
    async with tasks(js, subjects) as pull:
        await js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER)
        assert pull.outstanding == 0
        pull.add_credit(2)
        assert await take(js, pull, 2) == ["a", "b"]
        info = await js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER)
        assert (info.num_pending, info.num_waiting, pull.outstanding) == (1, 0, 0)
        pull.add_credit()
        assert await take(js, pull, 1) == ["c"]


async def test_a_puller_that_was_closed_leaves_nothing_with_the_connection(js: JetStream, subjects: Subjects) -> None:
    connection = js.connection

    def kept() -> list[int]:
        return [len(some) for some in (connection._on_tick, connection._on_reconnect, connection._subscriptions)]

    before = kept()
    async with tasks(js, subjects):
        assert kept() == [count + 1 for count in before]
    assert kept() == before


async def test_a_message_knows_its_number_and_how_often_it_came(js: JetStream, subjects: Subjects) -> None:
    await add(js, subjects, "a")
    async with tasks(js, subjects) as pull:
        pull.add_credit(2)
        first = await anext(pull)
        await js.nak(first)
        second = await anext(pull)
        assert (first.stream_sequence, first.delivered, first.data) == (1, 1, b"")
        assert (second.stream_sequence, second.delivered) == (1, 2)
        await js.ack_sync(second)


async def test_a_nak_with_delay_comes_later_than_what_waits(js: JetStream, subjects: Subjects) -> None:
    await add(js, subjects, "a", "b")
    async with tasks(js, subjects) as pull:
        pull.add_credit(3)
        await js.nak(await anext(pull), 0.1)
        assert await take(js, pull, 2) == ["b", "a"]


async def test_what_is_terminated_never_comes_again(js: JetStream, subjects: Subjects) -> None:
    await add(js, subjects, "a")
    async with tasks(js, subjects) as pull:
        pull.add_credit(2)
        await js.term(await anext(pull), "unreadable")
        await add(js, subjects, "b")
        assert await take(js, pull, 1) == ["b"]
    assert (await js.stream_info(subjects.tasks_stream)).messages == 0


async def test_an_expired_pull_is_followed_by_another(
    js: JetStream, lossy: JetStream, proxy: Proxy, subjects: Subjects, events: Events
) -> None:
    expired = anyio.Event()

    def watch(frame: Frame) -> bool:
        if frame.headers.startswith(b"NATS/1.0 408"):
            expired.set()
        return False

    proxy.lose = watch
    async with tasks(lossy, subjects, expires=0.3, idle_heartbeat=0.1) as pull:
        pull.add_credit(3)
        await expired.wait()
        await add(js, subjects, "a", "b", "c")
        assert await take(js, pull, 3) == ["a", "b", "c"]
    assert not events.named("pull_refused")


async def test_missed_heartbeats_make_it_pull_again(
    js: JetStream, lossy: JetStream, proxy: Proxy, subjects: Subjects, events: Events
) -> None:
    proxy.lose = lambda frame: frame.headers.startswith(b"NATS/1.0 ")
    async with tasks(lossy, subjects, idle_heartbeat=0.5) as pull:
        pull.add_credit(2)
        await events.wait_for(lambda entry: entry["event"] == "pull_heartbeats_missed")
        await waiting(js, subjects, 1)  # the old pull has ended for good
        await add(js, subjects, "a", "b", "c")
        assert await take(js, pull, 2) == ["a", "b"]
        assert (await js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER)).num_pending == 1


async def test_a_consumer_that_is_deleted_and_made_again_is_pulled_from_again(
    js: JetStream, subjects: Subjects, events: Events
) -> None:
    async with tasks(js, subjects) as pull:
        pull.add_credit(2)
        await waiting(js, subjects, 1)
        async with anyio.create_task_group() as group:
            group.start_soon(events.wait_for, lambda entry: entry.get("status") == "503")
            await js.delete_consumer(subjects.tasks_stream, TASKS_CONSUMER)
        await js.ensure_consumer(subjects.tasks_stream, tasks_consumer(subjects, TopologyOptions()))
        await add(js, subjects, "a", "b")
        assert await take(js, pull, 2) == ["a", "b"]
    assert {entry["status"] for entry in events.named("pull_refused")} == {"409", "503"}


async def test_a_cut_connection_costs_no_credit(
    js: JetStream, lossy: JetStream, proxy: Proxy, subjects: Subjects
) -> None:
    async with tasks(lossy, subjects) as pull:
        pull.add_credit(3)
        await waiting(js, subjects, 1)
        for name in ("a", "b", "c"):
            reconnected = anyio.Event()
            forget = lossy.connection.on_reconnect(reconnected.set)
            await proxy.cut()
            await reconnected.wait()
            forget()
            await add(js, subjects, name)
            assert await take(js, pull, 1) == [name]
        assert pull.outstanding == 0


async def test_a_restarted_server_is_pulled_from(own_nats: EmbeddedNats, subjects: Subjects) -> None:
    async with Connection.connect(own_nats.url) as connection:
        js = JetStream(connection)
        await ensure_topology(js, subjects, TopologyOptions())
        async with tasks(js, subjects) as pull:
            pull.add_credit(2)
            await waiting(js, subjects, 1)
            await own_nats.kill()
            await own_nats.start()
            await connection.wait_connected()
            await add(js, subjects, "a", "b")
            assert await take(js, pull, 2) == ["a", "b"]


async def test_two_share_the_work(js: JetStream, subjects: Subjects) -> None:
    names = [f"c{number}" for number in range(200)]
    got: list[str] = []

    async def work(pull: PullConsumer) -> None:
        async for message in pull:
            got.append(message.subject.split(".")[-2])
            await js.ack_sync(message)
            pull.add_credit()
            if len(got) == len(names):
                group.cancel_scope.cancel()

    async with tasks(js, subjects) as one, tasks(js, subjects) as two, anyio.create_task_group() as group:
        for pull in (one, two):
            pull.add_credit(5)
            group.start_soon(work, pull)
        await add(js, subjects, *names)
    assert sorted(got) == sorted(names)


async def test_stopping_gives_back_what_was_not_taken_and_ends_the_iteration(js: JetStream, subjects: Subjects) -> None:
    await add(js, subjects, "a", "b", "c")
    async with tasks(js, subjects) as first, tasks(js, subjects) as second:
        first.add_credit(10)
        mine = await anext(first)
        await first.stop()
        assert [message async for message in first] == []
        second.add_credit(10)
        # The ack wait is 10 s: without a nak, they would not be redelivered for that long.
        messages = [await anext(second) for _ in range(2)]
        assert sorted(message.subject.split(".")[-2] for message in messages) == ["b", "c"]
        assert {message.delivered for message in messages} <= {1, 2}
        await js.nak(mine)
        assert (await anext(second)).delivered == 2
        await waiting(js, subjects, 1)


async def test_stopping_ends_a_reader_who_waits(js: JetStream, subjects: Subjects) -> None:
    got: list[PullMessage] = []

    async def read(pull: PullConsumer) -> None:
        got.extend([message async for message in pull])

    async with tasks(js, subjects) as pull, anyio.create_task_group() as group:
        pull.add_credit(1)
        group.start_soon(read, pull)
        await waiting(js, subjects, 1)
        await pull.stop()
    assert got == []
    await waiting(js, subjects, 0)

"""The guarantees of the client on a cluster of three nodes, whichever node leads or is down."""

import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import pytest

from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.blobs.nats import JetStreamBlobs
from rebaser_client.jetstream import ApiError, Connection, Consumer, JetStream, Messages, OrderedConsumer
from rebaser_client.jetstream.errors import WRONG_LAST_SEQUENCE
from rebaser_client.nats.errors import NotConnectedError
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions, streams
from tests.support.cluster import NODES, Cluster

pytestmark = pytest.mark.anyio

STREAM = {"retention": "limits", "storage": "file", "num_replicas": 3, "max_consumers": -1, "allow_direct": False}
END = -1  # the last number that is written
BOUND = 240  # seconds; a bound against hanging


@pytest.fixture
async def clustered(cluster: Cluster) -> AsyncIterator[JetStream]:
    """JetStream on all nodes, with a stream `s`."""
    async with Connection.connect(cluster.url) as connection:
        js = JetStream(connection, timeout=5.0)
        await js.ensure_stream({**STREAM, "name": "s", "subjects": ["s.>"]})
        await cluster.leader_of("s")
        yield js


async def append(js: JetStream, subject: str, number: int, last: int) -> int:
    """Append with compare-and-set, as to a log, and repeat until the result is known. Return the sequence."""
    while True:
        try:
            return (await js.publish(subject, b"%d" % number, expected_last_subject_sequence=last)).sequence
        except ApiError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                stored = await js.next("s", subject, last + 1)
                assert stored is not None
                assert int(stored.data) == number
                return stored.sequence
        except TransientError:
            pass
        await anyio.sleep(0.1)


async def test_reads_and_writes_are_what_they_are_on_one_server(clustered: JetStream) -> None:
    js = clustered
    one = await js.publish("s.a", b"1", {"X-A": "1"}, expected_last_subject_sequence=0)
    two = await js.publish("s.a", b"2", expected_last_subject_sequence=one.sequence)
    with pytest.raises(ApiError) as refused:
        await js.publish("s.a", b"3", expected_last_subject_sequence=one.sequence)
    assert refused.value.err_code == WRONG_LAST_SEQUENCE
    await js.publish_all("s.b", [b"x"] * 100, window=32)
    last, first = await js.last("s", "s.a"), await js.next("s", "s.a", 1)
    assert last is not None
    assert first is not None
    assert (last.sequence, last.data, first.headers["X-A"]) == (two.sequence, b"2", "1")
    await js.delete_message("s", one.sequence)
    await js.delete_message("s", one.sequence)
    assert await js.get("s", one.sequence) is None
    assert await js.purge("s", "s.b", keep=10) == 90
    assert await js.subject_counts("s", "s.>") == {"s.a": 1, "s.b": 10}
    assert (await js.publish("s.c", b"", {"Nats-Msg-Id": "m"})).duplicate is False
    assert (await js.publish("s.c", b"", {"Nats-Msg-Id": "m"})).duplicate is True


async def test_what_a_server_sets_up_works_from_each_node(cluster: Cluster) -> None:
    subjects, options = Subjects(f"t{secrets.token_hex(4)}"), TopologyOptions(replicas=3)
    key = ChangeSetKey("w", "c")
    addresses: set[str] = set()
    for url in cluster.urls:
        async with Connection.connect(url) as connection:
            js = JetStream(connection)
            await ensure_topology(js, subjects, options)
            for stream in streams(subjects, options):
                await cluster.leader_of(stream["name"])
            assert await publish_task(js, subjects, key) is (not addresses)
            blobs = JetStreamBlobs(js, subjects.blobs_bucket)
            address = await blobs.put(b"y" * 300_000)
            addresses.add(address)
            assert await blobs.get(address, max_bytes=1_000_000) == b"y" * 300_000
    assert len(addresses) == 1
    async with Connection.connect(cluster.url) as connection:
        info = await JetStream(connection).stream_info(subjects.tasks_stream)
    assert (info.messages, info.config["num_replicas"]) == (1, 3)


@pytest.mark.long  # similar to the next test, and to the acceptance test with a killed leader
async def test_whichever_way_the_leader_goes_a_log_and_its_readers_go_on(
    cluster: Cluster, clustered: JetStream
) -> None:
    js = clustered
    written = 0
    stop = anyio.Event()

    async def write() -> None:
        nonlocal written
        last = 0
        while not stop.is_set():
            last = await append(js, "s.log", written, last)
            written += 1
        await append(js, "s.log", END, last)

    async def progress() -> None:
        """Return when more was written and read."""
        target = written + 50
        while min(written, *map(len, got)) < target:  # noqa: ASYNC110 - the readers tell nobody
            await anyio.sleep(0.05)

    got: list[list[int]] = [[] for _ in range(5)]

    async def read(into: list[int]) -> None:
        async with OrderedConsumer(js, "s", "s.log", idle_heartbeat=0.5) as consumer:
            while (number := int((await anext(consumer)).data)) != END:
                into.append(number)

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as group:
            group.start_soon(write)
            for numbers in got:
                group.start_soon(read, numbers)
            await progress()
            assert await cluster.stepdown("s") in NODES
            await progress()
            killed = await cluster.leader_of("s")
            await cluster.kill(killed)
            await progress()
            assert await cluster.leader_of("s") != killed
            await cluster.start(killed)
            stopped = await cluster.leader_of("s")
            await cluster.stop(stopped)
            await progress()
            await cluster.start(stopped)
            await progress()
            stop.set()
        while (await js.stream_info("s")).consumers:  # noqa: ASYNC110 - those of a lost connection go with the next
            await anyio.sleep(0.05)
    assert got == [list(range(written))] * len(got)


async def test_consume_misses_nothing_while_leaders_go(cluster: Cluster, clustered: JetStream) -> None:
    """The leaders of the stream and of a consumer are deposed; then the stream's leader is killed and restarted."""
    js = clustered
    written = 0
    stop, stopped = anyio.Event(), anyio.Event()
    forms: dict[str, Any] = {
        "messages": {"max_messages": 50},
        "bytes": {"max_bytes": 5_000},
        "one": {"max_messages": 1},
    }
    got: dict[str, set[int]] = {name: set() for name in forms}

    async def write() -> None:
        nonlocal written
        last = 0
        while not stop.is_set():
            last = await append(js, "s.log", written, last)
            written += 1
        stopped.set()

    async def progress() -> None:
        """Return when all present messages were read, and more were written."""
        target = written + 50
        while any(not got[name].issuperset(range(target)) for name in forms):  # noqa: ASYNC110 - they tell nobody
            await anyio.sleep(0.05)

    consumers: dict[str, Consumer] = {}
    readers: list[Messages] = []
    for name, limit in forms.items():
        wanted = {"durable_name": name, "ack_policy": "explicit", "ack_wait": 2_000_000_000}
        consumers[name] = await js.create_consumer("s", wanted)
        readers.append(consumers[name].consume(**limit, expires=5.0, idle_heartbeat=0.5))

    async def read(messages: Messages, into: set[int]) -> None:
        async for message in messages:
            into.add(int(message.data))
            with suppress(NotConnectedError):  # the client connects again
                await js.ack(message)

    async def left() -> bool:
        try:
            infos = [await consumer.info() for consumer in consumers.values()]
        except TransientError:
            return True
        return any(info.num_pending or info.num_ack_pending for info in infos)

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as group:
            group.start_soon(write)
            for name, messages in zip(forms, readers, strict=True):
                group.start_soon(read, messages, got[name])
            await progress()
            assert await cluster.stepdown("s") in NODES
            await js.call("CONSUMER.LEADER.STEPDOWN.s.messages")
            await progress()
            killed = await cluster.leader_of("s")
            await cluster.kill(killed)
            await progress()
            await cluster.start(killed)
            await progress()
            stop.set()
            await stopped.wait()
            while await left():  # noqa: ASYNC110 - it tells nobody
                await anyio.sleep(0.05)
            for messages in readers:
                await messages.stop()
    assert got == {name: set(range(written)) for name in forms}

"""Tests what `rebaser status` shows of streams: limits, message sizes, durability; and the acks of tasks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rebaser_client import RebaserClient
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.admin.stream_usage import (
    DurabilityStatus,
    MessageCost,
    TasksStatus,
    durability_of,
    read_streams,
    read_tasks,
)
from rebaser_client.jetstream import Connection, JetStream, NoAnswerError, NoRespondersError, PullConsumer
from rebaser_client.jetstream.advisories import AckSample, watch_acks
from rebaser_core.errors import ConfigError, TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import MAX_SWEEP_BYTES, TASKS_CONSUMER, TASKS_GROUP, Durability, TopologyOptions
from tests.support.cluster import Cluster

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "cs")


@pytest.mark.parametrize(("durability", "storage"), [("memory", "memory"), ("fast", "file"), ("safe", "file")])
async def test_streams_are_as_durable_as_the_word_says(
    client: RebaserClient, js: JetStream, subjects: Subjects, durability: Durability, storage: str
) -> None:
    """A single server cannot prove that it is `safe`: only one copy on disk is visible."""
    await ensure_topology(js, subjects, TopologyOptions(durability=durability))
    found = await client.status()
    assert {(one.storage, one.copies, one.copies_behind) for one in found.streams} == {(storage, 1, 0)}
    assert found.durability == DurabilityStatus("memory" if durability == "memory" else "fast", storage, 1)


async def test_in_a_cluster_safe_is_three_copies(cluster: Cluster, subjects: Subjects) -> None:
    async with Connection.connect(cluster.url) as connection:
        js = JetStream(connection)
        await ensure_topology(js, subjects, TopologyOptions(durability="fast"))
        streams = await read_streams(js, subjects)
        assert durability_of(streams) == DurabilityStatus("fast", "file", 1)
        await ensure_topology(js, subjects, TopologyOptions(durability="safe"))
        with anyio.fail_after(200):  # the new copies have to catch up, and may elect a leader
            while True:
                with suppress(TransientError):
                    streams = await read_streams(js, subjects)
                    if len(streams) == 6 and not any(one.copies_behind for one in streams):
                        break
                await anyio.sleep(0.1)
        assert durability_of(streams) == DurabilityStatus("safe", "file", 3)


async def test_streams_that_are_there_stay_as_they_are_unless_told(js: JetStream, subjects: Subjects) -> None:
    await ensure_topology(js, subjects, TopologyOptions(durability="memory"))
    await ensure_topology(js, subjects, TopologyOptions())
    assert {one.storage for one in await read_streams(js, subjects)} == {"memory"}
    with pytest.raises(ConfigError, match="storage is 'memory', wanted 'file'"):
        await ensure_topology(js, subjects, TopologyOptions(durability="safe"))


@pytest.mark.parametrize("durability", ["memory", "fast"])
@pytest.mark.parametrize("headers", [None, {"X-Some": "thing"}])
async def test_what_a_message_costs_is_what_the_server_counts(
    js: JetStream, subjects: Subjects, durability: Durability, headers: dict[str, str] | None
) -> None:
    await ensure_topology(js, subjects, TopologyOptions(durability=durability))
    await js.publish(subjects.commits(KEY), bytes(1000), headers)
    [commits] = [one for one in await read_streams(js, subjects) if one.name == subjects.commits_stream]
    assert commits.newest is not None
    assert (commits.newest.payload, commits.newest.subject) == (1000, len(subjects.commits(KEY)))
    assert (commits.newest.headers > 0) == (headers is not None)
    assert commits.newest.stored == commits.bytes == commits.bytes_per_message


async def test_a_limit_is_shown_with_how_near_it_is(js: JetStream, subjects: Subjects) -> None:
    options = TopologyOptions(requests_max_msgs=8, requests_max_bytes=1_000_000, requests_max_msg_size=5000)
    await ensure_topology(js, subjects, options)
    for _ in range(2):
        await js.publish(subjects.requests(KEY), b"")
    requests, tasks, *_ = await read_streams(js, subjects)
    assert (requests.max_messages, requests.max_bytes, requests.max_message_size) == (8, 1_000_000, 5000)
    assert requests.percent_full == 25.0
    assert (tasks.max_messages, tasks.max_bytes, tasks.percent_full) == (-1, -1, None)
    assert (tasks.bytes_per_message, tasks.newest) == (None, None)
    await js.delete_message(subjects.requests_stream, 2)
    assert (await read_streams(js, subjects))[0].newest is None


async def test_what_else_bounds_a_stream_is_shown(js: JetStream, subjects: Subjects) -> None:
    options = TopologyOptions(dlq_max_age=3600.0, duplicate_window=30.0, max_requests_per_change_set=9)
    await ensure_topology(js, subjects, options)
    requests, tasks, sweep, _, dlq, *_ = await read_streams(js, subjects)
    assert (requests.retention, requests.discard, requests.max_age) == ("limits", "new", 0.0)
    assert (requests.max_messages_per_subject, requests.duplicate_window) == (9, 30.0)
    assert (tasks.retention, tasks.max_messages_per_subject) == ("workqueue", 1)
    assert (sweep.name, sweep.max_messages_per_subject) == (subjects.sweep_stream, 1)
    assert (tasks.percent_full, sweep.max_bytes, sweep.percent_full) == (None, MAX_SWEEP_BYTES, 0.0)
    assert (dlq.max_age, dlq.duplicate_window) == (3600.0, 30.0)


async def test_the_queue_of_tasks_is_shown_as_servers_see_it(js: JetStream, subjects: Subjects) -> None:
    assert await read_tasks(js, subjects) is None
    await ensure_topology(js, subjects, TopologyOptions())
    assert await read_tasks(js, subjects) == TasksStatus(0, 0, 0, 0, 0, 6.0)
    for name in ("one", "two", "three", "four"):
        await js.publish(subjects.task(ChangeSetKey("ws", name)), b"")
    async with PullConsumer(js, subjects.tasks_stream, TASKS_CONSUMER, group=TASKS_GROUP) as consumer:
        consumer.add_credit(3)
        await js.ack_sync(await anext(consumer))
        await anext(consumer)
        third = await anext(consumer)
        assert await read_tasks(js, subjects) == TasksStatus(1, 2, 0, 0, 1, 6.0)
        await js.nak(third)
        consumer.add_credit(2)
        assert {(await anext(consumer)).delivered, (await anext(consumer)).delivered} == {1, 2}
        assert await read_tasks(js, subjects) == TasksStatus(0, 3, 1, 0, 1, 6.0)
        await js.purge(subjects.tasks_stream)
        consumer.add_credit(2)
        with anyio.fail_after(60):
            while (found := await read_tasks(js, subjects)) is None or not found.waiting_pulls:
                await checkpoint()
        assert found.pending == 0


def test_what_is_stored_is_the_sum_of_its_parts() -> None:
    assert MessageCost(payload=1000, headers=200, subject=30, record=4).stored == 1234


@asynccontextmanager
async def three_acks(*arguments: Any) -> AsyncIterator[AsyncIterator[AckSample]]:
    """Run like `watch_acks`, but end after three acks, so that the test does not wait."""

    async def first_three(acks: AsyncIterator[AckSample]) -> AsyncIterator[AckSample]:
        for _ in range(3):
            yield await anext(acks)

    async with watch_acks(*arguments) as acks:
        yield first_three(acks)


async def test_acks_of_tasks_are_sampled_where_the_setting_says_so(
    client: RebaserClient, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ensure_topology(js, subjects, TopologyOptions())
    assert (await client.task_acks(60)).percent == 0  # and the call did not wait
    await ensure_topology(js, subjects, TopologyOptions(ack_sample=100))
    for name in ("one", "two", "three"):
        await js.publish(subjects.task(ChangeSetKey("ws", name)), b"")

    async def work() -> None:
        """Take three tasks, and give the first one back once."""
        async with PullConsumer(js, subjects.tasks_stream, TASKS_CONSUMER, group=TASKS_GROUP) as consumer:
            consumer.add_credit(4)
            done = 0
            async for message in consumer:
                if message.delivered == 1 and message.subject == subjects.task(ChangeSetKey("ws", "one")):
                    await js.nak(message)
                    continue
                await js.ack_sync(message)
                done += 1
                if done == 3:
                    return

    async def work_when_heard() -> None:
        subject = f"$JS.EVENT.METRIC.CONSUMER.ACK.{subjects.tasks_stream}.{TASKS_CONSUMER}"
        while True:
            try:
                await js.connection.request(subject, b"{}", timeout=0.1)
            except NoRespondersError:
                await anyio.sleep(0.01)
            except NoAnswerError:
                return await work()

    monkeypatch.setattr("rebaser_client.admin.ack_stats.watch_acks", three_acks)
    async with anyio.create_task_group() as group:
        group.start_soon(work_when_heard)
        acks = await client.task_acks(60)
    assert (acks.percent, acks.samples, acks.redelivered, acks.most_deliveries) == (100, 3, 1, 2)
    assert acks.latency_p50 is not None
    assert acks.latency_max is not None
    assert 0 < acks.latency_p50 <= acks.latency_max
    await ensure_topology(js, subjects, TopologyOptions(ack_sample=0))
    assert (await client.task_acks(60)).percent == 0

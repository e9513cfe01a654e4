"""At its start, a server creates missing streams, and leaves existing ones as an operator configured them."""

from typing import Any

import anyio
import pytest

from rebaser_client.admin.provisioning import ensure_topology, retire_old_sweep
from rebaser_client.jetstream import JetStream, PullConsumer
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import (
    NANOS,
    SWEEP_CONSUMER,
    SWEEP_GROUP,
    TASKS_CONSUMER,
    TopologyOptions,
    sweep_consumer,
    tasks_consumer,
)
from tests.conftest import Events

pytestmark = pytest.mark.anyio


async def change(js: JetStream, stream: str, **fields: Any) -> None:
    await js.update_stream({**(await js.stream_info(stream)).config, **fields})


async def test_limits_that_an_operator_set_stay(
    js: JetStream, subjects: Subjects, topology: TopologyOptions, events: Events
) -> None:
    minute = 60 * NANOS
    await change(js, subjects.dlq_stream, max_age=90 * minute, max_bytes=70_000_000)
    await change(
        js, subjects.requests_stream, max_bytes=80_000_000, max_msgs=500, max_msg_size=9000, max_msgs_per_subject=50
    )
    await change(js, subjects.commits_stream, max_bytes=90_000_000, duplicate_window=minute)
    await js.update_consumer(
        subjects.tasks_stream,
        {**(await js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER)).config, "sample_freq": "10"},
    )
    await ensure_topology(js, subjects, TopologyOptions())
    dlq = (await js.stream_info(subjects.dlq_stream)).config
    assert (dlq["max_age"], dlq["max_bytes"]) == (90 * minute, 70_000_000)
    requests = (await js.stream_info(subjects.requests_stream)).config
    assert (requests["max_bytes"], requests["max_msgs"], requests["max_msg_size"]) == (80_000_000, 500, 9000)
    assert requests["max_msgs_per_subject"] == 50
    commits = (await js.stream_info(subjects.commits_stream)).config
    assert (commits["max_bytes"], commits["duplicate_window"]) == (90_000_000, minute)
    assert (await js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER)).config["sample_freq"] == "10"
    assert not events.named("stream_changed")


async def test_what_is_given_is_set_and_what_the_promises_rest_on_is_put_right_loudly(
    js: JetStream, subjects: Subjects, topology: TopologyOptions, events: Events
) -> None:
    # With a max age, the stream would forget acknowledged commits.
    await change(js, subjects.commits_stream, max_age=3600 * NANOS)
    await ensure_topology(js, subjects, TopologyOptions(dlq_max_age=60.0, requests_max_msgs=7))
    assert (await js.stream_info(subjects.dlq_stream)).config["max_age"] == 60 * NANOS
    assert (await js.stream_info(subjects.requests_stream)).config["max_msgs"] == 7
    assert not (await js.stream_info(subjects.commits_stream)).config["max_age"]
    [told] = [event for event in events.named("stream_changed") if event["stream"] == subjects.commits_stream]
    assert told["fields"] == [f"max_age is {3600 * NANOS}, wanted 0"]


async def test_a_new_installation_keeps_dead_letters_for_ever(
    js: JetStream, subjects: Subjects, topology: TopologyOptions
) -> None:
    assert not (await js.stream_info(subjects.dlq_stream)).config.get("max_age")
    assert (await js.stream_info(subjects.requests_stream)).config["max_msgs_per_subject"] == 100_000


async def test_an_idle_work_queue_holds_nothing_and_has_one_consumer(
    js: JetStream, subjects: Subjects, topology: TopologyOptions
) -> None:
    await js.publish(subjects.sweep, b"")
    info = await js.stream_info(subjects.tasks_stream)
    assert (info.messages, info.consumers) == (0, 1)


async def test_the_release_before_kept_its_sweep_message_among_the_tasks(js: JetStream, subjects: Subjects) -> None:
    """Old sweeps continue as long as a server of that release waits; after that, nothing is left of them."""
    options = TopologyOptions()
    tasks, task = subjects.tasks_stream, subjects.task(ChangeSetKey("ws", "cs"))
    await js.add_stream(
        {
            "name": tasks,
            "subjects": [f"{subjects.root}.tasks.*.*.process", subjects.sweep_before],
            "retention": "workqueue",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "discard_new_per_subject": True,
            "max_consumers": options.max_consumers,
        }
    )
    await js.ensure_consumer(tasks, tasks_consumer(subjects, options))
    await js.ensure_consumer(tasks, sweep_consumer(subjects, options) | {"filter_subject": subjects.sweep_before})
    await js.publish(subjects.sweep_before, b"")
    await js.publish(task, b"")
    old = PullConsumer(js, tasks, SWEEP_CONSUMER, group=SWEEP_GROUP)
    async with old:
        old.add_credit(2)
        message = await anext(old)
        await ensure_topology(js, subjects, options)
        assert not await retire_old_sweep(js, subjects)
        await js.nak(message)
        assert (await anext(old)).subject == subjects.sweep_before, "it still has its turn"
        old.add_credit()
        while not (await js.consumer_info(tasks, SWEEP_CONSUMER)).num_waiting:  # noqa: ASYNC110 - NATS sends no event
            await anyio.sleep(0.01)  # until NATS has the pull
        assert not await retire_old_sweep(js, subjects)
    assert await retire_old_sweep(js, subjects)
    assert await js.subject_counts(tasks, ">") == {task: 1}
    assert (await js.stream_info(tasks)).consumers == 1
    assert await retire_old_sweep(js, subjects), "there is nothing more to do"

"""Tests what a NATS server reports about pins and acknowledgements, as typed events."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rebaser_client.jetstream import JetStream, PullConsumer
from rebaser_client.jetstream.advisories import AckSample, Pinned, Unpinned, watch_acks, watch_pins
from rebaser_core.streams.subjects import Subjects

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stream(js: JetStream, subjects: Subjects) -> AsyncIterator[str]:
    name = subjects.prefix
    await js.ensure_stream({"name": name, "subjects": [f"{name}.>"], "storage": "memory", "num_replicas": 1})
    yield name
    await js.call(f"STREAM.DELETE.{name}")


async def consumer(js: JetStream, stream: str, **more: Any) -> None:
    await js.ensure_consumer(stream, {"name": "c", "durable_name": "c", "ack_policy": "explicit", **more})


async def test_pins_are_seen_to_come_and_go(js: JetStream, stream: str) -> None:
    await consumer(js, stream, priority_groups=["g"], priority_policy="pinned_client")
    async with watch_pins(js.connection, stream) as events, PullConsumer(js, stream, "c", group="g") as pull:
        pull.add_credit(2)
        await js.publish(f"{stream}.a", b"")
        message = await anext(pull)
        pinned = await anext(events)
        assert isinstance(pinned, Pinned)
        assert (pinned.stream, pinned.consumer, pinned.group) == (stream, "c", "g")
        assert pinned.pin == message.headers["Nats-Pin-Id"]
        assert pinned.time.startswith("20")
        await js.connection.publish(f"$JS.EVENT.ADVISORY.CONSUMER.PINNED.{stream}.c", b"not an advisory")
        await js.unpin(stream, "c", "g")
        unpinned = await anext(events)
        assert unpinned == Unpinned(stream, "c", "g", "admin", unpinned.time, pinned.account, "")
        assert pinned.account == "$G"


async def test_sampled_acks_say_how_long_and_how_often(js: JetStream, stream: str) -> None:
    await consumer(js, stream, sample_freq="100")
    async with watch_acks(js.connection, stream, "c") as samples, PullConsumer(js, stream, "c") as pull:
        pull.add_credit(2)
        await js.publish(f"{stream}.a", b"")
        await js.nak(await anext(pull))
        await js.ack(await anext(pull))
        sample = await anext(samples)
    assert sample == AckSample(stream, "c", 1, 2, 2, sample.ack_time_ns, sample.time)
    assert sample.ack_time_ns > 0
    assert sample.time.startswith("20")

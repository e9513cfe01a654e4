"""Reading a stream in batches: nothing is left out and nothing is read twice, whatever happens meanwhile."""

from collections.abc import AsyncIterator

import anyio
import pytest

from rebaser_client.jetstream import JetStream, batched
from rebaser_client.jetstream.batched import read_in_batches
from rebaser_client.pace import Pace
from rebaser_core.errors import TransientError
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.nats_proxy import Frame, Proxy
from tests.support.ordered import STREAM, count_consumers, fill, ordered_stream

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "BATCH", 4)
    monkeypatch.setattr(batched, "EXPIRES", 1.0)
    monkeypatch.setattr(batched, "GRACE", 1.0)


@pytest.fixture
async def stream(js: JetStream, subjects: Subjects) -> AsyncIterator[str]:
    async with ordered_stream(js, subjects) as name:
        yield name


async def all_of(js: JetStream, stream: str) -> list[int]:
    return [int(message.data) async for message in read_in_batches(js, stream, f"{stream}.k", Pace())]


async def test_all_messages_of_the_pattern_are_read_in_order(js: JetStream, stream: str) -> None:
    assert await all_of(js, stream) == []
    await fill(js, stream, 3, key="other")
    assert await all_of(js, stream) == []
    for number in range(11):
        await fill(js, stream, 1, number)
        await fill(js, stream, 1, key="other")
    for sequence in (4, 12, 22):
        await js.delete_message(stream, sequence)
    assert await all_of(js, stream) == [1, 2, 3, 5, 6, 7, 8, 10]
    assert await count_consumers(js, stream) == 0


async def test_what_is_added_meanwhile_is_not_read(js: JetStream, stream: str) -> None:
    await fill(js, stream, 6)
    reading = read_in_batches(js, stream, f"{stream}.k", Pace())
    read = [int((await anext(reading)).data)]
    await fill(js, stream, 20, 6)
    read += [int(message.data) async for message in reading]
    assert read == list(range(6))


@pytest.mark.parametrize("lost", [1, 3, 4, 6])
async def test_a_lost_message_is_read_again(
    js: JetStream, lossy: JetStream, proxy: Proxy, stream: str, lost: int
) -> None:
    await fill(js, stream, 10)
    left = [lost]

    def lose(frame: Frame) -> bool:
        return frame.delivery and frame.consumer_sequence in left and left.pop() == lost

    proxy.lose = lose
    assert await all_of(lossy, stream) == list(range(10))
    assert left == []


async def test_a_deleted_consumer_is_replaced(js: JetStream, stream: str) -> None:
    await fill(js, stream, 10)
    reading = read_in_batches(js, stream, f"{stream}.k", Pace())
    read = [int((await anext(reading)).data)]
    (consumer,) = [one async for one in js.list_consumers(stream)]
    await js.delete_consumer(stream, consumer.name)
    read += [int(message.data) async for message in reading]
    assert read == list(range(10))


async def test_a_connection_that_breaks_costs_nothing(
    lossy: JetStream, proxy: Proxy, js: JetStream, stream: str
) -> None:
    await fill(js, stream, 10)
    reading = read_in_batches(lossy, stream, f"{stream}.k", Pace())
    read = [int((await anext(reading)).data)]
    await proxy.cut()
    read += [int(message.data) async for message in reading]
    assert read == list(range(10))


async def test_a_stream_that_was_replaced_is_an_error(js: JetStream, stream: str) -> None:
    await fill(js, stream, 10)
    reading = read_in_batches(js, stream, f"{stream}.k", Pace())
    await anext(reading)
    await js.delete_stream(stream)
    await js.add_stream({"name": stream, "subjects": [f"{stream}.>"], **STREAM})
    await fill(js, stream, 20)
    with pytest.raises(TransientError) as failed:
        [message async for message in reading]
    assert failed.value.code == "stream_lost"


async def test_it_gives_up_after_some_attempts(
    js: JetStream, lossy: JetStream, proxy: Proxy, stream: str, monkeypatch: pytest.MonkeyPatch, events: Events
) -> None:
    monkeypatch.setattr(batched, "TRIES", 3)
    await fill(js, stream, 2)
    proxy.lose = lambda frame: frame.delivery
    with anyio.fail_after(60), pytest.raises(TransientError):
        await all_of(lossy, stream)
    assert [entry["attempt"] for entry in events.named("batch_failed")] == [1, 2]

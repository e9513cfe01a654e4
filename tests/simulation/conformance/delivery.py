"""Cases that compare the model with nats-server: ordered consumers, and core NATS."""

from functools import partial

import anyio
import pytest

from rebaser_client.jetstream import JetStream, Message, NoRespondersError, OrderedConsumer
from tests.simulation.conformance.cases import case, config, queue, refusal, until


async def collected(consumer: OrderedConsumer, count: int) -> list[Message]:
    return [await anext(consumer) for _ in range(count)]


@case
async def an_ordered_consumer_delivers_what_is_there_and_what_comes(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    for number in range(20):
        await js.publish(f"{name}.{'ab'[number % 2]}", str(number).encode())
    async with OrderedConsumer(js, name, f"{name}.a") as consumer:
        assert [int(message.data) for message in await collected(consumer, 10)] == list(range(0, 20, 2))
        await js.publish(f"{name}.a", b"20")
        assert (await anext(consumer)).data == b"20"


@case
async def an_ordered_consumer_begins_where_it_is_told(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    for subject in ("a", "b", "a", "b"):
        await js.publish(f"{name}.{subject}", b"")
    for start, expected in ((2, [2, 3, 4]), ("all", [1, 2, 3, 4]), ("last", [4]), ("last_per_subject", [3, 4])):
        async with OrderedConsumer(js, name, f"{name}.*", start=start) as consumer:  # type: ignore[arg-type]
            assert [message.stream_sequence for message in await collected(consumer, len(expected))] == expected
    async with OrderedConsumer(js, name, f"{name}.*", start="new") as consumer:
        await js.publish(f"{name}.a", b"")
        assert (await anext(consumer)).stream_sequence == 5


@case
async def an_ordered_consumer_goes_on_behind_its_last_message_when_it_was_deleted(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    async with OrderedConsumer(js, name, f"{name}.a", idle_heartbeat=0.5) as consumer:
        for _ in range(3):
            await js.publish(f"{name}.a", b"")
        assert [message.stream_sequence for message in await collected(consumer, 2)] == [1, 2]
        consumers = (await js.call(f"CONSUMER.NAMES.{name}"))["consumers"]
        await js.delete_consumer(name, consumers[0])
        await js.publish(f"{name}.a", b"")
        assert [message.stream_sequence for message in await collected(consumer, 2)] == [3, 4]


@case
async def flow_control_lets_a_slow_reader_have_everything(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    for _ in range(60):
        await js.publish(f"{name}.a", b"x" * 1000)
    async with OrderedConsumer(js, name, f"{name}.a", max_count=10, idle_heartbeat=0.5) as consumer:
        await anyio.sleep(0.2)
        assert [message.stream_sequence for message in await collected(consumer, 60)] == list(range(1, 61))


@case
async def headers_only_tells_the_size(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    await js.publish(f"{name}.a", b"12345", {"X": "y"})
    async with OrderedConsumer(js, name, f"{name}.a", headers_only=True) as consumer:
        message = await anext(consumer)
    assert (message.data, message.headers) == (b"", {"X": "y", "Nats-Msg-Size": "5"})


@case
async def closed_consumers_leave_nothing_behind(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    async with OrderedConsumer(js, name, f"{name}.a"):
        assert (await js.stream_info(name)).consumers == 1
    await until(partial(js.stream_info, name), lambda info: info.consumers == 0)


# -- core --------------------------------------------------------------------------------------------------------------


@case
async def subscribers_hear_matching_subjects_also_what_a_stream_refused(js: JetStream, name: str) -> None:
    await js.ensure_stream(queue(name))
    async with js.connection.subscribe(f"{name}.*") as heard:
        await js.publish(f"{name}.a", b"1")
        await refusal(js.publish(f"{name}.a", b"2", {"X": "y"}))
        await js.publish(f"{name}.b.c", b"3")
        await js.publish(f"{name}.b", b"4")
        got = [await anext(heard) for _ in range(3)]
    assert [(message.subject, message.data) for message in got] == [
        (f"{name}.a", b"1"),
        (f"{name}.a", b"2"),
        (f"{name}.b", b"4"),
    ]
    assert got[1].headers == {"X": "y"}


@case
async def requests_are_answered_by_who_listens_and_else_told_that_nobody_does(js: JetStream, name: str) -> None:
    connection = js.connection
    with pytest.raises(NoRespondersError):
        await connection.request(f"{name}.q")
    async with connection.subscribe(f"{name}.q") as questions, anyio.create_task_group() as group:

        async def answer() -> None:
            question = await anext(questions)
            await connection.publish(question.reply, question.data * 2)

        group.start_soon(answer)
        assert (await connection.request(f"{name}.q", b"ab")).data == b"abab"

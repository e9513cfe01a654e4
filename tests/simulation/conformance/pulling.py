"""Cases that compare the model with nats-server: pull consumers, with and without priority groups."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import anyio

from rebaser_client.jetstream import ApiError, JetStream, PullConsumer, PullMessage
from rebaser_client.jetstream.errors import CONSUMER_NOT_FOUND, is_subject_full
from tests.simulation.conformance.cases import NANOS, case, config, queue, refusal, until, worker


@asynccontextmanager
async def pulling(js: JetStream, name: str, ack_wait: float = 30.0) -> AsyncIterator[PullConsumer]:
    await js.ensure_stream(queue(name))
    await js.ensure_consumer(name, worker(name, ack_wait))
    async with PullConsumer(js, name, "w", expires=2.0, idle_heartbeat=0.5) as pull:
        yield pull


async def take(pull: PullConsumer, count: int = 1) -> list[PullMessage]:
    pull.add_credit(count)
    return [await anext(pull) for _ in range(count)]


async def nothing_comes(pull: PullConsumer, seconds: float) -> None:
    with anyio.move_on_after(seconds) as scope:
        await anext(pull)
    assert scope.cancelled_caught


@case
async def pulled_messages_carry_their_numbers_and_an_acked_one_is_gone(js: JetStream, name: str) -> None:
    async with pulling(js, name) as pull:
        for subject in ("a", "b"):
            await js.publish(f"{name}.{subject}", b"x", {"X": subject})
        one, two = await take(pull, 2)
        assert [(m.stream_sequence, m.consumer_sequence, m.delivered) for m in (one, two)] == [(1, 1, 1), (2, 2, 1)]
        assert (two.subject, two.data, two.headers) == (f"{name}.b", b"x", {"X": "b"})
        await js.ack_sync(one)
        assert await js.subject_counts(name, f"{name}.*") == {f"{name}.b": 1}


@case
async def a_task_in_work_still_refuses_another_until_it_is_acked(js: JetStream, name: str) -> None:
    async with pulling(js, name) as pull:
        await js.publish(f"{name}.a", b"")
        (message,) = await take(pull)
        assert is_subject_full(await refusal(js.publish(f"{name}.a", b"")))
        await js.ack_sync(message)
        assert (await js.publish(f"{name}.a", b"")).sequence == 2


@case
async def what_is_not_acked_in_time_comes_again(js: JetStream, name: str) -> None:
    async with pulling(js, name, ack_wait=0.5) as pull:
        await js.publish(f"{name}.a", b"")
        (first,) = await take(pull)
        (again,) = await take(pull)
        assert (again.stream_sequence, again.consumer_sequence, again.delivered) == (first.stream_sequence, 2, 2)


@case
async def progress_keeps_a_message(js: JetStream, name: str) -> None:
    async with pulling(js, name, ack_wait=1.0) as pull:
        await js.publish(f"{name}.a", b"")
        (message,) = await take(pull)
        pull.add_credit(1)
        said = [anyio.current_time()]
        while said[-1] - said[0] < 1.5:
            await js.progress(message)
            said.append(anyio.current_time())
            with anyio.move_on_after(0.2) as silence:
                await anext(pull)
            # If the machine stood still for longer, the server may rightly have ended the pull.
            if not silence.cancelled_caught:
                assert max(two - one for one, two in pairwise([*said, anyio.current_time()])) > 0.8
                return
        assert (await anext(pull)).delivered == 2


@case
async def a_nak_brings_it_back_at_once_and_before_others(js: JetStream, name: str) -> None:
    async with pulling(js, name) as pull:
        await js.publish(f"{name}.a", b"")
        (message,) = await take(pull)
        await js.publish(f"{name}.b", b"")
        # A request, so that the nak takes effect before the next pull.
        await js.connection.request(message.reply, b"-NAK")
        again, other = await take(pull, 2)
        assert [(one.stream_sequence, one.delivered) for one in (again, other)] == [(1, 2), (2, 1)]


@case
async def a_nak_with_delay_brings_it_back_later(js: JetStream, name: str) -> None:
    async with pulling(js, name) as pull:
        await js.publish(f"{name}.a", b"")
        (message,) = await take(pull)
        began = anyio.current_time()
        await js.nak(message, 0.7)
        (again,) = await take(pull)
        assert again.delivered == 2
        assert anyio.current_time() - began > 0.6


@case
async def a_terminated_message_never_comes_again(js: JetStream, name: str) -> None:
    async with pulling(js, name, ack_wait=0.5) as pull:
        began = anyio.current_time()
        await js.publish(f"{name}.a", b"")
        (message,) = await take(pull)
        await js.term(message, "no", confirmed=True)
        in_time = anyio.current_time() - began < 0.5  # if not, the server may rightly have delivered it again
        pull.add_credit(1)
        if in_time:
            await nothing_comes(pull, 1.0)
        assert (await js.stream_info(name)).messages == 0


@case
async def a_stale_ack_hits_the_delivery_that_somebody_else_holds(js: JetStream, name: str) -> None:
    async with pulling(js, name, ack_wait=0.5) as pull:
        await js.publish(f"{name}.a", b"")
        (first,) = await take(pull)
        (again,) = await take(pull)
        assert again.delivered == 2
        await js.ack_sync(first)
        await until(partial(js.stream_info, name), lambda info: info.messages == 0)
        await js.ack_sync(again)  # answered, although the message is gone


@case
async def a_pull_that_expires_gives_its_credits_back(js: JetStream, name: str) -> None:
    await js.ensure_stream(queue(name))
    await js.ensure_consumer(name, worker(name))
    async with PullConsumer(js, name, "w", expires=1.0, idle_heartbeat=0.4) as pull:
        pull.add_credit(1)
        await nothing_comes(pull, 1.5)
        await js.publish(f"{name}.a", b"")
        assert (await anext(pull)).stream_sequence == 1


@case
async def what_a_stopped_reader_left_goes_to_the_next(js: JetStream, name: str) -> None:
    async with pulling(js, name) as pull:
        pull.add_credit(2)
        await js.publish(f"{name}.a", b"")
        await until(partial(js.consumer_info, name, "w"), lambda info: info.num_ack_pending == 1)
    async with PullConsumer(js, name, "w") as pull:
        (message,) = await take(pull)
        assert message.delivered >= 2  # 3 if the message that was given back reached a pull that was still open


@case
async def consumer_info_counts_what_waits(js: JetStream, name: str) -> None:
    async with pulling(js, name) as pull:
        for subject in ("a", "b", "c"):
            await js.publish(f"{name}.{subject}", b"")
        await take(pull)
        info = await js.consumer_info(name, "w")
        assert (info.num_pending, info.num_ack_pending, info.delivered_stream) == (2, 1, 1)
    assert (await refusal(js.consumer_info(name, "other"))).err_code == CONSUMER_NOT_FOUND


# -- groups ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def sharing(
    js: JetStream, name: str, policy: str, *servers: dict[str, Any], pinned_for: int = 60
) -> AsyncIterator[list[PullConsumer]]:
    """Yield servers that pull from one consumer with the priority policy `policy`. A pin ends `pinned_for` seconds
    after the last pull."""
    await js.ensure_stream(queue(name))
    grouped = {"priority_policy": policy, "priority_groups": ["g"]}
    if policy == "pinned_client":
        grouped["priority_timeout"] = pinned_for * NANOS  # type: ignore[assignment]
    await js.ensure_consumer(name, worker(name) | grouped)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                PullConsumer(js, name, "w", group="g", expires=2.0, idle_heartbeat=0.5, **one)
            )
            for one in servers
        ]


@case
async def one_is_pinned_and_gets_all_until_it_is_unpinned(js: JetStream, name: str) -> None:
    pins: list[str] = []
    async with sharing(js, name, "pinned_client", {"on_pinned": pins.append}, {}) as (one, two):
        await js.publish(f"{name}.a", b"")
        (first,) = await take(one)
        assert pins == [first.headers["Nats-Pin-Id"]]
        two.add_credit(1)
        one.add_credit(1)
        await js.publish(f"{name}.b", b"")
        assert (await anext(one)).subject == f"{name}.b"
        await js.unpin(name, "w", "g")
        await js.publish(f"{name}.c", b"")
        assert (await anext(two)).headers["Nats-Pin-Id"] != pins[0]


@case
async def a_pinned_client_that_pulls_no_more_loses_its_pin(js: JetStream, name: str) -> None:
    async with sharing(js, name, "pinned_client", {}, {}, pinned_for=1) as (one, two):
        await js.publish(f"{name}.a", b"")
        await take(one)
        two.add_credit(1)
        await js.publish(f"{name}.b", b"")
        assert (await anext(two)).subject == f"{name}.b"


@case
async def an_overflow_server_helps_only_when_enough_is_unacknowledged(js: JetStream, name: str) -> None:
    async with sharing(js, name, "overflow", {}, {"min_ack_pending": 2}) as (one, two):
        two.add_credit(1)
        for subject in ("a", "b"):
            await js.publish(f"{name}.{subject}", b"")
        await nothing_comes(two, 0.3)
        assert [message.subject for message in await take(one, 2)] == [f"{name}.a", f"{name}.b"]
        await js.publish(f"{name}.c", b"")
        assert (await anext(two)).subject == f"{name}.c"


@case
async def a_consumer_without_acks_begins_at_its_sequence_and_delivers_each_message_once(
    js: JetStream, name: str
) -> None:
    await js.ensure_stream(config(name))
    for subject in "abcd":
        await js.publish(f"{name}.{subject}", b"x")
    begins = {"name": "w", "ack_policy": "none", "ack_wait": NANOS // 2, "deliver_policy": "by_start_sequence"}
    consumer = await js.create_consumer(name, begins | {"opt_start_seq": 2, "filter_subject": f"{name}.*"})
    assert consumer.cached_info.num_pending == 3
    first = [message async for message in consumer.fetch(2)]
    assert [(m.stream_sequence, m.consumer_sequence, m.pending) for m in first] == [(2, 1, 2), (3, 2, 1)]
    await anyio.sleep(1.0)  # longer than the ack wait
    assert [(m.stream_sequence, m.delivered) async for m in consumer.fetch(1)] == [(4, 1)]
    assert (await consumer.info()).num_ack_pending == 0


@case
async def a_consumer_that_nobody_uses_is_gone_after_its_time(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    begins = {"name": "w", "ack_policy": "none", "inactive_threshold": NANOS}
    consumer = await js.create_consumer(name, begins | {"filter_subject": f"{name}.*"})

    async def codes() -> int:
        try:
            await consumer.info()
        except ApiError as error:
            return error.err_code
        return 0

    assert await until(codes, bool) == CONSUMER_NOT_FOUND

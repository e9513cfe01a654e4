"""The same cases against the model and a real nats-server, through the JetStream layer: so the model stays true."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import anyio
import pytest

from rebaser_client.jetstream import (
    ApiError,
    Connection,
    JetStream,
    Message,
    NoRespondersError,
    OrderedConsumer,
    PullConsumer,
    PullMessage,
)
from rebaser_client.jetstream.errors import (
    CONSUMER_NOT_FOUND,
    STREAM_MISMATCH,
    STREAM_NAME_IN_USE,
    STREAM_NOT_FOUND,
    WRONG_LAST_SEQUENCE,
    is_full,
    is_subject_full,
)
from rebaser_core.errors import ConfigError
from tests.simulation.environment import replaced
from tests.simulation.loop import Process, SimLoop
from tests.simulation.model.server import NatsModel
from tests.simulation.network import Network, NoFaults, jitter

T = TypeVar("T")
Case = Callable[[JetStream, str], Awaitable[None]]
CASES: list[Case] = []
NANOS = 1_000_000_000
BOUND = 30  # seconds


def case(function: Case) -> Case:
    CASES.append(function)
    return function


def run_on_model(function: Case) -> None:
    loop = SimLoop()
    rng = random.Random(function.__name__)
    model = NatsModel(loop, api_delay=lambda: rng.random() * 0.001)
    network = Network(loop, model, jitter(rng, 0.0002, 0.002), NoFaults())
    process = Process(loop, "test")
    with replaced(loop, network, 1, engine=lambda *_: None, log=lambda *_: None):
        try:
            loop.run_until_complete(process.start(_connected(function, "nats://model:4222", "conf")))
        finally:
            loop.close()


async def _connected(function: Case, url: str, name: str) -> None:
    with anyio.fail_after(BOUND):
        async with Connection.connect(url, name="conformance") as connection:
            js = JetStream(connection)
            try:
                await function(js, name)
            finally:
                try:
                    await js.call(f"STREAM.DELETE.{name}")
                except ApiError as error:
                    if error.err_code != STREAM_NOT_FOUND:
                        raise


def config(name: str, **more: object) -> dict[str, Any]:
    base = {"name": name, "subjects": [f"{name}.>"], "storage": "memory", "num_replicas": 1, "discard": "new"}
    return {**base, "max_consumers": 100_000, **more}


def queue(name: str) -> dict[str, Any]:
    return config(name, retention="workqueue", max_msgs_per_subject=1, discard_new_per_subject=True)


def worker(name: str, ack_wait: float = 30.0) -> dict[str, Any]:
    return {
        "durable_name": "w",
        "name": "w",
        "ack_policy": "explicit",
        "ack_wait": int(ack_wait * NANOS),
        "max_deliver": -1,
        "max_ack_pending": -1,
        "deliver_policy": "all",
        "filter_subject": f"{name}.*",
    }


async def until(ask: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
    while not good(answer := await ask()):  # noqa: ASYNC110 - only asking tells
        await anyio.sleep(0.02)
    return answer


async def refusal(awaited: Awaitable[object]) -> ApiError:
    with pytest.raises(ApiError) as refused:
        await awaited
    return refused.value


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


# -- storing -----------------------------------------------------------------------------------------------------------


@case
async def a_message_is_read_back_as_it_was(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    assert (await js.publish(f"{name}.a", b"one", {"X-A": "1", "X-B": "zwei: drei"})).sequence == 1
    stored = await js.last(name, f"{name}.a")
    assert stored is not None
    assert (stored.sequence, stored.subject, stored.data) == (1, f"{name}.a", b"one")
    assert stored.headers == {"X-A": "1", "X-B": "zwei: drei"}


@case
async def reads_find_by_number_by_subject_and_from_a_number_on(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    for subject in ("a", "a", "b", "a"):
        await js.publish(f"{name}.{subject}", b"")
    last, by_number = await js.last(name, f"{name}.a"), await js.get(name, 3)
    following, first = await js.next(name, f"{name}.a", 3), await js.next(name, f"{name}.*", 0)
    assert [one.sequence for one in (last, by_number, following, first) if one] == [4, 3, 4, 1]
    assert await js.last(name, f"{name}.c") is None
    assert await js.next(name, f"{name}.b", 4) is None
    assert await js.get(name, 9) is None


@case
async def compare_and_set_lets_one_writer_through(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    await js.publish(f"{name}.b", b"")
    first = await js.publish(f"{name}.a", b"", expected_last_subject_sequence=0)
    assert first.sequence == 2
    for wrong in (0, 1, 3):
        refused = await refusal(js.publish(f"{name}.a", b"", expected_last_subject_sequence=wrong))
        assert refused.err_code == WRONG_LAST_SEQUENCE
    assert (await js.publish(f"{name}.a", b"", expected_last_subject_sequence=2)).sequence == 3


@case
async def expecting_nothing_succeeds_again_once_the_subject_is_empty(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    await js.publish(f"{name}.a", b"")
    await js.delete_message(name, 1)
    assert (await js.publish(f"{name}.a", b"", expected_last_subject_sequence=0)).sequence == 2


@case
async def a_known_message_id_is_a_duplicate_also_after_a_delete(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    await js.publish(f"{name}.a", b"", {"Nats-Msg-Id": "x"})
    again = await js.publish(f"{name}.b", b"", {"Nats-Msg-Id": "x"})
    assert (again.sequence, again.duplicate) == (1, True)
    await js.delete_message(name, 1)
    again = await js.publish(f"{name}.a", b"", {"Nats-Msg-Id": "x"})
    assert (again.sequence, again.duplicate) == (1, True)


@case
async def the_expectation_is_checked_before_the_message_id(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    await js.publish(f"{name}.a", b"", {"Nats-Msg-Id": "x"}, expected_last_subject_sequence=0)
    again = js.publish(f"{name}.a", b"", {"Nats-Msg-Id": "x"}, expected_last_subject_sequence=0)
    assert (await refusal(again)).err_code == WRONG_LAST_SEQUENCE


@case
async def the_duplicate_window_ends(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name, duplicate_window=int(0.2 * NANOS)))
    await js.publish(f"{name}.a", b"", {"Nats-Msg-Id": "x"})
    publish = partial(js.publish, f"{name}.a", b"", {"Nats-Msg-Id": "x"})
    assert (await until(publish, lambda ack: not ack.duplicate)).sequence == 2


@case
async def one_message_a_subject_refuses_the_second_in_its_own_words(js: JetStream, name: str) -> None:
    await js.ensure_stream(queue(name))
    await js.publish(f"{name}.a", b"")
    refused = await refusal(js.publish(f"{name}.a", b""))
    assert is_subject_full(refused)
    assert (await js.publish(f"{name}.b", b"")).sequence == 2


@case
async def a_full_stream_refuses_with_the_same_code_and_other_words(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name, max_msgs=2))
    for _ in range(2):
        await js.publish(f"{name}.a", b"")
    refused = await refusal(js.publish(f"{name}.a", b""))
    assert is_full(refused)
    assert not is_subject_full(refused)


@case
async def a_refused_message_takes_no_sequence(js: JetStream, name: str) -> None:
    await js.ensure_stream(queue(name))
    await js.publish(f"{name}.a", b"")
    await refusal(js.publish(f"{name}.a", b""))
    assert (await js.publish(f"{name}.b", b"")).sequence == 2


@case
async def another_streams_expectation_is_refused(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    refused = await refusal(js.publish(f"{name}.a", b"", {"Nats-Expected-Stream": "other"}))
    assert refused.err_code == STREAM_MISMATCH


@case
async def a_rollup_replaces_its_subject(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name, allow_rollup_hdrs=True))
    for subject in ("a", "b", "a"):
        await js.publish(f"{name}.{subject}", b"")
    await js.publish(f"{name}.a", b"", {"Nats-Rollup": "sub"})
    assert await js.subject_counts(name, f"{name}.*") == {f"{name}.a": 1, f"{name}.b": 1}


# -- deleting, streams -------------------------------------------------------------------------------------------------


@case
async def a_deleted_message_is_gone_and_deleting_twice_is_success(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    for _ in range(3):
        await js.publish(f"{name}.a", b"")
    for _ in range(2):
        await js.delete_message(name, 2)
    await js.delete_message(name, 99)
    assert await js.get(name, 2) is None
    following = await js.next(name, f"{name}.a", 2)
    assert following is not None
    assert following.sequence == 3


@case
async def many_are_deleted_at_once(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    for _ in range(70):
        await js.publish(f"{name}.a", b"")
    await js.delete_many(name, range(1, 70))
    # The last of them may be under way.
    info = await until(partial(js.stream_info, name), lambda info: info.messages <= 1)
    assert (info.first_sequence, info.last_sequence) == (70, 70)


@case
async def a_purge_stops_below_a_sequence_and_at_other_subjects(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    for subject in ("a", "b", "a", "a"):
        await js.publish(f"{name}.{subject}", b"")
    assert await js.purge(name, f"{name}.a", sequence=4) == 2
    assert await js.subject_counts(name, f"{name}.>") == {f"{name}.a": 1, f"{name}.b": 1}


@case
async def an_emptied_stream_remembers_its_last_sequence(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    assert (await js.stream_info(name)).last_sequence == 0
    await js.publish(f"{name}.a", b"")
    await js.delete_message(name, 1)
    info = await js.stream_info(name)
    assert (info.messages, info.last_sequence) == (0, 1)
    assert info.created == (await js.stream_info(name)).created


@case
async def the_same_configuration_again_is_fine_and_another_is_not(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    await js.ensure_stream(config(name))
    await js.ensure_stream(config(name, max_msgs=5))
    assert (await js.stream_info(name)).config["max_msgs"] == 5
    refused = await refusal(js.call(f"STREAM.CREATE.{name}", config(name, max_msgs=6)))
    assert refused.err_code == STREAM_NAME_IN_USE
    with pytest.raises(ConfigError):
        await js.ensure_stream(config(f"{name}2", subjects=[f"{name}.x"]))


@case
async def a_stream_that_is_not_there_says_so_and_takes_nothing(js: JetStream, name: str) -> None:
    assert (await refusal(js.last(name, f"{name}.a"))).err_code == STREAM_NOT_FOUND
    with pytest.raises(NoRespondersError):
        await js.publish(f"{name}.a", b"")


# -- pulling -----------------------------------------------------------------------------------------------------------


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
            if not silence.cancelled_caught:  # only a machine that stood still may have let it go
                assert max(two - one for one, two in pairwise([*said, anyio.current_time()])) > 0.8
                return
        assert (await anext(pull)).delivered == 2


@case
async def a_nak_brings_it_back_at_once_and_before_others(js: JetStream, name: str) -> None:
    async with pulling(js, name) as pull:
        await js.publish(f"{name}.a", b"")
        (message,) = await take(pull)
        await js.publish(f"{name}.b", b"")
        await js.connection.request(message.reply, b"-NAK")  # answered, so that the pull does not overtake it
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
        await js.publish(f"{name}.a", b"")
        (message,) = await take(pull)
        await js.term(message, "no")
        pull.add_credit(1)
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
        await js.ack_sync(again)  # answered, though it is gone


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
        assert message.delivered >= 2  # 3: what was given back may reach a pull that is still open


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
async def sharing(js: JetStream, name: str, policy: str, *servers: dict[str, Any]) -> AsyncIterator[list[PullConsumer]]:
    """Servers that pull from one consumer with `policy`."""
    await js.ensure_stream(queue(name))
    grouped = {"priority_policy": policy, "priority_groups": ["g"]}
    if policy == "pinned_client":
        grouped["priority_timeout"] = NANOS
    await js.ensure_consumer(name, worker(name) | grouped)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                PullConsumer(js, name, "w", group="g", expires=2.0, idle_heartbeat=0.5, **one)  # type: ignore[arg-type]
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
    async with sharing(js, name, "pinned_client", {}, {}) as (one, two):
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


# -- ordered -----------------------------------------------------------------------------------------------------------


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
        async with OrderedConsumer(js, name, f"{name}.*", start=start) as consumer:
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


@pytest.mark.parametrize("function", CASES, ids=[one.__name__ for one in CASES])
class TestConformance:
    def test_model(self, function: Case) -> None:
        run_on_model(function)

    def test_server(self, function: Case, nats_url: str, subjects: Any) -> None:
        anyio.run(_connected, function, nats_url, subjects.prefix)

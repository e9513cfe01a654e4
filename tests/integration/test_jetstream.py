"""Publishes, reads, deletes, and the creation of streams, on a real nats-server."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import ApiError, Connection, JetStream, NoAnswerError, NoRespondersError
from rebaser_client.jetstream.api_calls import MAX_CALLS
from rebaser_client.jetstream.context import EXPECTED_LAST
from rebaser_client.jetstream.errors import (
    MAX_CONSUMERS,
    STREAM_MISMATCH,
    STREAM_NOT_FOUND,
    WRONG_LAST_SEQUENCE,
    is_full,
    is_subject_full,
)
from rebaser_client.nats.header_lines import encode_headers
from rebaser_core.errors import ConfigError, TransientError
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TASKS_CONSUMER, TopologyOptions, streams, tasks_consumer
from tests.support.nats_proxy import proxied

pytestmark = pytest.mark.anyio

Config = dict[str, Any]


@pytest.fixture
async def name(js: JetStream, subjects: Subjects) -> AsyncIterator[str]:
    """A name for a stream, which is deleted at the end if it exists."""
    yield subjects.prefix
    try:
        await js.call(f"STREAM.DELETE.{subjects.prefix}")
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise


def config(name: str, **more: object) -> Config:
    return {"name": name, "subjects": [f"{name}.>"], "storage": "memory", "num_replicas": 1, "discard": "new", **more}


# -- messages ----------------------------------------------------------------------------------------------------------


async def test_a_published_message_is_read_back_whole(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    ack = await js.publish(f"{name}.a", b"\x00\xffbytes", {"X-A": "1", "X-B": "zwei: drei", "X-C": "grün"})
    stored = await js.last(name, f"{name}.a")
    assert stored is not None
    assert (stored.sequence, stored.subject, stored.data) == (ack.sequence, f"{name}.a", b"\x00\xffbytes")
    assert stored.headers == {"X-A": "1", "X-B": "zwei: drei", "X-C": "grün"}
    assert stored.time.startswith("20")


async def test_reads_by_number_by_subject_and_from_a_number_on(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    await js.publish_all(f"{name}.a", [b"1", b"2"])
    await js.publish(f"{name}.b", b"3")
    await js.publish(f"{name}.a", b"4")

    def data(stored: Any) -> bytes | None:
        return None if stored is None else stored.data

    assert data(await js.last(name, f"{name}.a")) == b"4"
    assert data(await js.get(name, 3)) == b"3"
    assert data(await js.next(name, f"{name}.a", 3)) == b"4"
    assert data(await js.next(name, f"{name}.b", 0)) == b"3"
    assert data(await js.last(name, f"{name}.c")) is None
    assert data(await js.get(name, 9)) is None
    assert data(await js.next(name, f"{name}.b", 4)) is None


async def test_a_message_of_the_largest_size_is_read_back(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    data = bytes(range(256)) * (js.connection.max_payload // 256)
    await js.publish(f"{name}.a", data)
    stored = await js.last(name, f"{name}.a")
    assert stored is not None
    assert stored.data == data


async def test_a_stream_that_is_not_there_is_told_from_a_message_that_is_not(js: JetStream) -> None:
    with pytest.raises(ApiError) as refused:
        await js.last("nothere", "nothere.a")
    assert refused.value.err_code == STREAM_NOT_FOUND
    with pytest.raises(NoRespondersError):
        await js.publish("nothere.a", b"")


async def test_what_answers_but_is_no_stream_is_an_error(js: JetStream) -> None:
    subject = js.connection.new_inbox()
    async with js.connection.subscribe(subject) as messages, anyio.create_task_group() as group:

        async def answer() -> None:
            for data in (b"{}", b"no", b"[1]", b'{"seq": "1"}', b"[" * 9000):
                request = await anext(messages)
                await js.connection.publish(request.reply, data)

        group.start_soon(answer)
        for _ in range(5):
            with pytest.raises(TransientError):
                await js.publish(subject, b"")


async def test_compare_and_set_refuses_the_second_writer(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    ack = await js.publish(f"{name}.a", b"1", expected_last_subject_sequence=0)
    with pytest.raises(ApiError) as refused:
        await js.publish(f"{name}.a", b"2", {"X-A": "b"}, expected_last_subject_sequence=0)
    assert refused.value.err_code == WRONG_LAST_SEQUENCE
    ack = await js.publish(f"{name}.a", b"2", {"X-A": "b"}, expected_last_subject_sequence=ack.sequence)
    encoded = encode_headers({"X-A": "b"})
    with pytest.raises(ApiError):
        await js.publish(f"{name}.a", b"3", encoded, expected_last_subject_sequence=0)
    await js.publish(f"{name}.a", b"3", encoded, expected_last_subject_sequence=ack.sequence)
    stored = [await js.next(name, f"{name}.a", 2), await js.next(name, f"{name}.a", 3)]
    assert [message.headers for message in stored if message] == [{"X-A": "b", EXPECTED_LAST: at} for at in ("1", "2")]


async def test_the_expected_sequence_replaces_that_in_the_headers(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    await js.publish(f"{name}.a", b"1", {EXPECTED_LAST: "7"}, expected_last_subject_sequence=0)


async def test_a_second_message_of_the_same_id_is_a_duplicate(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    first = await js.publish(f"{name}.a", b"1", {"Nats-Msg-Id": "x"})
    second = await js.publish(f"{name}.a", b"1", {"Nats-Msg-Id": "x"})
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.sequence == second.sequence


async def test_a_message_for_another_stream_is_refused(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    with pytest.raises(ApiError) as refused:
        await js.publish(f"{name}.a", b"", {"Nats-Expected-Stream": "other"})
    assert refused.value.err_code == STREAM_MISMATCH


@pytest.mark.parametrize(
    ("limits", "of_subject"),
    [
        ({"max_msgs_per_subject": 1, "discard_new_per_subject": True}, True),
        ({"max_msgs": 1}, False),
        ({"max_bytes": 100}, False),
    ],
)
async def test_a_full_subject_is_told_from_a_full_stream(
    js: JetStream, name: str, limits: Config, of_subject: bool
) -> None:
    await js.ensure_stream(config(name, **limits))
    await js.publish(f"{name}.a", b"x" * 10)
    with pytest.raises(ApiError) as refused:
        await js.publish(f"{name}.a", b"x" * 100)
    assert is_subject_full(refused.value) == of_subject
    assert is_full(refused.value)


async def test_publish_all_keeps_the_order_and_its_window(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    acks = await js.publish_all(f"{name}.a", (b"%d" % number for number in range(100)), window=3)
    assert [ack.sequence for ack in acks] == list(range(1, 101))
    assert await js.publish_all(f"{name}.a", []) == []


async def test_an_answer_that_is_lost_is_a_timeout(nats_server: EmbeddedNats, js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    async with proxied(nats_server.port) as proxy, Connection.connect(proxy.url) as connection:
        deaf = JetStream(connection, timeout=0.5)
        proxy.lose = lambda _: True
        with pytest.raises(NoAnswerError):
            await deaf.publish(f"{name}.a", b"landed")
        with pytest.raises(NoAnswerError):
            await deaf.publish_all(f"{name}.a", [b"landed", b"too"])
        with pytest.raises(NoAnswerError):
            await deaf.last(name, f"{name}.a")
        while (await js.stream_info(name)).messages < 3:
            await anyio.lowlevel.checkpoint()


# -- deletes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["memory", "file"])
async def test_deleting_what_is_not_there_is_a_success(js: JetStream, name: str, storage: str) -> None:
    await js.ensure_stream(config(name, storage=storage))
    await js.delete_message(name, 1)
    await js.publish_all(f"{name}.a", [b"1", b"2", b"3"])
    for sequence in (2, 2, 1, 1, 99):
        await js.delete_message(name, sequence)
    await js.delete_many(name, [1, 2, 99])
    assert (await js.stream_info(name)).messages == 1
    with pytest.raises(ApiError):
        await js.delete_message("nothere", 1)


@pytest.mark.parametrize("count", [0, 1, 64, 65, 500])
async def test_many_are_deleted_and_no_others(js: JetStream, name: str, count: int) -> None:
    await js.ensure_stream(config(name, storage="file"))
    await js.publish_all(f"{name}.a", [b"x"] * 501, window=100)
    await js.delete_many(name, range(1, count + 1))
    with anyio.fail_after(60):
        # The server works on several calls at once, so the last answer may come before earlier ones.
        info = await js.stream_info(name)
        while info.messages > 501 - count:
            await anyio.sleep(0.01)
            info = await js.stream_info(name)
    assert (info.messages, info.first_sequence, info.last_sequence) == (501 - count, count + 1, 501)


async def test_a_purge_takes_one_subject_up_to_a_number(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    for key in "abab":
        await js.publish(f"{name}.{key}", b"")
    assert await js.purge(name, f"{name}.a", sequence=3) == 1
    assert await js.subject_counts(name, ">") == {f"{name}.a": 1, f"{name}.b": 2}
    assert await js.purge(name, f"{name}.b", keep=1) == 1
    assert await js.purge(name) == 2


async def test_subjects_are_counted_through_all_pages(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    for key in range(5):
        await js.publish(f"{name}.{key}", b"")
    await js.publish(f"{name}.0", b"")
    whole = await js.subject_counts(name, f"{name}.*")
    assert whole == {f"{name}.0": 2} | {f"{name}.{key}": 1 for key in range(1, 5)}
    assert await js.subject_counts(name, f"{name}.none") == {}


async def test_pages_are_asked_for_until_the_total_is_reached(
    js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server makes pages beyond 100,000 subjects; here they are smaller."""
    subjects = {f"{name}.{number}": number for number in range(25)}

    async def call(_: str, body: Config) -> Config:
        page = list(subjects.items())[body["offset"] : body["offset"] + 10]
        return {"state": {"subjects": dict(page)}, "total": len(subjects)}

    monkeypatch.setattr(js, "call", call)
    assert await js.subject_counts(name, ">") == subjects


# -- streams and consumers ---------------------------------------------------------------------------------------------


async def test_servers_that_start_together_all_find_the_topology(js: JetStream, subjects: Subjects) -> None:
    options = TopologyOptions(durability="memory")
    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(ensure_topology, js, subjects, options)
    for stream in streams(subjects, options):
        found = (await js.stream_info(stream["name"])).config
        assert {name: found.get(name) or None for name in stream} == {
            name: value or None for name, value in stream.items()
        }
    found = (await js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER)).config
    assert found["max_ack_pending"] == -1
    for stream in streams(subjects, options):
        await js.call(f"STREAM.DELETE.{stream['name']}")


async def test_what_may_be_changed_is_changed_and_what_is_not_named_stays(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name, max_bytes=1_000_000, description="an operator's"))
    await js.publish(f"{name}.a", b"kept")
    wanted = config(name, max_bytes=2_000_000)
    await js.ensure_stream(wanted)
    await js.ensure_stream(wanted)
    info = await js.stream_info(name)
    assert (info.config["max_bytes"], info.config["description"], info.messages) == (2_000_000, "an operator's", 1)


async def test_what_cannot_be_changed_is_named_with_both_values(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    with pytest.raises(ConfigError) as refused:
        await js.ensure_stream(config(name, storage="file"))
    assert "storage is 'memory', wanted 'file'" in refused.value.message
    assert name in refused.value.message


async def test_a_subject_that_belongs_to_another_stream_is_a_setting_to_be_mended(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    with pytest.raises(ConfigError, match="overlap"):
        await js.ensure_stream(config(f"{name}2", subjects=[f"{name}.a"]))


async def test_a_consumer_is_updated_or_its_conflict_named(js: JetStream, subjects: Subjects, name: str) -> None:
    await js.ensure_stream(config(name))
    wanted = tasks_consumer(subjects, TopologyOptions()) | {"filter_subject": f"{name}.*"}
    await js.ensure_consumer(name, wanted)
    await js.ensure_consumer(name, wanted)
    await js.ensure_consumer(name, wanted | {"ack_wait": 3_000_000_000})
    assert (await js.consumer_info(name, TASKS_CONSUMER)).config["ack_wait"] == 3_000_000_000
    with pytest.raises(ConfigError) as refused:
        await js.ensure_consumer(name, wanted | {"deliver_policy": "new"})
    assert "deliver_policy is 'all', wanted 'new'" in refused.value.message
    await js.delete_consumer(name, TASKS_CONSUMER)
    await js.delete_consumer(name, TASKS_CONSUMER)


async def test_a_stream_created_anew_is_told_from_its_namesake(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    first = (await js.stream_info(name)).created
    assert await js.stream_created(name) == first
    await js.call(f"STREAM.DELETE.{name}")
    await js.ensure_stream(config(name))
    assert (await js.stream_info(name)).created != first
    assert await js.stream_created(name) != first


async def test_too_many_consumers_is_an_error_with_its_code(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name, max_consumers=1))
    one = {"ack_policy": "none", "filter_subject": f"{name}.a", "mem_storage": True}
    await js.create_consumer(name, {**one, "name": "one"})
    with pytest.raises(ApiError) as refused:
        await js.create_consumer(name, {**one, "name": "two"})
    assert refused.value.err_code == MAX_CONSUMERS
    assert "raise max_consumers" in refused.value.message


async def test_no_more_calls_are_in_flight_than_the_limit(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted on the server's side, for two objects of one process: the limit is that of the process."""
    flying = most = 0
    async with connection.subscribe("$FAKE.API.>") as calls, anyio.create_task_group() as group:

        async def serve() -> None:
            nonlocal flying, most
            held: list[str] = []
            async for call in calls:
                held.append(call.reply)
                most = max(most, len(held))
                if len(held) == MAX_CALLS or json.loads(call.data)["last"]:
                    for reply in held:
                        await connection.publish(reply, b"{}")
                    held.clear()

        async def call(one: JetStream, number: int) -> None:
            await one.call("X", {"last": number >= 2 * MAX_CALLS})

        both = [JetStream(connection), JetStream(connection)]
        for one in both:
            one.prefix = "$FAKE.API."
        group.start_soon(serve)
        async with anyio.create_task_group() as callers:
            for number in range(2 * MAX_CALLS + 1):
                callers.start_soon(call, both[number % 2], number)
        group.cancel_scope.cancel()
    assert most == MAX_CALLS

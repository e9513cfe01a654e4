"""Cases that compare the model with nats-server: storing, reading, deleting, and streams."""

from datetime import datetime, timedelta
from functools import partial

import anyio
import pytest

from rebaser_client.jetstream import JetStream, NoRespondersError
from rebaser_client.jetstream.errors import (
    STREAM_MISMATCH,
    STREAM_NAME_IN_USE,
    STREAM_NOT_FOUND,
    WRONG_LAST_SEQUENCE,
    is_full,
    is_subject_full,
)
from rebaser_core.errors import ConfigError
from tests.simulation.conformance.cases import NANOS, case, config, queue, refusal, until


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
    # The last of these messages may still be on their way.
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
async def messages_are_found_by_the_time_when_they_were_stored(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name))
    for subject in ("a", "b", "a"):
        await js.publish(f"{name}.{subject}", b"")
        await anyio.sleep(0.002)
    newest = datetime.fromisoformat((await js.stream_info(name)).last_time)

    async def since(time: datetime, subject: str = "a") -> int | None:
        found = await js.next_since(name, f"{name}.{subject}", time)
        return None if found is None else found.sequence

    assert [await since(newest + timedelta(seconds=moved)) for moved in (-3600, 0, 1)] == [1, 3, None]
    assert [await since(newest + timedelta(seconds=moved), "b") for moved in (-3600, 0)] == [2, None]


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
async def a_stream_can_begin_with_another_sequence(js: JetStream, name: str) -> None:
    """No message of an earlier stream of this name has a sequence of the new one."""
    await js.ensure_stream(config(name))
    old = (await js.publish(f"{name}.a", b"old")).sequence
    await js.delete_stream(name)
    await js.ensure_stream(config(name), {"first_seq": 1_000_001})
    info = await js.stream_info(name)
    assert (info.messages, info.first_sequence, info.last_sequence) == (0, 1_000_001, 1_000_000)
    refused = await refusal(js.publish(f"{name}.a", b"", expected_last_subject_sequence=old))
    assert refused.err_code == WRONG_LAST_SEQUENCE
    assert (await js.publish(f"{name}.a", b"", expected_last_subject_sequence=0)).sequence == 1_000_001
    await js.delete_message(name, old)
    await js.ensure_stream(config(name))
    assert (await js.stream_info(name)).messages == 1


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

"""Streams and consumers as objects (ADR-37), and what a consumer refuses before it pulls."""

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rebaser_client.jetstream import ApiError, Consumer, JetStream, Stream
from rebaser_client.jetstream.errors import CONSUMER_EXISTS, CONSUMER_NOT_FOUND, STREAM_NAME_IN_USE, STREAM_NOT_FOUND
from rebaser_core.errors import ConfigError
from rebaser_core.streams.subjects import Subjects

pytestmark = pytest.mark.anyio

CONSUMER_DOES_NOT_EXIST = 10149


@pytest.fixture
async def stream(js: JetStream, subjects: Subjects) -> AsyncIterator[Stream]:
    yield await js.add_stream(config(subjects.prefix))
    await js.delete_stream(subjects.prefix)


def config(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "subjects": [f"{name}.>"], "storage": "memory", "num_replicas": 1, **more}


async def test_a_stream_is_added_updated_listed_and_deleted(js: JetStream, subjects: Subjects) -> None:
    name = subjects.prefix
    stream = await js.add_stream(config(name))
    assert (stream.name, stream.cached_info.messages) == (name, 0)
    assert (await js.add_stream(config(name))).cached_info.created == stream.cached_info.created
    with pytest.raises(ApiError) as refused:
        await js.add_stream(config(name, max_msgs=5))
    assert refused.value.err_code == STREAM_NAME_IN_USE
    updated = await js.update_stream(config(name, max_msgs=5))
    assert updated.cached_info.config["max_msgs"] == 5
    assert (await js.get_stream(name)).cached_info.config["max_msgs"] == 5
    assert [info.name async for info in js.list_streams(f"{name}.a")] == [name]
    assert name in [info.name async for info in js.list_streams()]
    await stream.delete()
    await js.delete_stream(name)
    with pytest.raises(ApiError) as gone:
        await js.get_stream(name)
    assert gone.value.err_code == STREAM_NOT_FOUND


async def test_lists_are_read_through_all_pages(js: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server makes pages beyond 256 streams; here they are smaller."""
    names = [f"s{number}" for number in range(25)]

    async def call(_: str, body: dict[str, Any]) -> dict[str, Any]:
        page = names[body["offset"] : body["offset"] + 10]
        return {"streams": [{"config": {"name": name}} for name in page], "total": len(names)}

    monkeypatch.setattr(js, "call", call)
    assert [info.name async for info in js.list_streams()] == names


async def test_a_stream_gives_deletes_and_purges_messages(js: JetStream, stream: Stream) -> None:
    name = stream.name
    for key in "aabb":
        await js.publish(f"{name}.{key}", key.encode())
    assert stream.cached_info.messages == 0
    assert (await stream.info()).messages == stream.cached_info.messages == 4

    async def sequence(**which: Any) -> int | None:
        found = await stream.get_message(**which)
        return None if found is None else found.sequence

    assert [await sequence(sequence=2), await sequence(sequence=9)] == [2, None]
    assert [await sequence(last_of=f"{name}.a"), await sequence(next_of=f"{name}.b", sequence=1)] == [2, 3]
    await stream.delete_message(2, erase=True)
    assert await sequence(last_of=f"{name}.a") == 1
    for unclear in ({}, {"sequence": 0}, {"last_of": "a", "next_of": "a"}, {"last_of": "a", "sequence": 1}):
        with pytest.raises(ConfigError, match="give only `sequence`"):
            await stream.get_message(**unclear)
    assert await stream.purge(f"{name}.b", keep=1) == 1
    assert await stream.purge() == 2
    assert (await js.account_info()).streams >= 1


@pytest.mark.parametrize("through", ["context", "stream"])
async def test_a_consumer_is_created_updated_got_and_deleted(js: JetStream, stream: Stream, through: str) -> None:
    of: Any = stream
    name: tuple[str, ...] = ()
    if through == "context":
        of, name = js, (stream.name,)
    wanted = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": f"{stream.name}.a"}
    with pytest.raises(ApiError) as missing:
        await of.update_consumer(*name, wanted)
    assert missing.value.err_code == CONSUMER_DOES_NOT_EXIST
    consumer = await of.create_consumer(*name, wanted)
    assert (consumer.stream, consumer.name) == (stream.name, "c")
    await of.create_consumer(*name, wanted)
    with pytest.raises(ApiError) as exists:
        await of.create_consumer(*name, {**wanted, "max_deliver": 3})
    assert exists.value.err_code == CONSUMER_EXISTS
    await of.update_consumer(*name, {**wanted, "max_deliver": 3})
    assert consumer.cached_info.config.get("max_deliver") == -1
    assert (await consumer.info()).config["max_deliver"] == consumer.cached_info.config["max_deliver"] == 3
    updated = await of.create_or_update_consumer(*name, {**wanted, "max_deliver": 4})
    assert updated.cached_info.config["max_deliver"] == 4
    assert (await of.get_consumer(*name, "c")).cached_info.config["max_deliver"] == 4
    assert [info.name async for info in of.list_consumers(*name)] == ["c"]
    await of.delete_consumer(*name, "c")
    await consumer.delete()
    with pytest.raises(ApiError) as gone:
        await of.get_consumer(*name, "c")
    assert gone.value.err_code == CONSUMER_NOT_FOUND
    assert [info.name async for info in of.list_consumers(*name)] == []


async def test_a_consumer_without_a_name_gets_one(stream: Stream) -> None:
    first = await stream.create_consumer({"ack_policy": "none"})
    second = await stream.create_or_update_consumer({"ack_policy": "none"})
    assert first.name
    assert first.name != second.name


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", ">", "a/b", "a\\b", "a\r\nb"])
async def test_a_name_that_no_server_takes_is_refused_at_once(js: JetStream, name: str) -> None:
    of_a_stream = [js.get_stream, js.delete_stream, js.stream_info, js.purge]
    of_a_consumer = [js.get_consumer, js.delete_consumer, js.consumer_info]
    calls = [
        *(call(name) for call in of_a_stream),  # type: ignore[operator]
        *(call("s", name) for call in of_a_consumer),
        *(call(name, "c") for call in of_a_consumer),
        *(js.add_stream({"name": name}), js.update_stream({"name": name}), js.ensure_stream({"name": name})),
        *(js.get(name, 1), js.delete_message(name, 1), js.unpin("s", name, "g"), anext(js.list_consumers(name))),
        js.create_consumer("s", {"durable_name": name or " ", "ack_policy": "explicit"}),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="is not a valid name of a stream or consumer"):
            await call


# -- what is refused before anything is sent ---------------------------------------------------------------------------


@pytest.fixture
async def consumer(stream: Stream) -> Consumer:
    return await stream.create_consumer({"name": "plain", "ack_policy": "explicit"})


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"max_messages": 1, "max_bytes": 1}, "`max_messages` and `max_bytes` are both given"),
        ({"max_messages": 0}, "`max_messages` is 0; it must be 1 or more"),
        ({"max_bytes": -1}, "`max_bytes` is -1; it must be 1 or more"),
        ({"expires": 0.9}, "`expires` is 0.9 s; for `consume` it must be from 1 to"),
        ({"expires": math.inf}, "`expires` is inf s; for `consume` it must be from 1 to 1e\\+09 s"),
        ({"expires": math.nan}, "`expires` is nan s"),
        ({"idle_heartbeat": 0.4}, "`idle_heartbeat` is 0.4 s; it must be from 0.5 to 30 s"),
        ({"idle_heartbeat": 31, "expires": 90}, "must be from 0.5 to 30 s"),
        ({"idle_heartbeat": 3, "expires": 5}, "`idle_heartbeat` is 3 s; it must be at most 2.5 s, half of `expires`"),
        (
            {"max_messages": 10, "threshold_messages": 11},
            "`threshold_messages` is 11; it must be from 0 to `max_messages`",
        ),
        ({"max_bytes": 10, "threshold_bytes": 11}, "`threshold_bytes` is 11; it must be from 0 to `max_bytes`"),
        (
            {"max_bytes": 10, "threshold_messages": 1},
            "`threshold_messages` has no effect if the limit is `max_bytes`",
        ),
        ({"threshold_bytes": 1}, "`threshold_bytes` has no effect if the limit is `max_messages`"),
        ({"group": "g"}, "has no priority groups"),
        ({"group": "no group"}, "is not a valid group name"),
        ({"priority": 1}, "a pull with `priority` must specify a priority group"),
    ],
)
async def test_consume_refuses(consumer: Consumer, options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        consumer.consume(**options)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "neither `max_messages` nor `max_bytes` is given"),
        ({"max_messages": 0}, "`max_messages` is 0; it must be 1 or more"),
        ({"max_messages": 0, "max_bytes": 1}, "`max_messages` is 0; it must be 1 or more"),
        ({"max_messages": 1, "max_bytes": 0}, "`max_bytes` is 0; it must be 1 or more"),
        ({"max_messages": 1, "expires": 0}, "`expires` is 0 s; for `fetch` and `next` it must be above 0"),
        (
            {"max_messages": 1, "expires": math.inf},
            "`expires` is inf s; for `fetch` and `next` it must be above 0, and at most 1e\\+09 s",
        ),
        ({"max_messages": 1, "expires": math.nan}, "`expires` is nan s"),
        ({"max_messages": 1, "idle_heartbeat": 20}, "it must be at most 15 s, half of `expires`"),
        ({"max_messages": 1, "group": "g"}, "has no priority groups"),
    ],
)
async def test_fetch_refuses(consumer: Consumer, options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        consumer.fetch(**options)


@pytest.mark.parametrize(
    ("policy", "options", "what"),
    [
        ("overflow", {}, "has priority groups: set `group` to one of them"),
        ("overflow", {"group": "h"}, "has no priority group h: set `group` to one that exists"),
        ("overflow", {"group": "g", "priority": 1}, "`priority` requires the priority policy prioritized"),
        ("prioritized", {"group": "g", "min_pending": 1}, "`min_pending` requires the priority policy overflow"),
        (
            "pinned_client",
            {"group": "g", "min_ack_pending": 1},
            "`min_ack_pending` requires the priority policy overflow",
        ),
    ],
)
async def test_a_group_has_to_be_the_consumers(stream: Stream, policy: str, options: dict[str, Any], what: str) -> None:
    wanted = {"name": "c", "ack_policy": "explicit", "priority_groups": ["g"], "priority_policy": policy}
    consumer = await stream.create_consumer(wanted)
    with pytest.raises(ConfigError, match=what):
        consumer.consume(**options)
    if policy != "pinned_client":
        with pytest.raises(ConfigError, match=what):
            await consumer.next(**options)


async def test_fetch_and_next_are_refused_where_one_client_is_pinned(stream: Stream) -> None:
    wanted = {"name": "c", "ack_policy": "explicit", "priority_groups": ["g"], "priority_policy": "pinned_client"}
    consumer = await stream.create_consumer(wanted)
    with pytest.raises(ConfigError, match="pins a client: use `consume`"):
        consumer.fetch(1, group="g")
    with pytest.raises(ConfigError, match="pins a client: use `consume`"):
        await consumer.next(group="g")


async def test_a_consumer_that_pushes_is_not_pulled_from(stream: Stream) -> None:
    consumer = await stream.create_consumer({"name": "c", "deliver_subject": "somewhere"})
    with pytest.raises(ConfigError, match="only a pull consumer can be pulled from"):
        consumer.fetch(1)

"""The answers that a program gets to its requests, and its reads of parts of a change set."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest
from anyio.lowlevel import checkpoint

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import (
    Conflict,
    Derive,
    NotConnectedError,
    RebaserClient,
    Remove,
    RequestConflicts,
    RequestIdReused,
    RequestTimeout,
    Set,
    State,
    UnprocessableError,
)
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import JetStream, StoredMessage
from rebaser_client.requests import sender
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.messages import EnqueueUpdatesRequest, decode, encode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.conftest import Events
from tests.support.owners import DOUBLE, Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
async def engine() -> Engine:
    engine = Engine()
    engine.go.set()
    return engine


@pytest.fixture
async def client(js: JetStream, subjects: Subjects, nats_url: str, engine: Engine) -> AsyncIterator[RebaserClient]:
    """A client, with a server."""
    async with serving(js, subjects, engine), RebaserClient.connect(nats_url, prefix=subjects.prefix) as connected:
        yield connected


async def test_a_timeout_of_the_update_says_in_which_commit_the_request_was_applied(
    client: RebaserClient, engine: Engine
) -> None:
    await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])  # its owner has loaded the change set now
    engine.go = anyio.Event()
    for timeout in (1, 5, 20, 60):  # a slow machine may need more to apply it
        with pytest.raises(RequestTimeout) as late:
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 21), DOUBLE], wait="derived", timeout=timeout)
        if (commit := late.value.commit) is not None:
            break
    assert commit is not None
    assert f"was applied in commit {commit}, but derived values were not" in str(late.value)
    assert commit == (await client.state("ws", "cs")).last
    engine.go.set()
    await client.wait_covered("ws", "cs", commit)
    assert (await client.value("ws", "cs", "double")) is not None


async def test_who_waits_for_an_update_no_longer_follows_no_log(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    for value in (1, 2):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", value), DOUBLE], wait="derived")
    with anyio.fail_after(60):
        while (await js.stream_info(subjects.commits_stream)).consumers:
            await checkpoint()


async def test_nothing_is_kept_of_a_request_that_was_answered_or_given_up(client: RebaserClient) -> None:
    await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
    with pytest.raises(RequestTimeout):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 2)], timeout=0.0)
    assert not client._resender._queues
    with anyio.fail_after(60):
        while client._connection._replies._waiting:  # at most the answer to the task of the second request
            await checkpoint()


async def test_conflicts_are_raised_and_say_which_values_and_why(client: RebaserClient) -> None:
    await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
    updates = [Remove("a"), Remove("b"), Remove("c"), Set("d", 1)]
    with pytest.raises(RequestConflicts, match="the values to remove do not exist in this change set: b, c") as raised:
        await client.enqueue_updates_with_reply("ws", "cs", updates, from_change_set="draft")  # type: ignore[arg-type]
    assert raised.value.conflicts == tuple(Conflict(id_, "does not exist in this change set") for id_ in ("b", "c"))
    assert list(await client.values("ws", "cs")) == ["a"]


async def test_no_answer_is_larger_than_a_message_however_much_is_in_conflict(client: RebaserClient) -> None:
    updates = [Remove(f"{number:06}" + "x" * 500) for number in range(10_000)]
    with pytest.raises(RequestConflicts) as raised:
        await client.enqueue_updates_with_reply("ws", "cs", updates, from_change_set="draft")
    assert [one.id for one in raised.value.conflicts] == [update.id for update in updates[:100]]


async def test_an_unknown_word_to_wait_for_is_refused_before_anything_is_sent(client: RebaserClient) -> None:
    wait: Any = "bogus"
    with pytest.raises(UnprocessableError, match="wait must be 'applied' or 'derived', not 'bogus'"):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)], wait=wait)
    assert not await client.exists("ws", "cs")


async def test_a_change_set_exists_also_in_the_moment_in_which_its_first_request_is_decided(
    client: RebaserClient, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ChangeSetKey("ws", "cs")
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("first"), "ws", "cs", (Set("a", 1),)))
    sequence = (await js.publish(subjects.requests(key), payload, headers)).sequence

    def decided_behind(look: Callable[..., Awaitable[StoredMessage | None]]) -> Callable[..., Awaitable[object]]:
        async def looked(*args: object) -> object:
            found = await look(*args)
            await publish_task(js, subjects, key)
            while await js.get(subjects.requests_stream, sequence) is not None:
                await checkpoint()
            return found

        return looked

    for name in ("next", "last"):
        monkeypatch.setattr(client._js, name, decided_behind(getattr(client._js, name)))
    with anyio.fail_after(60):
        assert await client.exists("ws", "cs")


async def test_what_numpy_and_collections_give_is_stored_as_json(client: RebaserClient) -> None:
    given = {"a": np.int64(1), "b": (np.float32(0.5), np.bool_(True)), "c": range(2)}
    await client.enqueue_updates_with_reply("ws", "cs", [Set("a", given)])  # type: ignore[arg-type]
    value = await client.value("ws", "cs", "a")
    assert value is not None
    assert repr(value.value) == "{'a': 1, 'b': [0.5, True], 'c': [0, 1]}"


async def test_one_reads_what_one_needs(client: RebaserClient) -> None:
    prices = [Set(f"cart/{number}/price", number) for number in range(1, 4)]
    total = Derive("cart/total", "sum", {"values": ("cart/1/price", "cart/2/price")})
    await client.enqueue_updates_with_reply("ws", "cs", [*prices, Set("fee", 1), total], wait="derived")

    found = await client.value("ws", "cs", "cart/total")
    assert found is not None
    assert (found.value, found.state) == (3, State.OK)
    assert await client.value("ws", "cs", "nothing") is None
    by_pattern = await client.values("ws", "cs", "cart/*/price")
    assert {id_: value.value for id_, value in by_pattern.items()} == {update.id: update.value for update in prices}
    assert list(await client.values("ws", "cs", "cart/**")) == [*(update.id for update in prices), "cart/total"]
    assert await client.values("ws", "cs", "no/*") == {}

    first = await client.items("ws", "cs", limit=3)
    rest = await client.items("ws", "cs", limit=3, after=first[-1].id)
    assert [item.id for item in first] == [update.id for update in prices]
    assert [(item.id, item.definition) for item in rest] == [("cart/total", total), ("fee", None)]
    assert await client.items("ws", "cs", limit=3, after=rest[-1].id) == []


async def test_the_time_given_is_used_to_wait_for_a_connection(
    own_nats: EmbeddedNats, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "PUBLISH_TIMEOUT", 0.05)
    tries = 0
    tried = anyio.Event()
    publish = JetStream.publish

    async def count(*args: Any, **options: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 3:
            tried.set()
        return await publish(*args, **options)

    monkeypatch.setattr(JetStream, "publish", count)
    async with RebaserClient.connect(own_nats.url) as client:
        await ensure_topology(client._js, Subjects(""), TopologyOptions())
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(events.wait_for, lambda entry: entry["event"] == "nats_disconnected")
                await anyio.lowlevel.checkpoint()
                await own_nats.kill()
            with pytest.raises(NotConnectedError):
                await client.enqueue_updates("ws", "cs", [Set("a", 1)], timeout=6)  # enough for one attempt
            tries = 0
            async with anyio.create_task_group() as group:
                group.start_soon(client.enqueue_updates, "ws", "cs", [Set("a", 1)])
                await tried.wait()
                await own_nats.start()


async def test_an_id_that_was_used_for_other_content_is_refused_and_keeps_its_outcome(
    client: RebaserClient, events: Events
) -> None:
    first = await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)], request_id="once")
    for _ in range(2):
        with pytest.raises(RequestIdReused, match="a different request with this id") as raised:
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 2)], request_id="once")
        assert raised.value.code == "request_id_reused"
        assert await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)], request_id="once") == first
    assert (await client.values("ws", "cs"))["a"].value == 1
    assert [(told["code"], told["id"]) for told in events.named("request_dead")] == [("request_id_reused", "once")] * 2


async def test_what_was_sent_under_a_used_id_with_nobody_waiting_is_a_dead_letter_and_redriven_comes_back(
    client: RebaserClient, events: Events
) -> None:
    await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)], request_id="once")
    again = partial(client.enqueue_updates, "ws", "cs", [Set("a", 2)], request_id="once")
    with anyio.fail_after(60):
        for redrive in range(2):
            async with anyio.create_task_group() as group:
                group.start_soon(events.wait_for, lambda entry: entry["event"] == "request_dead")
                await anyio.lowlevel.checkpoint()
                await again()
            [letter] = [one async for one in client.dead_letters.find("ws", "cs")]
            assert (letter.request_id, letter.code, letter.redrive) == ("once", "request_id_reused", redrive)
            payload = await client.dead_letters.payload(letter)
            assert payload is not None
            request = decode(letter.headers, payload, DEFAULT_LIMITS, expect=EnqueueUpdatesRequest)
            assert request.updates == (Set("a", 2),)
            again = partial(client.dead_letters.redrive, letter)  # type: ignore[arg-type, assignment]
    assert (await client.values("ws", "cs"))["a"].value == 1


async def test_so_it_is_by_the_next_owner(js: JetStream, subjects: Subjects, nats_url: str, engine: Engine) -> None:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        async with serving(js, subjects, engine):
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)], request_id="once")
        async with serving(js, subjects, engine):
            with pytest.raises(RequestIdReused):
                await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 2)], request_id="once")
            assert await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)], request_id="once")

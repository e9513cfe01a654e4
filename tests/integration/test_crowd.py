"""With more change sets than slots, each gets its turn, however long it takes to load."""

from dataclasses import replace
from typing import Any

import anyio
import pytest

from rebaser import crowd, server
from rebaser.runtime import slots
from rebaser.settings import Settings
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import JetStream, PullMessage
from rebaser_client.log.reader import StateLoader
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TASKS_CONSUMER
from tests.support.contexts import context_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def test_loading_is_no_part_of_a_turn(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, an owner that loads for longer than its turn would have to yield each time before it decides
    anything."""
    monkeypatch.setattr(server, "CROWD_CHECK", 0.02)
    looked = 0
    consumer_info, load = JetStream.consumer_info, StateLoader.load

    async def looks(self: JetStream, stream: str, name: str) -> Any:
        nonlocal looked
        looked += name == TASKS_CONSUMER
        return await consumer_info(self, stream, name)

    async def loads(self: StateLoader, key: ChangeSetKey) -> Any:
        until = looked + 3
        while looked < until:  # noqa: ASYNC110 - it is counted by another task
            await anyio.sleep(0.01)
        return await load(self, key)

    for name in ("one", "two"):
        await client.enqueue_updates("ws", name, [Set("a", 1)])
    monkeypatch.setattr(JetStream, "consumer_info", looks)
    async with serving(js, subjects, Engine(), concurrency=1, turn=0.01):
        monkeypatch.setattr(StateLoader, "load", loads)
        with anyio.fail_after(60):
            for name in ("one", "two"):
                async for commit in client.watch("ws", name, after=0):
                    assert commit.requests
                    break


async def test_an_owner_that_is_never_idle_yields_when_its_turn_is_over(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CROWD_CHECK", 0.02)
    monkeypatch.setattr(crowd, "IDLE_AFTER", float("inf"))
    async with serving(js, subjects, Engine(), concurrency=1, turn=0.01):
        for name in ("one", "two", "one"):
            await client.enqueue_updates_with_reply("ws", name, [Set("a", 1)], timeout=60)


async def test_a_task_that_another_server_gave_back_has_its_turn_beside_owners_that_are_never_idle(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS does not count such a task among the pending messages of the consumer."""
    monkeypatch.setattr(server, "CROWD_CHECK", 0.02)
    monkeypatch.setattr(crowd, "IDLE_AFTER", float("inf"))
    async with serving(js, subjects, Engine(), concurrency=1, turn=0.01):
        await client.enqueue_updates_with_reply("ws", "one", [Set("a", 1)], timeout=60)
        async with serving(js, subjects, Engine(), concurrency=1, turn=600):
            await client.enqueue_updates_with_reply("ws", "two", [Set("a", 1)], timeout=60)
        await client.enqueue_updates_with_reply("ws", "two", [Set("a", 2)], timeout=60)


async def test_a_full_server_looks_at_its_owners_only_if_a_task_may_wait(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CROWD_CHECK", 0.02)
    pulling, checks, searches = 1, 0, 0
    consumer_info, yielding = JetStream.consumer_info, crowd.yielding

    async def looks(self: JetStream, stream: str, name: str) -> Any:
        nonlocal checks
        info = await consumer_info(self, stream, name)
        if name != TASKS_CONSUMER:
            return info
        checks += 1
        return replace(info, num_pending=0, num_waiting=pulling)

    def searches_all(*given: Any) -> Any:
        nonlocal searches
        searches += 1
        return yielding(*given)

    async with serving(js, subjects, Engine(), concurrency=1):
        await client.enqueue_updates_with_reply("ws", "one", [Set("a", 1)], timeout=60)
        with anyio.fail_after(60):
            monkeypatch.setattr(JetStream, "consumer_info", looks)
            while not checks:  # noqa: ASYNC110 - a loop of the server counts; no earlier check is under way then
                await anyio.sleep(0.01)
            monkeypatch.setattr(crowd, "yielding", searches_all)
            while checks < 4:  # noqa: ASYNC110 - as above
                await anyio.sleep(0.01)
            assert not searches
            pulling = 0
            while not searches:  # noqa: ASYNC110 - as above
                await anyio.sleep(0.01)


async def test_a_change_set_beside_idle_ones_waits_for_no_check(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full server with idle owners requests one more task, so it learns at once that a change set waits."""
    monkeypatch.setattr(server, "CROWD_CHECK", float("inf"))
    async with serving(js, subjects, Engine(), concurrency=2) as full:
        with anyio.fail_after(60):
            for number in range(6):
                await client.enqueue_updates_with_reply("ws", f"cs{number}", [Set("a", 1)], timeout=60)
        assert full._slots_taken <= 2


async def test_a_task_without_a_slot_is_held_until_an_owner_is_idle(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CROWD_CHECK", float("inf"))
    key = ChangeSetKey("ws", "two")
    async with serving(js, subjects, Engine(), concurrency=1) as full:
        await client.enqueue_updates_with_reply("ws", "one", [Set("a", 1)], timeout=60)
        with anyio.fail_after(60):
            while not full._overbooked:  # noqa: ASYNC110 - a loop of the server sets it
                await anyio.sleep(0.01)
            monkeypatch.setattr(crowd, "IDLE_AFTER", float("inf"))
            await client.enqueue_updates("ws", "two", [Set("a", 1)])
            while key not in full._held:  # noqa: ASYNC110 - as above
                await anyio.sleep(0.01)
            assert list(full._owners) == [ChangeSetKey("ws", "one")]
            assert not full._overbooked
            monkeypatch.setattr(crowd, "IDLE_AFTER", 0.0)
            async for commit in client.watch("ws", "two", after=0):
                assert commit.requests
                break
        assert not full._held


async def test_a_large_state_takes_slots_from_the_others(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    context = context_of(js, subjects, Settings(server_id="test", ack_wait=3, quiescent_period=600), Engine())
    server_ = server.Server(replace(context, memory=3 * 100 * slots.OWNER_BYTES))
    async with anyio.create_task_group() as group:
        group.start_soon(server_.run, lambda: None)
        with anyio.fail_after(60):
            await client.enqueue_updates_with_reply("ws", "small", [Set("a", 1)], timeout=60)
            assert server_.snapshot().slots == 100
            values = [Set(f"v{number}", number) for number in range(10_000)]
            await client.enqueue_updates_with_reply("ws", "large", values, timeout=60)
            while server_._slot_total() > 90:  # noqa: ASYNC110 - a loop of the server adds it up
                await anyio.sleep(0.01)
            assert server_._slot_total() < 70
        group.cancel_scope.cancel()


async def test_many_tasks_at_once_are_held_and_started_slice_by_slice(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SLICE", 2)
    most_held = 0
    accept = server.Server._accept
    names = [f"cs{number}" for number in range(9)]
    came: list[PullMessage] = []

    def accept_at_once(self: server.Server, message: PullMessage) -> None:
        nonlocal most_held
        came.append(message)
        if len(came) >= len(names):
            for one in came if len(came) == len(names) else [message]:
                accept(self, one)
                most_held = max(most_held, len(self._held))

    monkeypatch.setattr(server.Server, "_accept", accept_at_once)
    for name in names:
        await client.enqueue_updates("ws", name, [Set("a", 1)])
    async with serving(js, subjects, Engine()) as busy:
        with anyio.fail_after(60):
            for name in names:
                async for commit in client.watch("ws", name, after=0):
                    assert commit.requests
                    break
        assert len(busy._owners) == len(names)
        assert not busy._held
    assert most_held > 0

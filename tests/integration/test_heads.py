"""The newest message of each log is read, and later only what is new, whatever was stored, deleted or restored in
between."""

import random
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from rebaser_client.admin import fleet_watch
from rebaser_client.admin.fleet_watch import FleetWatch
from rebaser_client.jetstream import JetStream, OrderedConsumer
from rebaser_client.log import heads
from rebaser_client.log.heads import HeadReader
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEYS = [ChangeSetKey(workspace, name) for workspace in ("ws", "other") for name in "abc"]


async def store(js: JetStream, subjects: Subjects, key: ChangeSetKey) -> int:
    return (await js.publish(subjects.commits(key), b"", {"X-Test": "1"})).sequence


@pytest.mark.parametrize("workspace", [None, "ws"])
@pytest.mark.parametrize("many", [0, 10**6])
async def test_each_call_returns_what_was_stored_since_the_one_before(
    js: JetStream, subjects: Subjects, workspace: str | None, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(many)
    monkeypatch.setattr(heads, "MANY", many)
    monkeypatch.setattr(heads, "FEW", 0)
    monkeypatch.setattr(heads, "CHUNK", rng.randint(1, 4))
    monkeypatch.setattr(heads, "SILENCE", 0.05)
    reader, calls, counted = HeadReader(js, subjects, workspace), 0, False
    for _ in range(25):
        new = dict[ChangeSetKey, list[int]]()
        for _ in range(rng.choice((0, 1, 3, 12))):
            key = rng.choice(KEYS)
            new.setdefault(key, []).append(await store(js, subjects, key))
        if new and rng.random() < 0.3:  # the newest message of the stream may be among those that are deleted
            for sequence in new.pop(rng.choice(list(new))):
                await js.delete_message(subjects.commits_stream, sequence)
        found, calls = await reader.read(), calls + 1
        expected = {key: stored for key, stored in new.items() if workspace in (None, key.workspace)}
        assert {key: head.sequence for key, head in found.heads.items()} == {
            key: stored[-1] for key, stored in expected.items()
        }
        assert found.anew is (calls == 1)
        if not found.anew:
            if many or counted:  # otherwise, it is not known how many messages there were before
                assert found.commits == {key: len(stored) for key, stored in expected.items()}
            counted = counted or bool(expected)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of messages that consumers hand over from now on."""
    numbers: list[int] = []
    take = OrderedConsumer.take

    def counting(self: OrderedConsumer, *bounds: int) -> list[Any]:
        messages = take(self, *bounds)
        numbers.append(len(messages))
        return messages

    monkeypatch.setattr(OrderedConsumer, "take", counting)
    return numbers


async def store_many(js: JetStream, subjects: Subjects, stored: Mapping[ChangeSetKey, int]) -> None:
    for key, number in stored.items():
        for _ in range(number):
            await store(js, subjects, key)


async def test_of_many_new_messages_only_the_newest_of_each_log_is_read_and_all_are_counted(
    js: JetStream, subjects: Subjects, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "FEW", 0)
    first, second, quiet = KEYS[:3]
    reader = HeadReader(js, subjects)
    await store_many(js, subjects, {first: 1, second: 1, quiet: 1})
    await reader.read()
    for stored, purged, expected in (
        ({first: 30, second: 10}, (), {first: 20, second: 20}),  # who had how many before is not known
        ({first: 30, second: 10}, (), {first: 30, second: 10}),
        ({second: 12}, (), {second: 12}),
        ({first: 30, second: 10}, (first,), {first: 30, second: 10}),  # as a checkpoint deletes old commits
        ({first: 30, second: 10, quiet: 2}, (first, second), {first: 20, second: 20, quiet: 2}),
    ):
        taken.clear()
        await store_many(js, subjects, stored)
        for key in purged:
            await js.purge(subjects.commits_stream, subjects.commits(key), keep=1)
        assert (await reader.read()).commits == expected
        assert sum(taken) == 3
    for _ in range(2):
        taken.clear()
        await store(js, subjects, quiet)
        assert (await reader.read()).commits == {quiet: 1}
        assert sum(taken) == 1


async def test_commits_of_other_workspaces_are_not_counted_as_commits_of_this_one(
    js: JetStream, subjects: Subjects, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "FEW", 0)
    mine, theirs = KEYS[0], KEYS[3:]
    reader = HeadReader(js, subjects, "ws")
    await store_many(js, subjects, dict.fromkeys([mine, *theirs], 1))
    await reader.read()
    for stored, purged, expected in (
        ({theirs[0]: 30, mine: 5}, False, 1),  # it is not known how many `mine` had before
        ({theirs[0]: 30, mine: 5}, False, 5),
        ({mine: 1}, False, 1),  # read without counting
        ({theirs[0]: 30, mine: 5}, False, 5),
        ({mine: 10}, False, 10),  # many for the one log of this workspace, but not for all logs
        ({theirs[0]: 30, mine: 5}, True, 1),
    ):
        taken.clear()
        await store_many(js, subjects, stored)
        if purged:
            await js.purge(subjects.commits_stream, subjects.commits(mine), keep=1)
        assert (await reader.read()).commits == {mine: expected}
        assert sum(taken) == 1


@pytest.mark.parametrize("workspace", [None, "ws"])
async def test_a_few_new_messages_are_counted_exactly_at_once(
    js: JetStream, subjects: Subjects, workspace: str | None
) -> None:
    first, second = KEYS[:2]
    reader = HeadReader(js, subjects, workspace)
    await store_many(js, subjects, {first: 1, second: 1})
    await reader.read()
    await store_many(js, subjects, {first: 30, second: 10})
    assert (await reader.read()).commits == {first: 30, second: 10}


async def test_what_came_in_a_burst_is_returned_once_it_has_ended(js: JetStream, subjects: Subjects) -> None:
    reader = HeadReader(js, subjects)
    await reader.read()
    await store_many(js, subjects, {KEYS[0]: 2, KEYS[1]: 2})
    assert not (await reader.read(3)).heads
    await store_many(js, subjects, {KEYS[0]: 4})
    assert not (await reader.read(3)).heads, "it goes on"
    await store_many(js, subjects, {KEYS[2]: 3})
    assert (await reader.read(3)).commits == {KEYS[0]: 6, KEYS[1]: 2, KEYS[2]: 3}
    await store_many(js, subjects, {KEYS[0]: 4})
    assert not (await reader.read(3)).heads
    assert (await reader.read(3)).commits == {KEYS[0]: 4}
    assert not (await reader.read(3)).heads


async def test_what_could_not_be_read_is_read_by_the_next_call(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = HeadReader(js, subjects)
    await store(js, subjects, KEYS[0])
    await reader.read()
    for key in KEYS * 2:
        await store(js, subjects, key)
    taken: list[Any] = []

    def interrupted(self: OrderedConsumer, most: int, *_: object) -> Any:
        if taken:
            raise TransientError("NATS has gone away")
        taken.extend(take(self, 1))
        return taken

    take = OrderedConsumer.take
    with monkeypatch.context() as patch:
        patch.setattr(OrderedConsumer, "take", interrupted)
        with pytest.raises(TransientError):
            await reader.read()
    assert taken
    assert (await reader.read()).commits == dict.fromkeys(KEYS, 2)


async def test_a_stream_that_was_made_anew_is_read_anew(js: JetStream, subjects: Subjects) -> None:
    reader = HeadReader(js, subjects)
    for key in KEYS:
        await store(js, subjects, key)
    assert (await reader.read()).heads.keys() == set(KEYS)
    config = (await js.stream_info(subjects.commits_stream)).config
    await js.delete_stream(subjects.commits_stream)
    await js.add_stream(config)
    await store(js, subjects, KEYS[1])
    found = await reader.read()
    assert found.anew
    assert found.heads.keys() == {KEYS[1]}


async def test_what_is_stored_while_the_logs_are_read_is_neither_missed_nor_returned_twice(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer for the newest message of each log leaves out a log whose newest message is stored just before the
    consumer is created, until it has delivered all others."""
    for key in KEYS:
        await store(js, subjects, key)
    opened = OrderedConsumer.__aenter__

    async def grown(consumer: OrderedConsumer) -> OrderedConsumer:
        await store(js, subjects, KEYS[0])
        return await opened(consumer)

    monkeypatch.setattr(heads, "CHUNK", 1)
    reader = HeadReader(js, subjects)
    with monkeypatch.context() as patch:
        patch.setattr(OrderedConsumer, "__aenter__", grown)
        assert (await reader.read()).heads.keys() == set(KEYS)
        await store(js, subjects, KEYS[1])
        assert (await reader.read()).commits == {KEYS[1]: 1, KEYS[0]: 1}
    assert not (await reader.read()).heads


async def test_a_look_shows_what_was_stored_while_servers_answered_and_leaves_nothing_behind(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what a page shows is at most as old as one look and the pause after it. Between two looks, NATS has no
    consumer to which it delivers commits."""
    sequences: list[int] = []

    async def slow_servers(*_: object, **__: object) -> list[Any]:
        sequences.append(await store(js, subjects, KEYS[0]))
        return []

    monkeypatch.setattr(fleet_watch, "ping", slow_servers)
    async with FleetWatch(js, subjects, None) as fleet:
        for _ in range(3):
            await fleet.look()
            assert [info.sequence for info in fleet.change_sets()] == sequences[-1:]
            assert (await js.stream_info(subjects.commits_stream)).consumers == 0


async def test_an_early_look_does_not_wait_until_servers_have_answered(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = anyio.Event(), anyio.Event()

    async def servers(*_: object, **__: object) -> list[Any]:
        asked.set()
        await answer.wait()
        return []

    async with FleetWatch(js, subjects, None) as fleet:
        await fleet.look()
        monkeypatch.setattr(fleet_watch, "ping", servers)
        async with anyio.create_task_group() as group:
            group.start_soon(fleet.look)
            with anyio.fail_after(60):
                await asked.wait()
                sequence = await store(js, subjects, KEYS[0])
                assert await fleet.look_early(10) is not None
                assert [info.sequence for info in fleet.change_sets()] == [sequence]
                answer.set()


async def test_looks_that_overlap_count_each_commit_once(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[float] = []

    async def no_servers(*_: object, **__: object) -> list[Any]:
        await anyio.sleep(0.05)  # long enough that the two looks would overlap if no lock kept them apart
        return []

    async def look(fleet: FleetWatch) -> None:
        view = await fleet.look()
        counted.append(view.commits_per_second * view.seconds)

    monkeypatch.setattr(fleet_watch, "ping", no_servers)
    async with FleetWatch(js, subjects, None) as fleet:
        await store(js, subjects, KEYS[0])
        await fleet.look()
        await store_many(js, subjects, {KEYS[0]: 5})
        async with anyio.create_task_group() as group:
            group.start_soon(look, fleet)
            group.start_soon(look, fleet)
    assert sum(counted) == pytest.approx(5)

"""Tests what the sweeper purges of logs whose owners do not purge them, because nobody edits them any more."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import anyio
import anyio.lowlevel
import pytest

from rebaser.change_set.log.checkpointer import CROWDED
from rebaser.settings import Settings
from rebaser.sweeper import old_history
from rebaser.sweeper.old_history import OldHistory
from rebaser_client import RebaserClient
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import JetStream
from rebaser_client.log.positions import PositionPurged
from rebaser_core.commit import Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from rebaser_core.updates import Set
from tests.support.owned_log import Log
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

DAY = 86_400.0
FOREVER = 100 * 365 * 86400.0  # seconds: the longest that a setting allows


class Logs:
    """Logs of several change sets, with checkpoints and without owners."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self.js = js
        self.subjects = subjects
        self.logs: dict[ChangeSetKey, Log] = {}

    async def log(self, name: str) -> Log:
        key = ChangeSetKey("ws", name)
        if key not in self.logs:
            log = self.logs[key] = Log(self.js, self.subjects, key=key)
            log.settings = Settings(nats_url="", history_bytes=1 << 40)
            await log.load()
        return self.logs[key]

    async def write(self, name: str, *, edits: int = 3, checkpoints: int = 3) -> Log:
        log = await self.log(name)
        for _ in range(checkpoints):
            for number in range(edits):
                await log.append(Set("v", log.commits.state.last + number))
            await log.write_checkpoint()
        return log

    def purger(self, history_for: float = FOREVER) -> OldHistory:
        log = next(iter(self.logs.values()))
        return OldHistory(self.js, self.subjects, log.reader, history_for)

    async def crowd(self, share: float) -> None:
        """Set the size limit of the stream so that `share` of it is used."""
        used = (await self.js.stream_info(self.subjects.commits_stream)).bytes
        await ensure_topology(self.js, self.subjects, TopologyOptions(commits_max_bytes=int(used / share)))


@pytest.fixture
def logs(js: JetStream, subjects: Subjects) -> Logs:
    return Logs(js, subjects)


async def first_of(log: Log) -> int:
    first = await log.js.next(log.subjects.commits_stream, log.subjects.commits(log.key), 1)
    assert first is not None
    return first.sequence


async def test_what_is_older_than_the_history_is_purged_though_nobody_edits_it(logs: Logs) -> None:
    """The state at the beginning of the history remains readable. The time is that of the newest commit of all logs."""
    log = await logs.write("idle")
    marks = log.commits.state.marks
    edited = await log.append(Set("v", "first of the history"))
    await anyio.sleep(0.3)
    begin = datetime.now(UTC)
    await log.append(Set("v", "second"))
    await log.write_checkpoint()
    for _ in range(2):
        await log.write_checkpoint()
    await anyio.sleep(0.1)
    await (await logs.log("other")).append(Set("v", 1))
    newest = datetime.fromisoformat((await logs.js.stream_info(logs.subjects.commits_stream)).last_time)
    assert await logs.purger(FOREVER).purge() == 0
    purged = await logs.purger((newest - begin).total_seconds()).purge()
    assert purged > 0
    assert await first_of(log) == marks[2].sequence + 1
    assert (await log.reader.load(log.key, begin)).state.value("v", set()).value == "first of the history"  # type: ignore[union-attr] # it is there
    assert (await log.reader.load(log.key, edited)).state.last == edited
    with pytest.raises(PositionPurged):
        await log.reader.load(log.key, marks[1].sequence)


async def test_the_newest_two_checkpoints_and_the_log_behind_them_remain(logs: Logs) -> None:
    log = await logs.write("idle", checkpoints=4)
    assert await logs.purger(0).purge() > 0
    assert await first_of(log) == log.commits.state.marks[-2].sequence + 1
    assert (await log.reader.load(log.key)).state.values() == log.commits.state.values()


@pytest.mark.parametrize("checkpoints", [0, 1])
async def test_a_log_without_two_checkpoints_is_left_alone(logs: Logs, checkpoints: int) -> None:
    log = await logs.write("idle", checkpoints=checkpoints)
    await log.append(Set("v", 1))
    await logs.crowd(1.0)
    assert await logs.purger(0).purge() == 0


async def test_without_room_in_the_stream_the_longest_logs_give_way_first(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_history, "CONCURRENT", 1)
    short, long = await logs.write("short", edits=2), await logs.write("long", edits=20)
    await logs.crowd(0.85)
    purger = logs.purger()
    assert await purger.purge() > 0
    assert await first_of(long) == long.commits.state.marks[-2].sequence + 1
    assert await first_of(short) == 1, "there is room again"
    await logs.crowd(1.0)
    assert await purger.purge() > 0
    assert await first_of(short) == short.commits.state.marks[-2].sequence + 1


async def test_one_sweep_examines_few_logs_and_the_next_ones_the_others(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_history, "CONCURRENT", 2)
    monkeypatch.setattr(old_history, "CHUNKS", 1)
    monkeypatch.setattr(old_history, "CROWDED_CHUNKS", 1)
    written = [await logs.write(f"idle{number}") for number in range(5)]
    began = [await first_of(log) for log in written]
    purger = logs.purger(0)
    done = []
    for _ in range(3):
        await purger.purge()
        done.append(sum([await first_of(log) > one for log, one in zip(written, began, strict=True)]))
    assert done == [2, 4, 5]


async def test_a_log_is_examined_again_only_after_it_has_grown(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is also examined after the next share of the time for which history is kept."""
    log = await logs.write("idle")
    looks = list[str]()
    last = JetStream.last

    async def counted(self: JetStream, stream: str, subject: str) -> object:
        looks.append(subject)
        return await last(self, stream, subject)

    monkeypatch.setattr(JetStream, "last", counted)
    purger = logs.purger(0)
    purger._interval = timedelta(0)
    for _ in range(3):
        await purger.purge()
    assert looks == [logs.subjects.commits(log.key)]
    await log.append(Set("v", 1))
    await purger.purge()
    assert len(looks) == 2
    purger = logs.purger(DAY)
    for _ in range(3):
        await purger.purge()
    assert len(looks) == 3


async def test_what_cannot_be_read_is_not_purged(logs: Logs) -> None:
    js, subjects = logs.js, logs.subjects
    whole, damaged = await logs.write("whole"), await logs.write("damaged")
    await js.delete_message(subjects.commits_stream, damaged.commits.state.marks[-1].sequence)
    foreign = await logs.write("foreign")
    await js.publish(subjects.commits(foreign.key), b"?")
    await js.publish(f"{subjects.root}.commits.ws.{'x' * 200}", b"?")
    written = (whole, damaged, foreign)
    began = [await first_of(log) for log in written]
    assert await logs.purger(0).purge() > 0
    assert [await first_of(log) > one for log, one in zip(written, began, strict=True)] == [True, False, False]


async def test_a_checkpoint_in_another_log_is_none_of_this_one(logs: Logs) -> None:
    """A log may name the checkpoint of the change set from which it was created."""
    parent, child = await logs.write("parent"), await logs.log("child")
    async with child.commits.append_lock():
        await child.commits.append(child.commits.draft(Kind.REBASE, checkpoint=parent.commits.state.checkpoint))
    await child.append(Set("v", 1))
    before = await first_of(child)
    assert await logs.purger(0).purge() > 0
    assert await first_of(child) == before


async def test_a_stream_that_was_made_anew_is_examined_anew(logs: Logs, topology: TopologyOptions) -> None:
    await logs.write("idle")
    purger = logs.purger(0)
    assert await purger.purge() > 0
    await logs.js.delete_stream(logs.subjects.commits_stream)
    await ensure_topology(logs.js, logs.subjects, topology)
    logs.logs.clear()
    assert await purger.purge() == 0
    await logs.write("idle")
    assert await purger.purge() > 0


async def test_an_owner_and_readers_are_not_disturbed(logs: Logs) -> None:
    """The owner writes commits and checkpoints, and loads again, while old history is purged all the time."""
    log = await logs.log("busy")
    log.settings = Settings(nats_url="", history_for=FOREVER)
    purger = logs.purger(0)
    purger._interval = timedelta(0)
    done = anyio.Event()
    book, seen = {0: 0}, list[tuple[int, object]]()  # the value by log sequence, and the values that readers saw

    async def sweep() -> None:
        while not done.is_set():
            await purger.purge()
            await anyio.lowlevel.checkpoint()

    async def read() -> None:
        while not done.is_set():
            for back in (None, 0, 5):
                newest = max(book)
                with suppress(PositionPurged):
                    state = (await log.reader.load(log.key, None if back is None else max(newest - back, 0))).state
                    value = state.value("v", set())
                    seen.append((state.last, 0 if value is None else value.value))
                    assert back is None or state.last <= max(newest - back, 0)
                    assert back is not None or state.last >= newest

    async with anyio.create_task_group() as group:
        group.start_soon(sweep)
        group.start_soon(read)
        for number in range(1, 61):
            book[await log.append(Set("v", number))] = number
            if number % 3 == 0:
                await log.write_checkpoint()
                book[log.commits.state.last] = number
            if number % 10 == 0:
                await log.load()
                assert log.commits.state.values().keys() == {"v"}
        while len(seen) <= 3:  # how many fit in above depends on the machine
            await anyio.lowlevel.checkpoint()
        done.set()
    assert await first_of(log) > 1
    assert [value for _, value in seen] == [book[sequence] for sequence, _ in seen]


async def test_requests_go_on_when_the_histories_of_idle_change_sets_have_filled_the_stream(
    js: JetStream, subjects: Subjects, nats_url: str
) -> None:
    bound = 400_000
    await ensure_topology(js, subjects, TopologyOptions(commits_max_bytes=bound))
    settings = {"sweep_interval": 0.5, "quiescent_period": 0.05, "checkpoint_bytes": 1024, "history_for": FOREVER}
    async with (
        serving(js, subjects, Engine(), **settings),
        RebaserClient.connect(nats_url, prefix=subjects.prefix) as client,
    ):

        async def edit(name: str, count: int) -> None:
            for number in range(count):
                await client.enqueue_updates_with_reply("ws", name, [Set("v", f"{number}" * 50)], timeout=120)

        async def used() -> int:
            return (await js.stream_info(subjects.commits_stream)).bytes

        idle: list[str] = []
        for number in range(30):
            idle.append(f"idle{number}")
            await edit(idle[-1], 20)
            if await used() > 0.75 * bound:
                break
        logs = {name: Log(js, subjects, key=ChangeSetKey("ws", name)) for name in idle}
        before = {name: await first_of(log) for name, log in logs.items()}
        for number in range(40):
            await edit(f"new{number}", 8)
        with anyio.fail_after(120):
            while await used() >= CROWDED * bound:  # noqa: ASYNC110 - the sweeper purges
                await anyio.sleep(0.1)
        purged = [name for name, log in logs.items() if await first_of(log) > before[name]]
        assert purged, "history gave way, of those logs that had the most commits"
        for name in purged:
            values = await client.values("ws", name)
            assert values["v"].value == "19" * 50

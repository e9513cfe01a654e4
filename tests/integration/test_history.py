"""History on a real server: the state at every position, while the log is purged from its beginning."""

import random
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from rebaser.settings import Settings
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import JetStream, StoredMessage
from rebaser_client.log import commits
from rebaser_client.log.positions import PositionPurged
from rebaser_core.commit import Computed, Kind
from rebaser_core.encoding.envelope import Headers
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.history import readable
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from rebaser_core.updates import Derive, Remove, Set, Update
from rebaser_core.values import Json, State
from tests.support.owned_log import KEY, Log

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

Book = dict[str, Json]


class Written:
    """A log with random edits, and the values after each commit in plain dictionaries."""

    def __init__(self, log: Log, seed: int) -> None:
        self.log = log
        self.books: dict[int, Book] = {0: {}}
        self._random = random.Random(seed)

    async def edit(self) -> int:
        rng, book = self._random, dict(self.books[max(self.books)])
        updates: list[Update] = []
        for _ in range(rng.randrange(1, 5)):
            id_ = f"v{rng.randrange(12)}"
            if rng.random() < 0.3:
                updates.append(Remove(id_))
                book.pop(id_, None)
            else:
                updates.append(Set(id_, rng.randrange(100)))
                book[id_] = updates[-1].value  # type: ignore[union-attr] # a `Set`
        sequence = await self.log.append(*updates)
        self.books[sequence] = book
        return sequence

    async def elsewhere(self) -> None:
        """Append to the log of another change set, so that sequences have gaps."""
        commit = self.log.commits.draft(Kind.REBASE)
        headers, payload = encode_commit(commit)
        await self.log.js.publish(self.log.subjects.commits(ChangeSetKey("ws", "other")), payload, headers)

    async def checkpoint(self) -> int:
        await self.log.write_checkpoint()
        last = self.log.commits.state.last
        self.books[last] = self.books[max(self.books)]
        return last

    def at(self, position: int) -> Book:
        return self.books[max(sequence for sequence in self.books if sequence <= position)]


@pytest.fixture
async def written(js: JetStream, subjects: Subjects) -> Written:
    return Written(await Log(js, subjects).load(), 7)


async def values(log: Log, at: int | datetime | None) -> Book:
    state = (await log.reader.load(KEY, at)).state
    return {id_: value.value for id_, value in state.values().items()}


@pytest.mark.parametrize("inline_max", [100_000, 1])
@pytest.mark.parametrize("seed", range(4))
async def test_the_state_at_every_readable_position_is_that_of_plain_dictionaries(
    js: JetStream, subjects: Subjects, seed: int, inline_max: int
) -> None:
    """All other positions are `purged`, and the error names the oldest readable one."""
    rng = random.Random(seed)
    written = Written(await Log(js, subjects, inline_max).load(), seed)
    for _ in range(40):
        step = rng.random()
        await (written.edit() if step < 0.7 else written.elsewhere() if step < 0.85 else written.checkpoint())
    last = (await js.stream_info(subjects.commits_stream)).last_sequence
    begins_after = await written.log.begins_after()
    oldest = await written.log.reader.oldest_readable(KEY)
    assert oldest is not None
    first = oldest[0] if begins_after else 0
    for position in range(last + 1):
        if position >= first:
            assert await values(written.log, position) == written.at(position)
        else:
            with pytest.raises(PositionPurged, match=f"ws/cs@{position} is no longer readable") as raised:
                await written.log.reader.load(KEY, position)
            assert (raised.value.oldest, raised.value.since) == oldest


async def test_a_position_of_which_the_stream_knows_nothing_yet_is_refused(written: Written) -> None:
    last = await written.edit()
    await written.elsewhere()
    assert await values(written.log, last + 1) == written.at(last)
    with pytest.raises(UnprocessableError, match=r"ws/cs@3 does not exist yet: .* is 2") as raised:
        await written.log.reader.load(KEY, last + 2)
    assert raised.value.code == "no_such_position"


async def test_a_time_means_what_was_stored_by_then(written: Written) -> None:
    before = datetime.now(UTC)
    first = await written.edit()
    await anyio.sleep(0.05)
    between = datetime.now(UTC)
    await anyio.sleep(0.05)
    second = await written.edit()
    log = written.log
    assert await values(log, before - timedelta(days=1)) == {}
    assert await values(log, between) == written.at(first)
    assert await values(log, datetime.now(UTC)) == written.at(second)
    assert await values(log, datetime.now(UTC) + timedelta(days=1)) == written.at(second)
    for sequence in (first, second):  # the exact time of a commit, as a program has it, without nanoseconds
        stored = await log.js.get(log.subjects.commits_stream, sequence)
        assert stored is not None
        assert await values(log, datetime.fromisoformat(stored.time)) == written.at(sequence)


async def test_a_commit_that_is_appended_during_the_read_is_not_read(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, last = written.log, JetStream.last
    await log.append(Set("early", 1))
    late: list[int] = []

    async def last_after_edit(self: JetStream, stream: str, subject: str) -> StoredMessage | None:
        monkeypatch.undo()
        late.append(await log.append(Set("late", len(late))))
        return await last(self, stream, subject)

    for wanted in ({"early": 1}, {"early": 1, "late": 0}):
        await written.elsewhere()
        info = await log.js.stream_info(log.subjects.commits_stream)
        monkeypatch.setattr(JetStream, "last", last_after_edit)
        at = info.last_sequence if not late else datetime.fromisoformat(info.last_time)
        assert await values(log, at) == wanted
    assert len(late) == 2


async def test_derived_values_are_those_that_were_stored_then(js: JetStream, subjects: Subjects) -> None:
    log = await Log(js, subjects).load()
    commits = log.commits

    async def append(kind: Kind, *delta: Update | Computed, covers: int) -> int:
        async with commits.append_lock():
            return await commits.append(commits.draft(kind, delta=delta, covers=covers))

    first = await append(Kind.REBASE, Set("a", 1), Derive("b", "sum", {"values": ("a",)}), covers=0)
    derived = await append(Kind.DVU, Computed("b", 1), covers=first)
    edited = await append(Kind.REBASE, Set("a", 2), covers=first)
    states = [(await log.reader.load(KEY, at)).state.values()["b"] for at in (first, derived, edited)]
    assert [(value.value, value.state) for value in states] == [(None, State.STALE), (1, State.OK), (1, State.STALE)]


async def test_commits_beside_a_checkpoint_are_unreadable_once_the_one_before_is_gone(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are still in the log, but name a checkpoint whose later commits are partly purged."""
    log = written.log
    await written.edit()
    await written.checkpoint()
    put, beside = log.blobs.put, list[int]()

    async def put_beside_edits(data: bytes) -> str:
        if not beside:
            beside.extend([await written.edit(), await written.edit()])
        return await put(data)

    await written.edit()
    monkeypatch.setattr(log.blobs, "put", put_beside_edits)
    named = await written.checkpoint()
    assert await values(log, beside[0]) == written.at(beside[0])
    await written.edit()
    await written.checkpoint()
    begins_after = await written.log.begins_after()
    assert begins_after < beside[0]
    for position in beside:
        stored = await log.js.get(log.subjects.commits_stream, position)
        assert stored is not None
        commit = log.reader.decode(position, stored.headers, stored.data)
        assert commit is not None
        assert not readable(commit.checkpoint, begins_after)
        with pytest.raises(PositionPurged, match=f"its history begins at cs@{named}") as raised:
            await log.reader.load(KEY, position)
        assert raised.value.oldest == named
    assert await values(log, named) == written.at(named)


async def test_a_purge_under_a_reader_gives_no_wrong_values(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader has the old checkpoint, and the log after it is purged before it reads on."""
    log = written.log
    await written.edit()
    await written.checkpoint()
    position = await written.edit()
    await written.edit()
    get = log.blobs.get

    async def purge_meanwhile(address: str, *, max_bytes: int) -> bytes:
        data = await get(address, max_bytes=max_bytes)
        monkeypatch.undo()
        for _ in range(2):
            await written.edit()
            await written.checkpoint()
        return data

    monkeypatch.setattr(log.blobs, "get", purge_meanwhile)
    with pytest.raises(PositionPurged, match=f"ws/cs@{position} is no longer readable"):
        await log.reader.load(KEY, position)
    assert await values(log, None) == written.at(max(written.books))


@pytest.mark.parametrize(("singly", "wanted", "room"), [(8, 64, 1 << 24), (1, 2, 1 << 24), (3, 4, 1), (1, 64, 600)])
async def test_a_log_is_read_backwards_one_by_one_or_in_pages(
    written: Written, monkeypatch: pytest.MonkeyPatch, singly: int, wanted: int, room: int
) -> None:
    for name, value in (("SINGLY", singly), ("FIRST_PAGE", wanted), ("GROWTH", 2), ("PAGE_BYTES", room)):
        monkeypatch.setattr(commits, name, value)
    log, sequences = written.log, []
    for number in range(20):
        sequences.append(await written.edit())
        if number % 3 == 0:
            await written.elsewhere()
        if number % 7 == 0:
            log.commits.state.skip((await log.js.publish(log.subjects.commits(KEY), b"not ours")).sequence)
    for at in (None, sequences[-1], sequences[10]):
        found = [commit.sequence async for commit in log.reader.back(KEY, at)]
        assert found == [sequence for sequence in reversed(sequences) if at is None or sequence <= at]
    await written.checkpoint()
    await written.edit()
    await written.checkpoint()
    first = await first_of(log)
    left = [commit.sequence async for commit in log.reader.back(KEY)]
    assert (left[-1], left) == (first, sorted(left, reverse=True))
    assert sequences[-1] < first


async def test_foreign_and_damaged_messages_are_in_the_way_of_no_other_position(written: Written) -> None:
    log = written.log
    first = await written.edit()
    subject = log.subjects.commits(KEY)
    foreign = (await log.js.publish(subject, b"not ours")).sequence
    log.commits.state.skip(foreign)
    second = await written.edit()
    headers, payload = encode_commit(log.commits.draft(Kind.REBASE))
    damaged = (await log.js.publish(subject, payload[:-3], headers)).sequence
    for at, expected in ((first, first), (foreign, first), (second, second)):
        assert await values(log, at) == written.at(expected)
    with pytest.raises(TransientError, match=f"commit {damaged} is damaged"):
        await log.reader.load(KEY, damaged)
    await written.elsewhere()
    no_headers: Headers = {}
    await log.js.publish(subject, b"not ours either", dict(no_headers))
    stored = await log.reader.newest_message(KEY, damaged - 1)
    assert stored is not None
    assert stored.sequence == second
    stored = await log.reader.newest_message(KEY, damaged + 1)
    assert stored is not None
    assert stored.sequence == damaged


HOUR = 3_600_000


async def first_of(log: Log) -> int:
    """Return the first message that is left of the log."""
    first = await log.js.next(log.subjects.commits_stream, log.subjects.commits(KEY), 1)
    assert first is not None
    return first.sequence


async def test_history_is_kept_for_its_time(written: Written) -> None:
    """Ages are measured by the clock that gives commits their times."""
    log = written.log
    log.settings = Settings(nats_url="", history_for=3 * 3600, history_bytes=1 << 40)
    positions = []
    for hour in range(8):
        log.now_ms = hour * HOUR
        positions.append(await written.edit())
        await written.checkpoint()
        for kept in positions[max(hour - 2, 0) :]:
            assert await values(log, kept) == written.at(kept)
        named = {mark.at_ms // HOUR: mark.sequence for mark in log.commits.state.marks}
        assert await first_of(log) == (positions[0] if hour < 3 else named[hour - 3] + 1)


async def test_history_is_kept_up_to_its_size(written: Written) -> None:
    log = written.log
    log.settings = Settings(nats_url="", history_bytes=20_000)
    for _ in range(12):
        log.now_ms += 1
        for _ in range(4):
            await written.edit()
        await written.checkpoint()
    state, first = log.commits.state, await first_of(log)
    (begins,) = [mark for mark in state.marks if mark.sequence == await written.log.begins_after()]
    assert state.weight - begins.weight <= 20_000 < state.weight - begins.weight + 6_000
    assert (await log.reader.load(KEY)).state.marks == state.marks
    oldest = await log.reader.oldest_readable(KEY)
    assert oldest is not None
    assert oldest[0] == begins.named
    assert first <= begins.named
    for position in range(begins.named, state.last + 1):
        assert await values(log, position) == written.at(position)


async def test_without_room_in_the_stream_history_gives_way(written: Written) -> None:
    log = written.log
    log.settings = Settings(nats_url="")
    for _ in range(4):
        await written.edit()
        await written.checkpoint()
    assert await first_of(log) == 1
    used = (await log.js.stream_info(log.subjects.commits_stream)).bytes
    await ensure_topology(log.js, log.subjects, TopologyOptions(commits_max_bytes=int(used * 1.3)))
    await written.edit()
    await written.checkpoint()
    assert await first_of(log) == log.commits.state.marks[-2].sequence + 1


@pytest.mark.parametrize("marked", [True, False], ids=["after history was switched off", "after an upgrade"])
async def test_without_history_all_below_the_checkpoint_before_is_purged(written: Written, marked: bool) -> None:
    """Checkpoints of older releases have no marks."""
    log = written.log
    log.settings = Settings(nats_url="", history_bytes=1 << 40)
    for _ in range(3):
        await written.edit()
        await written.checkpoint()
    log.settings = Settings(nats_url="", history_for=0)
    state = log.commits.state
    assert await first_of(log) == 1
    before = state.checkpoint
    assert before is not None
    if not marked:
        state.marks.clear()
        state.weight = 0
    await written.edit()
    await written.checkpoint()
    assert await first_of(log) == before.sequence + 1
    assert await values(log, None) == written.at(state.last)


async def test_an_old_log_gains_history_from_its_checkpoint_on(written: Written) -> None:
    log = written.log
    await written.edit()
    await written.checkpoint()
    log.commits.state.marks.clear()
    log.settings = Settings(nats_url="", history_bytes=1 << 40)
    kept = [await written.edit() for _ in range(2)]
    for _ in range(3):
        await written.checkpoint()
        kept.append(await written.edit())
    for position in kept:
        assert await values(log, position) == written.at(position)

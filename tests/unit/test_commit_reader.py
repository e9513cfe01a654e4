"""Reading backwards in pages of any size gives all commits of the log, and exact times give the right positions."""

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from rebaser_client.jetstream import StoredMessage
from rebaser_client.log import commits as commits_module
from rebaser_client.log.chains import read_chain
from rebaser_client.log.commits import CommitReader
from rebaser_core.commit import CheckpointRef, Commit, Kind, Origin
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Set

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "cs")
SUBJECTS = Subjects("")
START = datetime(2026, 1, 1, tzinfo=UTC)


def message(commit: Commit, sequence: int, time: str = "2026-01-01T00:00:00Z") -> StoredMessage:
    headers, data = encode_commit(commit)
    return StoredMessage(SUBJECTS.commits(KEY), sequence, headers, data, time)


class Log:
    """One log in the stream of all logs. The missing sequences belong to other logs."""

    def __init__(self, messages: list[StoredMessage]) -> None:
        self.messages = messages
        self.calls = 0

    async def last(self, *_: object) -> StoredMessage | None:
        return self.messages[-1] if self.messages else None

    async def get(self, _: str, sequence: int) -> StoredMessage | None:
        found = next((one for one in self.messages if one.sequence == sequence), None)
        return found or StoredMessage("rebaser.commits.ws.other", sequence, {}, b"", "")

    async def next(self, _: str, __: str, sequence: int) -> StoredMessage | None:
        return next((one for one in self.messages if one.sequence >= sequence), None)

    async def next_since(self, _: str, __: str, time: datetime) -> StoredMessage | None:
        self.calls += 1
        assert self.calls < 10, "looks for the same time again and again"
        return next((one for one in self.messages if datetime.fromisoformat(one.time) >= time), None)

    def consumer(self, *_: object, start: int = 1) -> "Consumer":
        return Consumer([one for one in self.messages if one.sequence >= start])


class Consumer:
    def __init__(self, messages: list[StoredMessage]) -> None:
        self.messages = messages

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[Any]:
        for one in self.messages:
            numbers = {"stream_sequence": one.sequence, "timestamp_ns": one.sequence * 10**9}
            yield SimpleNamespace(headers=one.headers, data=one.data, subject=one.subject, **numbers)
        raise AssertionError("read on behind the end, which waits for ever")


def reader_of(log: Log, monkeypatch: pytest.MonkeyPatch) -> CommitReader:
    monkeypatch.setattr(commits_module, "OrderedConsumer", log.consumer)
    return CommitReader(cast("Any", log), SUBJECTS, cast("Any", None))


@pytest.mark.parametrize("seed", range(80))
async def test_pages_of_any_size_hold_all_commits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    for name, value in {
        "SINGLY": rng.randint(1, 3),
        "FIRST_PAGE": rng.randint(1, 4),
        "GROWTH": 2,
        "MAX_PAGE": 8,
    }.items():
        monkeypatch.setattr(commits_module, name, value)
    monkeypatch.setattr(commits_module, "MAX_SPREAD", rng.choice((1, 4, 64)))
    monkeypatch.setattr(commits_module, "PAGE_BYTES", rng.choice((1, 500, 10**6)))
    messages: list[StoredMessage] = []
    sequence, previous, expected = rng.choice((0, 0, 7)), 0, list[int]()
    purged = rng.random() < 0.3
    if purged:
        previous = sequence = 5  # the commit in between was purged
    for _ in range(rng.randint(1, 25)):
        sequence += rng.choice((1, 1, 3, 40))
        if messages and rng.random() < 0.1:  # a message on the log that is not a commit
            messages.append(StoredMessage(SUBJECTS.commits(KEY), sequence, {}, b"foreign", ""))
        else:
            delta = (Set("a", "x" * rng.choice((0, 300))),)
            messages.append(message(Commit("c", previous, Kind.REBASE, 0, "o", None, None, delta=delta), sequence))
            expected.append(sequence)
        previous = sequence
    reader = reader_of(Log(messages), monkeypatch)
    found = [commit.sequence async for commit in reader.back(KEY)]
    assert found == expected[::-1]
    if expected:
        at = rng.choice(expected)
        assert [one.sequence async for one in reader.back(KEY, at)] == [one for one in found if one <= at]


@pytest.mark.parametrize("seed", range(60))
async def test_a_chain_has_all_commits_after_a_position_or_is_none(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is missing, is no commit, or is refused by the caller: no part of a chain passes for the whole."""
    rng = random.Random(seed)
    monkeypatch.setattr(commits_module, "SINGLY", rng.randint(1, 4))
    monkeypatch.setattr(commits_module, "FIRST_PAGE", rng.randint(1, 4))
    messages, sequence, foreign = list[StoredMessage](), 0, set[int]()
    for number in range(12):
        previous, sequence = sequence, sequence + rng.choice((1, 2, 30))
        if number and rng.random() < 0.05:
            foreign.add(sequence)
            messages.append(StoredMessage(SUBJECTS.commits(KEY), sequence, {}, b"foreign", ""))
            continue
        kind = rng.choice((Kind.REBASE, Kind.REBASE, Kind.DVU))
        delta = (Set("a", number),) if kind is Kind.REBASE else ()
        messages.append(message(Commit(str(number), previous, kind, 0, "o", None, None, delta=delta), sequence))
    purged = rng.choice((0, 0, 3))
    log = Log(messages[purged:])
    reader = reader_of(log, monkeypatch)
    commits = {one.sequence: one async for one in reader.back(KEY)}
    newest = commits[max(commits)]
    for after in [0, *[one.sequence for one in messages]]:
        if after >= newest.sequence:
            continue
        between = [one.sequence for one in messages if after < one.sequence <= newest.sequence]
        found = await read_chain(reader, KEY, after, newest)
        if set(between) <= commits.keys():
            assert found == [commits[each] for each in between if commits[each].kind is not Kind.DVU]
            refused = rng.choice(between)
            assert await read_chain(reader, KEY, after, newest, lambda one: one.sequence != refused) is None  # noqa: B023 - called at once
        else:
            assert found is None
    if newest.previous + 1 < newest.sequence:  # no commit of this log has that sequence
        assert await read_chain(reader, KEY, newest.previous + 1, newest) is None
    assert len(commits) == len(messages) - purged - len(foreign & {one.sequence for one in messages[purged:]})


@pytest.mark.parametrize("later", [timedelta(0), timedelta(microseconds=1), timedelta(days=1)])
async def test_a_commit_stored_at_the_very_time_is_the_newest_one_then(
    later: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS stores times in nanoseconds, and Python has only microseconds."""
    commit = Commit("c", 0, Kind.REBASE, 0, "o", None, None)
    log = Log([message(commit, 3, f"{START:%Y-%m-%dT%H:%M:%S}.000000900Z")])
    reader = reader_of(log, monkeypatch)
    found = await reader.newest_message(KEY, START + later)
    assert found is not None
    assert found.sequence == 3
    assert await reader.newest_message(KEY, START - timedelta(microseconds=1)) is None


async def test_a_change_set_made_anew_is_readable_from_its_first_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint is that of the parent, which may be older than the deletion before."""
    checkpoint = CheckpointRef("sha256:" + "0" * 64, 10, 1)
    created = Commit(
        "c", 50, Kind.CREATE, 0, "o", None, None, checkpoint=checkpoint, origin=Origin("main", 10, "main", 10)
    )
    edit = Commit("c", 60, Kind.REBASE, 0, "o", None, None, checkpoint=checkpoint, begin=60, delta=(Set("a", 1),))
    log = Log([message(created, 60), message(edit, 62)])
    reader = reader_of(log, monkeypatch)
    oldest = await reader.oldest_readable(KEY)
    assert oldest is not None
    assert oldest[0] == 60
    for at in (60, 62):
        await reader.check_readable(KEY, at)

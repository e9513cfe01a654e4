"""Reading the log on a real server: each commit once, other messages and damaged ones distinguished; watches and
tails."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint as checkpoint_of_the_loop

from rebaser_client import RebaserClient, cooperative
from rebaser_client.admin.status import read_overview
from rebaser_client.blobs import BlobMissing
from rebaser_client.jetstream import JetStream, OrderedConsumer
from rebaser_client.log import reader
from rebaser_client.log.commits import CommitReader
from rebaser_client.log.reader import MAX_CONCURRENT_TAILS, StateLoader
from rebaser_core.commit import BlobRef, CheckpointRef, Commit, Kind
from rebaser_core.errors import FencedError, TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Derive, Set
from tests.support.owned_log import KEY, Log, OpenLog

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def test_what_is_appended_is_what_is_loaded(open_log: OpenLog) -> None:
    log = await open_log().load()
    for number in range(5):
        await log.append(Set(f"v{number}", number))
    state = (await log.reader.load(KEY)).state
    assert state.cells == log.commits.state.cells
    assert (state.last, state.covers) == (log.commits.state.last, log.commits.state.covers)


async def test_a_foreign_message_counts_for_the_sequence_and_is_skipped(open_log: OpenLog, js: JetStream) -> None:
    log = await open_log().load()
    await log.append(Set("a", 1))
    await js.publish(log.subjects.commits(KEY), b"not ours")
    with pytest.raises(FencedError):
        await log.append(Set("b", 2))
    again = await open_log().load()
    assert (last := await log.reader.last(KEY)) is not None
    assert (last.sequence, again.commits.state.last) == (1, 2)
    await again.append(Set("b", 2))
    assert set((await log.reader.load(KEY)).state.cells) == {"a", "b"}


async def test_a_watcher_from_now_on_gets_no_old_commit_where_the_newest_message_is_foreign(
    open_log: OpenLog, js: JetStream, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log().load()
    await log.append(Set("a", 1))
    foreign = await js.publish(log.subjects.commits(KEY), b"not ours")
    begun = anyio.Event()
    follow = CommitReader.follow

    def follow_and_tell(self: CommitReader, key: ChangeSetKey, after: int) -> AsyncGenerator[Commit, None]:
        begun.set()
        return follow(self, key, after)

    async def watch() -> None:
        async with aclosing(client.watch(KEY.workspace, KEY.change_set)) as commits:
            async for commit in commits:
                assert (commit.sequence, commit.delta) == (foreign.sequence + 1, (Set("b", 2),))
                return

    monkeypatch.setattr(CommitReader, "follow", follow_and_tell)
    log = await open_log().load()
    async with RebaserClient.connect(nats_url, prefix=log.subjects.prefix) as client:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                await begun.wait()
                await log.append(Set("b", 2))


@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_a_watcher_gets_what_came_after_the_commit_that_it_names(
    open_log: OpenLog, nats_url: str, after: int
) -> None:
    log = await open_log().load()
    for number in (1, 2, 3):
        await log.append(Set("a", number))
    first = log.commits.state.last - 2
    async with RebaserClient.connect(nats_url, prefix=log.subjects.prefix) as client:
        with anyio.fail_after(60):
            async with aclosing(client.watch(KEY.workspace, KEY.change_set, after=first - 1 + after)) as commits:
                expected = [Set("a", number) for number in range(after + 1, 5)]
                await log.append(Set("a", 4))
                assert [(await anext(commits)).delta for _ in expected] == [(one,) for one in expected]


async def test_a_damaged_commit_is_never_skipped(open_log: OpenLog, js: JetStream) -> None:
    log = await open_log().load()
    await log.append(Set("a", 1))
    headers, payload = encode_commit(log.commits.draft(Kind.REBASE, delta=(Set("b", 2),)))
    await js.publish(log.subjects.commits(KEY), payload[:-3], headers)
    with pytest.raises(TransientError, match=r"commit 2 is damaged: .*; see `rebaser doctor ws cs`"):
        await log.reader.load(KEY)


@pytest.mark.parametrize(
    "damage", [{"X-Debt": "?"}, {"X-Covers": "-1"}, {"X-Branch": "odd"}, {"X-MESSAGE-VERSION": "0"}]
)
async def test_the_overview_reads_a_commit_whole_if_its_headers_do_not_tell(
    open_log: OpenLog, js: JetStream, damage: dict[str, str]
) -> None:
    log = await open_log().load()
    await log.append(Set("a", 1))
    headers, payload = encode_commit(log.commits.draft(Kind.REBASE, delta=(Set("b", 2),)))
    await js.publish(log.subjects.commits(KEY), payload[:-3], headers | damage)
    (row,) = (await read_overview(js.connection, js, log.subjects, log.reader, None)).change_sets
    assert (row.last_commit, row.covers, row.debt) == (2, 0, False)
    assert row.problem.startswith("commit 2 is damaged: ")


async def test_the_overview_tells_a_newer_version_and_a_foreign_message(open_log: OpenLog, js: JetStream) -> None:
    log = await open_log().load()
    await log.append(Set("a", 1))
    await js.publish(log.subjects.commits(KEY), b"not ours")
    (row,) = (await read_overview(js.connection, js, log.subjects, log.reader, None)).change_sets
    assert (row.last_commit, row.covers, row.problem) == (2, 1, "")
    headers, payload = encode_commit(log.commits.draft(Kind.REBASE))
    await js.publish(log.subjects.commits(KEY), payload, headers | {"X-MESSAGE-VERSION": "99"})
    (row,) = (await read_overview(js.connection, js, log.subjects, log.reader, None)).change_sets
    assert (row.last_commit, "of version 99" in row.problem) == (3, True)


async def test_the_overview_reads_commits_of_older_servers_whole_if_they_owe_an_update(
    open_log: OpenLog, js: JetStream
) -> None:
    log = await open_log().load()
    for sequence, (covers, debt) in enumerate(((0, 2), (None, 0)), 1):
        commit = Commit(f"c{sequence}", sequence - 1, Kind.REBASE, 1, "o", None, covers, debt=debt)
        headers, payload = encode_commit(commit)
        await js.publish(log.subjects.commits(KEY), payload, headers)
        (row,) = (await read_overview(js.connection, js, log.subjects, log.reader, None)).change_sets
        assert (row.last_commit, row.covers, row.debt) == (sequence, 0 if debt else sequence, debt > 0)


async def test_the_overview_reads_no_payload_of_what_was_just_written(
    open_log: OpenLog, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log().load()
    await log.append(Set("a", 1))
    commits = log.commits
    async with commits.append_lock():
        await commits.append(commits.draft(Kind.REBASE, delta=(Derive("b", "sum", {"of": "a"}),), covers=1, debt=1))
    monkeypatch.setattr(CommitReader, "last", None)
    (row,) = (await read_overview(js.connection, js, log.subjects, log.reader, None)).change_sets
    assert (row.last_commit, row.covers, row.debt) == (2, 1, True)


async def test_a_delta_or_a_checkpoint_that_is_something_else_is_damaged_for_now(open_log: OpenLog) -> None:
    """No reader may take this for a request that cannot be processed."""
    log = await open_log().load()
    commits, garbage = log.commits, await log.blobs.put(b"garbage")
    async with commits.append_lock():
        await commits.append(commits.draft(Kind.REBASE, delta_blob=BlobRef(garbage, 7)))
    with pytest.raises(TransientError, match=r"commit 1 is damaged: .*; see `rebaser doctor ws cs`"):
        await log.reader.load(KEY)
    async with commits.append_lock():
        await commits.append(commits.draft(Kind.CHECKPOINT, checkpoint=CheckpointRef(garbage, 1, 7)))
    with pytest.raises(TransientError, match=rf"checkpoint {garbage} is damaged: .*; see `rebaser doctor ws cs`"):
        await log.reader.load(KEY)
    missing = f"sha256:{'0' * 64}"
    async with commits.append_lock():
        await commits.append(commits.draft(Kind.CHECKPOINT, checkpoint=CheckpointRef(missing, 2, 7)))
    with pytest.raises(BlobMissing, match=r"there is no blob .*; see `rebaser doctor ws cs`"):
        await log.reader.load(KEY)


async def test_tails_are_read_a_few_at_once_and_others_have_their_turns_in_between(
    open_log: OpenLog, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds however long the logs are that a server loads at the same time, for instance after an outage."""
    log = await open_log().load()
    for number in range(10):
        await log.append(Set(f"v{number}", number))
    monkeypatch.setattr(cooperative, "TIME_SLICE", 0.0)
    real, opened, most, ticks, seen = OrderedConsumer.__aenter__, 0, 0, 0, list[int]()
    real_exit, real_decode = OrderedConsumer.__aexit__, StateLoader.decode

    async def enter(self: OrderedConsumer) -> OrderedConsumer:
        nonlocal opened, most
        opened += 1
        most = max(most, opened)
        return await real(self)

    async def leave(self: OrderedConsumer, *error: Any) -> None:
        nonlocal opened
        opened -= 1
        await real_exit(self, *error)

    def decode(self: StateLoader, *message: Any, **options: Any) -> object:
        seen.append(ticks)
        return real_decode(self, *message, **options)

    async def tick() -> None:
        nonlocal ticks
        while True:
            await checkpoint_of_the_loop()
            ticks += 1

    monkeypatch.setattr(OrderedConsumer, "__aenter__", enter)
    monkeypatch.setattr(OrderedConsumer, "__aexit__", leave)
    monkeypatch.setattr(StateLoader, "decode", decode)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as ticker:
            ticker.start_soon(tick)
            assert len((await log.reader.load(KEY)).state.cells) == 10
            assert len(set(seen[1:])) == 10  # the first one is the last commit, which is read separately
            async with anyio.create_task_group() as group:
                for _ in range(3 * MAX_CONCURRENT_TAILS):
                    group.start_soon(log.reader.load, KEY)
            ticker.cancel_scope.cancel()
    assert most == MAX_CONCURRENT_TAILS


async def test_a_blob_that_is_waited_for_keeps_no_other_tail_waiting(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_CONCURRENT_TAILS", 1)
    log = await Log(js, subjects, inline_max=10).load()
    await log.append(Set("a", "x" * 100))
    await log.append(Set("b", "x" * 100))
    real, others = log.blobs.get, list[int]()

    async def get(address: str, *, max_bytes: int) -> bytes:
        others.append(log.reader._tails.value)
        return await real(address, max_bytes=max_bytes)

    monkeypatch.setattr(log.blobs, "get", get)
    assert len((await log.reader.load(KEY)).state.cells) == 2
    assert others == [1, 1]
    assert log.reader._tails.value == 1

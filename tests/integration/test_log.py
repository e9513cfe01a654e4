"""The log against a real server: appends are fenced, an unanswered one is settled, and reading skips no commit."""

import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio
import numpy as np
import pytest
from anyio import from_thread, to_thread
from anyio.lowlevel import checkpoint as checkpoint_of_the_loop

from rebaser.change_set.log import checkpointer
from rebaser_client import RebaserClient, cooperative
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.admin.status import read_overview
from rebaser_client.blobs import BlobMissing
from rebaser_client.jetstream import ApiError, JetStream, NoAnswerError, OrderedConsumer
from rebaser_client.jetstream.errors import STORE_FAILED
from rebaser_client.jetstream.infos import PubAck
from rebaser_client.log import reader
from rebaser_client.log.commits import CommitReader
from rebaser_client.log.reader import MAX_CONCURRENT_TAILS, StateLoader
from rebaser_core import thresholds
from rebaser_core.checkpoint import Chain, read_checkpoint
from rebaser_core.checkpoint.writer import CheckpointDraft, WrittenCheckpoint
from rebaser_core.commit import BlobRef, CheckpointRef, Commit, Kind
from rebaser_core.errors import FencedError, TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import encode_commit
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.state.kinds import FLOAT, TRUE
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from rebaser_core.updates import Derive, Remove, Set
from tests.support.examples import FOLDER
from tests.support.owned_log import KEY, Log

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

Open = Callable[[], Log]


@pytest.fixture
def open_log(js: JetStream, subjects: Subjects) -> Open:
    return lambda: Log(js, subjects)


async def test_what_is_appended_is_what_is_loaded(open_log: Open) -> None:
    log = await open_log().load()
    for number in range(5):
        await log.append(Set(f"v{number}", number))
    state = (await log.reader.load(KEY)).state
    assert state.cells == log.commits.state.cells
    assert (state.last, state.covers) == (log.commits.state.last, log.commits.state.covers)


async def test_the_second_of_two_owners_is_fenced_and_its_state_untouched(open_log: Open) -> None:
    one, two = await open_log().load(), await open_log().load()
    await one.append(Set("a", 1))
    with pytest.raises(FencedError):
        await two.append(Set("a", 2))
    assert two.commits.state.cells == {}
    assert (await one.reader.load(KEY)).state.cells["a"].value == 1


async def test_an_append_whose_answer_is_lost_is_repeated_and_lands_once(
    open_log: Open, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeat is refused, because the first one landed; the log itself shows whose it is."""
    log = await open_log().load()
    real, lost = JetStream.publish, [True]

    async def publish(self: JetStream, subject: str, payload: bytes, *args: object, **more: object) -> PubAck:
        ack = await real(self, subject, payload, *args, **more)  # type: ignore[arg-type]
        if ".commits." in subject and lost and lost.pop():
            raise NoAnswerError("the answer was lost")
        return ack

    monkeypatch.setattr(JetStream, "publish", publish)
    sequence = await log.append(Set("a", 1))
    assert not lost
    assert (await log.append(Set("b", 2))) == sequence + 1
    assert len((await log.reader.load(KEY)).state.cells) == 2


async def test_an_append_that_may_have_landed_is_settled_though_its_repeat_is_refused(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of room, say: that tells nothing about the first one."""
    log = await open_log().load()
    real = JetStream.publish
    troubles = [ApiError(503, STORE_FAILED, "no space left on device"), NoAnswerError("the answer was lost")]

    async def publish(self: JetStream, subject: str, payload: bytes, *args: object, **more: object) -> PubAck:
        ack = await real(self, subject, payload, *args, **more) if len(troubles) != 1 else None  # type: ignore[arg-type]
        if troubles:
            raise troubles.pop()
        assert ack is not None
        return ack

    monkeypatch.setattr(JetStream, "publish", publish)
    sequence = await log.append(Set("a", 1))
    assert not troubles
    assert (await log.reader.load(KEY)).state.last == sequence


async def test_an_append_whose_caller_is_cancelled_is_settled(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that is asked to end gives nothing back while it may still write."""
    log = await open_log().load()
    real, scope = JetStream.publish, anyio.CancelScope()

    async def publish(self: JetStream, subject: str, payload: bytes, *args: object, **more: object) -> PubAck:
        scope.cancel()
        return await real(self, subject, payload, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(JetStream, "publish", publish)
    with scope:
        await log.append(Set("a", 1))
    assert log.commits.state.cells.keys() == {"a"}
    assert (await log.reader.load(KEY)).state.last == log.commits.state.last


async def test_an_append_after_a_shutdown_ran_out_of_time_is_given_up(open_log: Open) -> None:
    """Nothing cancels it, so that without an answer the server would never end."""
    log = await open_log().load()
    log.commits.abandon()
    with pytest.raises(FencedError, match="shutdown"):
        await log.append(Set("a", 1))


@pytest.mark.parametrize("call", ["publish", "next"], ids=["the append", "whose it is"])
async def test_an_append_that_nobody_answers_is_given_up_when_a_shutdown_runs_out_of_time(
    open_log: Open, js: JetStream, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    log = await open_log().load()
    if call == "next":
        await js.publish(log.subjects.commits(KEY), b"somebody else's")
    asked = anyio.Event()
    given_up = False

    async def unanswered(*_: object, **__: object) -> None:
        assert not given_up, "still asked for"  # whoever asks is shielded, and would do so for ever
        asked.set()
        raise NoAnswerError("NATS is away")

    async def append() -> None:
        with pytest.raises(FencedError, match="shutdown"):
            await log.append(Set("a", 1))

    monkeypatch.setattr(JetStream, call, unanswered)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(append)
            await asked.wait()
            log.commits.abandon()
            given_up = True


async def test_a_large_delta_goes_through_a_blob(js: JetStream, subjects: Subjects, nats_url: str) -> None:
    log = await Log(js, subjects, inline_max=1000).load()
    await log.append(*(Set(f"v{number}", "x" * 50) for number in range(100)))
    stored = await log.reader.last(KEY)
    assert stored is not None
    assert stored.delta_blob is not None
    assert len((await log.reader.load(KEY)).state.cells) == 100
    async with (
        RebaserClient.connect(nats_url, prefix=subjects.prefix) as client,
        aclosing(client.watch(KEY.workspace, KEY.change_set, after=0)) as commits,
    ):
        with anyio.fail_after(30):
            assert len((await anext(commits)).delta) == 100


async def test_a_foreign_message_counts_for_the_sequence_and_is_skipped(open_log: Open, js: JetStream) -> None:
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
    open_log: Open, js: JetStream, nats_url: str, monkeypatch: pytest.MonkeyPatch
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
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                await begun.wait()
                await log.append(Set("b", 2))


@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_a_watcher_gets_what_came_after_the_commit_that_it_names(
    open_log: Open, nats_url: str, after: int
) -> None:
    log = await open_log().load()
    for number in (1, 2, 3):
        await log.append(Set("a", number))
    first = log.commits.state.last - 2
    async with RebaserClient.connect(nats_url, prefix=log.subjects.prefix) as client:
        with anyio.fail_after(30):
            async with aclosing(client.watch(KEY.workspace, KEY.change_set, after=first - 1 + after)) as commits:
                expected = [Set("a", number) for number in range(after + 1, 5)]
                await log.append(Set("a", 4))
                assert [(await anext(commits)).delta for _ in expected] == [(one,) for one in expected]


async def test_a_damaged_commit_is_never_skipped(open_log: Open, js: JetStream) -> None:
    log = await open_log().load()
    await log.append(Set("a", 1))
    headers, payload = encode_commit(log.commits.draft(Kind.REBASE, delta=(Set("b", 2),)))
    await js.publish(log.subjects.commits(KEY), payload[:-3], headers)
    with pytest.raises(TransientError, match=r"commit 2 is damaged: .*; see `rebaser doctor ws cs`"):
        await log.reader.load(KEY)
    overview = await read_overview(js.connection, js, log.subjects, log.reader, None)
    assert [one.last_commit for one in overview.change_sets] == [2]
    assert overview.change_sets[0].problem.startswith("commit 2 is damaged: ")


async def test_whoever_loads_a_log_weighs_it_as_its_writer_does(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in blobs, and what was written beside a checkpoint: so the next one is due when it pays."""
    log = open_log()
    log.inline_max = 1000
    await log.load()

    async def check() -> None:
        assert (await open_log().load()).commits.tail_weight == log.commits.tail_weight > 0

    for count in (500, 1):
        await log.append(*[Set(f"v{at}", at) for at in range(count)])
        await check()
        await log.append(Set("small", count))
        await check()
    put = log.blobs.put

    async def put_beside_an_edit(data: bytes) -> str:
        monkeypatch.undo()
        for at in range(3):
            await log.append(Set("beside", at))
        return await put(data)

    monkeypatch.setattr(log.blobs, "put", put_beside_an_edit)
    await log.write_checkpoint()
    assert log.commits.state.cells["beside"].value == 2
    await check()
    await log.append(Set("after", 1))
    await check()
    await log.append(*[Set(f"v{at}", at) for at in range(500)])
    await check()


async def test_what_is_damaged_below_the_checkpoint_is_in_nobodys_way(open_log: Open, js: JetStream) -> None:
    """Not even where the newest message is foreign, so that the log is searched for the checkpoint."""
    log = await open_log().load()
    await log.append(Set("a", 1))
    headers, payload = encode_commit(log.commits.draft(Kind.REBASE))
    await js.publish(log.subjects.commits(KEY), payload[:-3], headers)
    log.commits.state.skip(2)
    await log.write_checkpoint()
    assert set((await log.reader.load(KEY)).state.cells) == {"a"}
    await js.publish(log.subjects.commits(KEY), b"not ours")
    state = (await log.reader.load(KEY)).state
    assert (set(state.cells), state.last) == ({"a"}, 4)
    await js.publish(log.subjects.commits(KEY), payload[:-3], headers)
    with pytest.raises(TransientError, match="commit 5 is damaged"):
        await log.reader.load(KEY)


async def test_a_delta_or_a_checkpoint_that_is_something_else_is_damaged_for_now(open_log: Open) -> None:
    """No reader may take it for a request that nobody can process."""
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


async def test_a_checkpoint_of_a_later_commit_than_the_last_is_not_waited_for(
    open_log: Open, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LOAD_ATTEMPTS", 2)
    log = await open_log().load()
    for number in range(5):
        await log.append(Set(f"v{number}", number))
    reference = await log.write_checkpoint()
    elsewhere = ChangeSetKey("ws", "other")
    commit = replace(log.commits.draft(Kind.CHECKPOINT, checkpoint=reference), previous=0)
    await js.delete_stream(log.subjects.commits_stream)
    await ensure_topology(js, log.subjects, TopologyOptions())
    await js.publish(log.subjects.commits(elsewhere), encode_commit(commit)[1], encode_commit(commit)[0])
    with (
        anyio.fail_after(30),
        pytest.raises(TransientError, match="its checkpoint is of commit 5, its last commit is 1"),
    ):
        await log.reader.load(elsewhere)


async def test_loading_begins_at_the_checkpoint_and_the_log_below_the_last_one_is_purged(open_log: Open) -> None:
    log = await open_log().load()
    checkpoints = []
    for number in range(3):
        await log.append(Set(f"v{number}", number))
        checkpoints.append((await log.write_checkpoint()).sequence)
    await log.append(Set("after", True))
    tail = await log.reader.load(KEY)
    assert set(tail.state.cells) == {"v0", "v1", "v2", "after"}
    assert tail.state.checkpoint == log.commits.state.checkpoint
    first = await log.js.next(log.subjects.commits_stream, log.subjects.commits(KEY), 1)
    assert first is not None
    assert first.sequence == checkpoints[-2] + 1, "who is reading from the checkpoint before the current one can go on"


async def test_the_next_owner_loads_a_base_and_its_deltas_and_goes_on_with_them(open_log: Open) -> None:
    log = await open_log().load()
    many = [Derive(f"d{number}", "sum", {"values": (f"v{number}", "v0")}) for number in range(1000)]
    await log.append(*(Set(f"v{number}", number) for number in range(2000)), *many)
    base = await log.write_checkpoint()
    await log.append(Set("v7", "changed"), Remove("v8"))
    first = await log.write_checkpoint()
    assert first.size - base.size < 20_000 < base.size
    await log.append(Set("after", 1))
    other = await open_log().load()
    assert other.commits.chain == log.commits.chain
    assert len(other.commits.chain.deltas) == 1
    assert other.commits.state.cells == log.commits.state.cells
    await other.append(Set("v9", None), Derive("v10", "sum", {"values": ("after",)}))
    await other.write_checkpoint()
    with pytest.raises(FencedError):
        await log.write_checkpoint()
    tail = await log.reader.load(KEY)
    assert (tail.chain, len(tail.chain.deltas)) == (other.commits.chain, 2)
    assert tail.state.cells == other.commits.state.cells
    assert sorted(tail.state.cells.dependents("v0")) == sorted(f"d{number}" for number in range(1000))


async def test_what_a_checkpoint_held_that_was_not_stored_is_in_the_next(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log().load()
    await log.append(*(Set(f"v{number}", number) for number in range(1000)))
    await log.write_checkpoint()
    await log.append(Set("v1", "changed"), Remove("v2"))
    for broken in ("put", "append"):
        with monkeypatch.context() as patch:
            patch.setattr(log.blobs if broken == "put" else log.commits, broken, _away)
            with pytest.raises(TransientError):
                await log.write_checkpoint()
    await log.append(Set("v3", "changed"))
    await log.write_checkpoint()
    tail = await log.reader.load(KEY)
    assert len(tail.chain.deltas) == 1
    assert tail.state.cells == log.commits.state.cells


async def test_a_checkpoint_that_is_being_encoded_keeps_no_update_waiting(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log().load()
    await log.append(*(Set(f"v{number}", number) for number in range(10)))
    expected = (await log.reader.load(KEY)).state.cells
    encoding, over, real = anyio.Event(), threading.Event(), CheckpointDraft.write

    def write(draft: CheckpointDraft) -> WrittenCheckpoint:
        from_thread.run_sync(encoding.set)
        over.wait(30)
        return real(draft)

    monkeypatch.setattr(checkpointer, "ROW", thresholds.now.on_loop_max_bytes)  # so that it is encoded in a thread
    monkeypatch.setattr(CheckpointDraft, "write", write)
    try:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(log.write_checkpoint)
                await encoding.wait()
                await log.append(Set("v1", "meanwhile"), Remove("v2"), Set("new", 1))
                async with log.commits.view() as view:
                    assert view.sequence == log.commits.state.last
                over.set()
    finally:
        over.set()
    assert log.commits.state.checkpoint is not None
    newest = await log.blobs.get(log.commits.state.checkpoint.address)
    assert read_checkpoint(newest).cells == expected
    assert (await log.reader.load(KEY)).state.cells == log.commits.state.cells


async def test_a_view_waits_for_the_thread_of_one_that_was_left(open_log: Open) -> None:
    """As one that is late is: it reads columns that say less than what was folded since."""
    log = await open_log().load()
    await log.append(Set("a", 1))
    reading, over = anyio.Event(), threading.Event()

    def read() -> None:
        from_thread.run_sync(reading.set)
        over.wait(30)

    async def view_again() -> None:
        async with log.commits.view() as view:
            assert over.is_set()
            assert view.sequence == log.commits.state.last

    try:
        async with anyio.create_task_group() as group:
            async with log.commits.view() as view:
                group.start_soon(to_thread.run_sync, view.run, read)
                await reading.wait()
            await log.append(Set("a", 2))
            group.start_soon(view_again)
            await anyio.wait_all_tasks_blocked()
            over.set()
    finally:
        over.set()


@pytest.mark.parametrize("count", [thresholds.now.inline_table_max_rows, thresholds.now.inline_table_max_rows + 1])
async def test_what_an_update_found_stands_in_its_commit_unless_it_is_much(open_log: Open, count: int) -> None:
    log = await open_log().load()
    await log.append(*(Derive(f"v{at}", "sum", {}) for at in range(count)))
    commits, numbers = log.commits, np.linspace(0, 1, count)
    kinds = np.full(count, FLOAT, np.uint8)
    kinds[7] = TRUE
    found = ComputedTable([f"v{at}" for at in range(count)], kinds, numbers.view(np.int64))
    async with commits.append_lock():
        covers = commits.state.last
        await commits.append(commits.draft(Kind.DVU, covers=covers, delta=found))
    last = await log.reader.last(KEY)
    assert last is not None
    assert (last.delta_blob is None) == (count <= thresholds.now.inline_table_max_rows)
    cells = (await log.reader.load(KEY)).state.cells
    assert cells == commits.state.cells
    assert [cells[f"v{at}"].value for at in (6, 7)] == [numbers[6], True]


async def _away(*_: object) -> None:
    raise TransientError("it is away")


async def test_a_checkpoint_of_the_release_before_is_read_and_followed_by_a_base(open_log: Open, js: JetStream) -> None:
    log = open_log()
    for _ in range(9):
        await js.publish(log.subjects.commits(ChangeSetKey("ws", "other")), b"")  # it is at log sequence 9
    old = (FOLDER / "Checkpoint.v1.full.cbor").read_bytes()
    reference = CheckpointRef(await log.blobs.put(old), 9, len(old))
    commit = Commit("id", 9, Kind.CHECKPOINT, 1, "old", None, 3, checkpoint=reference, debt=2)
    headers, payload = encode_commit(commit)
    await js.publish(log.subjects.commits(KEY), payload, headers)
    await log.load()
    assert log.commits.state.cells == read_checkpoint(old).cells
    assert log.commits.chain == Chain()
    await log.append(Set("new", 1))
    await log.write_checkpoint()
    tail = await log.reader.load(KEY)
    assert (len(tail.chain.base), tail.chain.deltas) == (1, ())
    assert tail.state.cells == log.commits.state.cells
    assert tail.state.attempts == log.commits.state.attempts != {}


async def test_tails_are_read_a_few_at_once_and_others_have_their_turns_in_between(
    open_log: Open, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the logs are that a server loads together, after an outage say."""
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

    def decode(self: StateLoader, *message: Any) -> object:
        seen.append(ticks)
        return real_decode(self, *message)

    async def tick() -> None:
        nonlocal ticks
        while True:
            await checkpoint_of_the_loop()
            ticks += 1

    monkeypatch.setattr(OrderedConsumer, "__aenter__", enter)
    monkeypatch.setattr(OrderedConsumer, "__aexit__", leave)
    monkeypatch.setattr(StateLoader, "decode", decode)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as ticker:
            ticker.start_soon(tick)
            assert len((await log.reader.load(KEY)).state.cells) == 10
            assert len(set(seen[1:])) == 10  # the first is the last commit, which comes by itself
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

"""Checkpoints in the log: reading begins at the newest one, and writing one delays nobody."""

import threading
from dataclasses import replace

import anyio
import pytest
from anyio import from_thread, to_thread

from rebaser.change_set.log import checkpointer
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import JetStream
from rebaser_client.log import reader
from rebaser_core import thresholds
from rebaser_core.checkpoint import Chain, read_checkpoint
from rebaser_core.checkpoint.writer import CheckpointDraft, WrittenCheckpoint
from rebaser_core.commit import CheckpointRef, Commit, Kind
from rebaser_core.errors import FencedError, TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import encode_commit
from rebaser_core.streams.topology import TopologyOptions
from rebaser_core.updates import Derive, Remove, Set
from tests.support.example_states import FOLDER
from tests.support.owned_log import KEY, OpenLog

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def test_whoever_loads_a_log_weighs_it_as_its_writer_does(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes of blobs count, and so do commits during the writing of a checkpoint. So the next one is due in
    time."""
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


async def test_what_is_damaged_below_the_checkpoint_is_in_nobodys_way(open_log: OpenLog, js: JetStream) -> None:
    """This holds even if the newest message is not a commit, so that the log is searched for the checkpoint."""
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


async def test_a_checkpoint_of_a_later_commit_than_the_last_is_not_waited_for(
    open_log: OpenLog, js: JetStream, monkeypatch: pytest.MonkeyPatch
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
        anyio.fail_after(60),
        pytest.raises(TransientError, match="its checkpoint contains commit 5, but its last commit is 1"),
    ):
        await log.reader.load(elsewhere)


async def test_loading_begins_at_the_checkpoint_and_the_log_below_the_last_one_is_purged(open_log: OpenLog) -> None:
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


async def test_the_next_owner_loads_a_base_and_its_deltas_and_goes_on_with_them(open_log: OpenLog) -> None:
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
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
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
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log().load()
    await log.append(*(Set(f"v{number}", number) for number in range(10)))
    expected = (await log.reader.load(KEY)).state.cells
    encoding, over, real = anyio.Event(), threading.Event(), CheckpointDraft.write

    def write(draft: CheckpointDraft) -> WrittenCheckpoint:
        from_thread.run_sync(encoding.set)
        over.wait(300)
        return real(draft)

    monkeypatch.setattr(checkpointer, "ROW", thresholds.now.on_loop_max_bytes)  # so that it is encoded in a thread
    monkeypatch.setattr(CheckpointDraft, "write", write)
    try:
        with anyio.fail_after(60):
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


async def test_a_view_waits_for_the_thread_of_one_that_was_left(open_log: OpenLog) -> None:
    """A thread of an abandoned update reads columns that are older than what was folded since."""
    log = await open_log().load()
    await log.append(Set("a", 1))
    reading, over = anyio.Event(), threading.Event()

    def read() -> None:
        from_thread.run_sync(reading.set)
        over.wait(300)

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


async def _away(*_: object) -> None:
    raise TransientError("it is away")


async def test_a_checkpoint_of_the_release_before_is_read_and_followed_by_a_base(
    open_log: OpenLog, js: JetStream
) -> None:
    log = open_log()
    for _ in range(9):
        await js.publish(log.subjects.commits(ChangeSetKey("ws", "other")), b"")  # gets log sequence 9
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

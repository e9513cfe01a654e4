"""Checkpoints that an owner writes one after the other, some of which fail: loading them gives the state."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser.change_set.loading import open_log
from rebaser.change_set.log import checkpointer
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.runtime.context import Context
from rebaser.settings import Settings
from rebaser_client.jetstream import JetStream
from rebaser_client.log.reader import MAX_SEARCH_WEIGHT, PASSED, search_weight
from rebaser_core import thresholds
from rebaser_core.commit import CheckpointRef, Commit, Kind
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Remove, Set, Update
from tests.support.contexts import context_of
from tests.support.poison import KEY

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def edit(commits: CommitLog, *updates: Update) -> None:
    async with commits.append_lock():
        await commits.append(commits.draft(Kind.REBASE, delta=updates))


async def first_sequence(context: Context) -> int:
    stored = await context.js.next(context.subjects.commits_stream, context.subjects.commits(KEY), 1)
    assert stored is not None
    return stored.sequence


@pytest.mark.parametrize("failing", [set(), {1}, {2}, {1, 2, 3, 4}])
async def test_what_is_loaded_is_the_state(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch, failing: set[int]
) -> None:
    """In the rounds in `failing`, the first attempt fails. A reader that began at the checkpoint before can still read
    on."""
    context = context_of(js, subjects, Settings(server_id="test", history_for=0))
    commits, put = await open_log(context, KEY), context.blobs.put
    fails: Iterator[bool] = itertools.repeat(False)

    async def put_or_fail(data: bytes) -> str:
        if next(fails):
            raise TransientError("the blob store is away")
        return await put(data)

    monkeypatch.setattr(context.blobs, "put", put_or_fail)
    await edit(commits, *(Set(f"a{at}", at) for at in range(200)))
    await checkpointer.write(context, commits)
    for number in range(1, 5):
        before = commits.state.checkpoint
        assert before is not None
        await edit(commits, Set("x", number), Set(f"b{number}", number), Remove(f"a{number}"))
        assert (await context.reader.load(KEY)).state.values() == commits.state.values(), "the checkpoint and an edit"
        if number in failing:
            fails = iter([True])
            with pytest.raises(TransientError):
                await checkpointer.write(context, commits)
            fails = itertools.repeat(False)
            await edit(commits, Remove(f"a{number + 10}"))
        await checkpointer.write(context, commits)
        loaded = await context.reader.load(KEY)
        assert loaded.state.values() == commits.state.values()
        assert loaded.state.checkpoint != before
        assert await first_sequence(context) == before.sequence + 1
        assert (loaded.tail_weight, loaded.chain) == (commits.tail_weight, commits.chain)


async def test_commits_of_other_logs_add_to_the_weight_of_a_log(js: JetStream, subjects: Subjects) -> None:
    """NATS passes them when the log is read, except before its first commit."""
    context = context_of(js, subjects, Settings(server_id="test", history_for=0))
    other = await open_log(context, ChangeSetKey.of("w", "other"))

    async def edit_other(count: int) -> None:
        for number in range(count):
            await edit(other, Set("x", number))

    await edit_other(200 * PASSED)
    commits = await open_log(context, KEY)
    await edit(commits, Set("a", 1))
    first = commits.tail_weight
    await edit(commits, Set("a", 2))
    close = commits.tail_weight
    assert first <= close - first
    await edit(commits, Set("a", 3))
    one = commits.tail_weight - close
    await edit_other(20 * PASSED)
    await edit(commits, Set("a", 4))
    assert commits.tail_weight == close + 2 * one + 20
    assert (await context.reader.load(KEY)).tail_weight == commits.tail_weight
    await checkpointer.write(context, commits)
    await edit_other(20 * PASSED)
    await edit(commits, Set("a", 5))
    assert (await context.reader.load(KEY)).tail_weight == commits.tail_weight


def test_the_distance_to_the_commit_before_adds_a_bounded_weight() -> None:
    """Otherwise, a change set that is seldom used would get a checkpoint after each commit."""
    far = MAX_SEARCH_WEIGHT * PASSED
    edit = Commit("c", 7, Kind.REBASE, 0, "o", None, None)
    distances = {7: 8, 8: 8 + 10 * PASSED, 9: 9 + far, 10: 10 + 9 * far, 0: far}
    found = [search_weight(edit, previous, sequence) for previous, sequence in distances.items()]
    assert found == [1 // PASSED, 10, MAX_SEARCH_WEIGHT, MAX_SEARCH_WEIGHT, 0]
    assert search_weight(replace(edit, kind=Kind.CHECKPOINT), 7, 7 + far) == 0


async def test_all_files_of_a_checkpoint_are_stored_before_a_commit_names_it(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_of(js, subjects, Settings(server_id="test"))
    commits = await open_log(context, KEY)
    monkeypatch.setattr(thresholds, "now", Thresholds(part_rows=50, batch_rows=20))
    await edit(commits, *(Set(f"a{at}", at) for at in range(200)))
    await checkpointer.write(context, commits)
    assert len(commits.chain.base) >= 4
    assert (await context.reader.load(KEY)).state.values() == commits.state.values()


async def test_a_full_checkpoint_stores_also_what_was_stored_before(js: JetStream, subjects: Subjects) -> None:
    """The bucket of blobs was lost, and is empty now."""
    context = context_of(js, subjects, Settings(server_id="test"))
    commits = await open_log(context, KEY)
    await edit(commits, *(Set(f"a{at}", at) for at in range(200)))
    await checkpointer.write(context, commits)
    await edit(commits, Set("b", 1))
    await checkpointer.write(context, commits)
    await js.purge(f"OBJ_{subjects.blobs_bucket}")
    await edit(commits, Set("c", 1))
    await checkpointer.write(context, commits, full=True)
    assert (await context.reader.load(KEY)).state.values() == commits.state.values()


@pytest.mark.parametrize(
    ("weight", "checkpoint", "due"),
    [(1000, None, False), (1001, None, True), (1001, 16_000, True), (1001, 32_000, False), (2001, 32_000, True)],
)
def test_a_checkpoint_is_due_when_the_log_is_large_by_itself_and_beside_the_checkpoint(
    weight: int, checkpoint: int | None, due: bool
) -> None:
    reference = None if checkpoint is None else CheckpointRef("sha256:0", 1, checkpoint)
    commits = SimpleNamespace(tail_weight=weight, state=SimpleNamespace(checkpoint=reference))
    assert checkpointer.due(cast("Any", commits), 1000) is due

"""Checkpoints that an owner writes one after the other, some of which fail: what is loaded from them is the state."""

import itertools
from collections.abc import Iterator

import pytest

from rebaser.change_set import checkpointer
from rebaser.change_set.commit_log import CommitLog, open_log
from rebaser.runtime.context import Context
from rebaser.settings import Settings
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import Kind
from rebaser_core.errors import TransientError
from rebaser_core.subjects import Subjects
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
    """`failing`: rounds whose first try fails. A reader that began at the checkpoint before finds what follows it."""
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
        assert (loaded.weight, loaded.chain) == (commits.weight, commits.chain)

"""What a rebase reads of the target: commits, or states if the log is heavier, purged, or holds an earlier branch."""

from typing import Any

import anyio
import pytest

from rebaser.change_set.readers import target_reader
from rebaser_client import RebaserClient, Remove, Set
from rebaser_client.jetstream import JetStream
from rebaser_client.log.branch_changes import Changes, read_changes
from rebaser_client.log.branches import BranchConflict
from rebaser_client.log.commits import CommitReader
from rebaser_client.log.positions import At
from rebaser_client.log.reader import LoadedState, StateLoader
from rebaser_core.branches.branch import Apply
from rebaser_core.commit import Commit
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.comparison import definitions_that_differ
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.history import commit_of
from tests.support.owners import Engine, serving
from tests.support.rebases import BLOBS, WAYS, conflicts, info, rebase, settled
from tests.support.workspace import edit, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.mark.parametrize("least", [0, 4096])
async def test_a_state_is_read_instead_of_commits_that_are_heavier(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    least: int,
) -> None:
    states: list[int] = []
    by_state = target_reader._Target._by_state

    async def read(target: Any, newest: Commit) -> Any:
        states.append(newest.sequence)
        return await by_state(target, newest)

    monkeypatch.setattr(target_reader._Target, "_by_state", read)
    with forced(Thresholds(replay_min_bytes=least)):
        async with serving(js, subjects, engine):
            await edit(client, "main", Set("a", 1))
            await client.create_branch("ws", "fix", follow="manual")
            last = await edit(client, "main", Set("a", 2))
            await rebase(client, "fix")
            assert await stands(client, "fix") == {"a": 2}
    assert states == ([] if least else [last])


async def test_the_log_of_the_target_is_gone(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    compare = definitions_that_differ

    def watched(*given: object) -> object:
        compared.append(1)
        return compare(*given)  # type: ignore[arg-type] # the same arguments

    async with serving(js, subjects, engine, checkpoint_bytes=1024, history_for=0.001):
        await edit(client, "main", Set("a", 1), Set("b", 2))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 10))
        for number in range(30):
            await edit(client, "main", Set("text", "x" * 100 + str(number)))
        await edit(client, "main", Set("a", 11), Remove("b"))
        base, oldest = (await info(client, "fix")).base, 0
        with anyio.fail_after(60):
            while oldest <= base:  # until it is purged
                oldest, *_ = await client._reader.oldest_readable(ChangeSetKey("ws", "main")) or (0,)
        monkeypatch.setattr("rebaser.change_set.readers.target_reader.definitions_that_differ", watched)
        assert (await rebase(client, "fix")).conflicts == 1
        assert compared
        assert await stands(client, "fix") == {"a": 10, "text": "x" * 100 + "29"}
        assert await conflicts(client, "fix") == [BranchConflict("a", Set("a", 1), Set("a", 10), Set("a", 11))]


async def _purge(client: RebaserClient, name: str, at: object) -> None:
    """Edit until the log of `name` is purged beyond position `at`."""
    key = ChangeSetKey("ws", name)
    for number in range(100):
        oldest = await client._reader.oldest_readable(key)
        if isinstance(at, int) and oldest is not None and oldest[0] > at:
            return
        await edit(client, name, Set(f"text_{name}", "x" * 500 + str(number)))
    pytest.fail("nothing is purged")


async def test_a_purge_overtakes_reads_that_name_no_position(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not refused as `purged`, which would be final, but read the newest position again."""
    load = StateLoader.load
    overtaken: list[str] = []

    async def slow_load(self: StateLoader, key: ChangeSetKey, at: At | None = None) -> LoadedState:
        if key.change_set == "main" and at is not None and expected not in overtaken:
            overtaken.append(expected)
            await _purge(client, "main", at)
        return await load(self, key, at)

    async def slow_changes(reader: CommitReader, key: ChangeSetKey, sequence: int) -> Changes:
        if expected not in overtaken:
            overtaken.append(expected)
            await _purge(client, key.change_set, sequence)
        return await read_changes(reader, key, sequence)

    with forced(Thresholds(replay_max_bytes=0, tail_max_bytes=0, inline_tail_max_bytes=0, **BLOBS)):
        async with serving(js, subjects, engine, checkpoint_bytes=1024, history_for=0.001):
            await edit(client, "main", Set("a", 1))
            await client.create_branch("ws", "fix", follow="manual")
            await edit(client, "fix", Set("b", 1))
            await edit(client, "main", Set("a", 2))
            monkeypatch.setattr(StateLoader, "load", slow_load)
            expected = "rebase"
            await rebase(client, "fix")
            assert (await stands(client, "fix"))["a"] == 2
            expected = "create"
            for number in range(3, 50):
                await edit(client, "main", Set("a", number))
                await client.create_branch("ws", f"of_{number}")
                assert (await stands(client, f"of_{number}"))["a"] == number
                if expected in overtaken:
                    break  # otherwise, a checkpoint was written just before, so there was nothing to copy
            monkeypatch.setattr("rebaser_client.log.branches.read_changes", slow_changes)
            expected = "diff"
            assert [one.id for one in (await client.changes("ws", "fix")).changes] == ["b", "text_fix"]
            await edit(client, "fix", Set("a", 4))
            await edit(client, "main", Set("a", 5))
            assert (await rebase(client, "fix")).conflicts == 1
            expected = "conflicts"
            assert [one.id for one in await conflicts(client, "fix")] == ["a"]
    assert overtaken == ["rebase", "create", "diff", "conflicts"]


@pytest.mark.parametrize("limits", [WAYS["log"], WAYS["state"]], ids=["log", "state"])
async def test_what_the_target_applied_is_no_longer_readable_in_the_branch(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    limits: Thresholds,
) -> None:
    async def nobody_asks(*_: object) -> None:
        return None

    monkeypatch.setattr("rebaser.change_set.processor.request_settling", nobody_asks)
    with forced(limits):
        async with serving(js, subjects, engine, checkpoint_bytes=8192, history_for=0.001):
            await edit(client, "main", Set("a", 1), Set("b", 1))
            await client.create_branch("ws", "fix", follow="manual")
            await edit(client, "fix", Set("a", 2))
            apply = Apply("fix", allow_stale=True, keep=True)
            applied = await client.enqueue_updates_with_reply("ws", "main", (), action=apply)
            subject, oldest = subjects.commits(ChangeSetKey("ws", "fix")), 0
            while oldest < commit_of(applied):
                await _purge(client, "fix", (await info(client, "fix")).sequence)
                message = await js.next(subjects.commits_stream, subject, 1)
                oldest = 0 if message is None else message.sequence
            await edit(client, "main", Set("b", 2))
            assert (await rebase(client, "fix")).conflicts == 0
            assert (await stands(client, "fix"))["b"] == 2


@pytest.mark.parametrize("way", ["log", "state"])
async def test_what_the_target_took_from_an_earlier_branch_of_the_name_it_took_from_another(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, way: str
) -> None:
    with forced(WAYS[way]):
        async with serving(js, subjects, engine):
            first = await edit(client, "main", Set("a", 1), Set("b", 1))
            await client.create_branch("ws", "fix", follow="manual")
            await edit(client, "fix", Set("a", 2))
            await settled(client, "fix", commit_of(await client.apply("ws", "fix")))
            await client.delete_change_set("ws", "fix")
            await client.create_branch("ws", "fix", at=first, follow="manual")
            await edit(client, "fix", Set("b", 2))
            assert (await rebase(client, "fix")).conflicts == 0
            assert await stands(client, "fix") == {"a": 2, "b": 2}
            assert [one.id for one in (await client.changes("ws", "fix")).changes] == ["b"]

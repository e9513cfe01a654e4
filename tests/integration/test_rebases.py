"""Branches take over the edits of their targets with real servers, from logs and from states."""

from typing import Any

import pytest

from rebaser.change_set.readers import target_reader
from rebaser.change_set.settling import request_settling
from rebaser_client import Derive, RebaserClient, Remove, RequestRejected, Set
from rebaser_client.errors import NotAllowed
from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.jetstream.infos import PubAck
from rebaser_client.log.branch_changes import Changes, read_changes
from rebaser_client.log.branches import BranchConflict, BranchInfo
from rebaser_client.log.commits import CommitReader
from rebaser_client.log.positions import At
from rebaser_client.log.reader import LoadedState, StateLoader
from rebaser_core.branches.branch import Apply, Rebase
from rebaser_core.commit import Commit, Kind, Strategy
from rebaser_core.errors import RebaserError, TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import Success
from rebaser_core.state.comparison import definitions_that_differ
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.history import check_history, commit_of, commits_of, replayed
from tests.support.owners import Engine, serving
from tests.support.workspace import edit, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]
BLOBS = {"inline_max_updates": 0, "inline_max_bytes": 0, "on_loop_max_bytes": 0}
WAYS = {
    "log": Thresholds(),
    "log in blobs": Thresholds(**BLOBS),
    "state": Thresholds(replay_max_bytes=0),
    "state in blobs": Thresholds(replay_max_bytes=0, fold_step=1, **BLOBS),
}


async def rebase(client: RebaserClient, name: str, *, strategy: str = "record", onto: str | None = None) -> Success:
    action = Rebase(onto=onto, strategy=Strategy(strategy))
    response = await client.enqueue_updates_with_reply("ws", name, (), action=action, wait="derived")
    assert isinstance(response.status, Success)
    return response.status


async def code_of(client: RebaserClient, name: str, action: Rebase | Apply) -> str:
    with pytest.raises(RequestRejected) as caught:
        await client.enqueue_updates_with_reply("ws", name, (), action=action)
    return caught.value.code


async def conflicts(client: RebaserClient, name: str) -> list[BranchConflict]:
    """Return the conflicts that are read from commits, and check that they equal those in the state."""
    info, found = await client._branches.conflicts(ChangeSetKey("ws", name))
    state = await client.state("ws", name)
    assert state.branch is not None
    assert [one.id for one in found] == sorted(state.branch.conflicts)
    assert info.conflicts == len(found)
    return list(found)


async def info(client: RebaserClient, name: str) -> BranchInfo:
    found = await client.branch("ws", name)
    assert found is not None
    return found


async def settled(client: RebaserClient, name: str, commit: int) -> BranchInfo:
    await replayed(client, "ws", name, commit)
    return await info(client, name)


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


@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
async def test_a_branch_takes_over_what_its_target_did_and_keeps_its_own_edits(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, limits: Thresholds
) -> None:
    with forced(limits):
        async with serving(js, subjects, engine, checkpoint_bytes=1024):
            total = Derive("sum", "sum", {"values": ("a", "b")})
            await edit(client, "main", Set("a", 1), Set("b", 2), Set("c", 3), Set("d", 4), total)
            await client.create_branch("ws", "fix", follow="manual")
            await edit(client, "fix", Set("a", 10), Set("both", "one"), Remove("c"))
            await edit(client, "main", Set("b", 20), Set("a", 11), Remove("d"), Set("both", "one"), Set("new", 1))
            last = await edit(client, "main", Set("c", 30), Set("b", 21), Set("new", 2))
            found = await rebase(client, "fix")
            assert found.conflicts == 2
            assert found.position >= last
            assert await stands(client, "fix") == {"a": 10, "b": 21, "both": "one", "new": 2, "sum": 31}
            assert await conflicts(client, "fix") == [
                BranchConflict("a", Set("a", 1), Set("a", 10), Set("a", 11)),
                BranchConflict("c", Set("c", 3), None, Set("c", 30)),
            ]
            assert [one.id for one in (await client.changes("ws", "fix")).changes] == ["a", "c"]
            log = {one.sequence: one for one in await commits_of(client, "ws", "fix")}
            commit = log[found.commit]
            assert (commit.kind, commit.source and commit.source.sequence) == (Kind.REPLAY, found.position)
            before = await client.diff("ws", "fix", "fix", at=found.commit - 1, other_at=found.commit)
            assert {one.id for one in before.changes} == {"b", "d", "new"}
            again = await rebase(client, "fix")
            assert (again.performed, again.conflicts) == (0, 2)
            assert await code_of(client, "main", Apply("fix", allow_stale=True)) == "unresolved"
            seen = await edit(client, "fix", Set("a", 12), expect_at=again.commit)
            assert [one.id for one in await conflicts(client, "fix")] == ["c"]
            await edit(client, "fix", Set("c", 31))  # its author has not seen the conflict
            assert [one.id for one in await conflicts(client, "fix")] == ["c"]
            with pytest.raises(RequestRejected, match="came into conflict"):
                await edit(client, "fix", Set("c", 32), expect_at=found.commit - 1)
            await edit(client, "fix", Set("c", 31), expect_at=(await client.state("ws", "fix")).last)
            assert seen
            assert await conflicts(client, "fix") == []
            check_history(list(log.values()))
        async with serving(js, subjects, engine, checkpoint_bytes=1024):
            applied = commit_of(await client.apply("ws", "fix"))
            assert (await stands(client, "main"))["c"] == 31
            assert (await settled(client, "fix", applied)).status == "applied"
            assert await code_of(client, "fix", Rebase()) == "closed"


@pytest.mark.parametrize("strategy", ["ours", "theirs"])
async def test_a_strategy_settles_what_is_in_conflict(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, strategy: str
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1), Set("b", 2))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 10), Set("b", 10))
        await edit(client, "main", Set("a", 11))
        assert (await rebase(client, "fix")).conflicts == 1
        await edit(client, "main", Remove("b"))
        found = await rebase(client, "fix", strategy=strategy)
        assert found.conflicts == 0
        assert await conflicts(client, "fix") == []
        assert await stands(client, "fix") == ({"a": 10, "b": 10} if strategy == "ours" else {"a": 11})
        await client.apply("ws", "fix")
        assert await stands(client, "main") == await stands(client, "fix")


@pytest.mark.parametrize("keep", [False, True])
async def test_a_branch_goes_on_after_an_apply_and_is_applied_again(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, keep: bool
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        at = await edit(client, "fix", Set("a", 2), Set("b", 1))
        if not keep:
            await edit(client, "fix", Set("c", 1))
        applied = commit_of(await client.apply("ws", "fix", at=at, keep=keep))
        assert (await settled(client, "fix", applied)).status == "open"
        for number in range(3, 6):
            await edit(client, "fix", Set("a", number))
            first = commit_of(await client.apply("ws", "fix", keep=True))
            assert (await settled(client, "fix", first)).status == "open"
            assert (await stands(client, "main"))["a"] == number
        assert await conflicts(client, "fix") == []
        assert (await client.changes("ws", "fix")).changes == ()


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
        oldest = await client._reader.oldest_readable(ChangeSetKey("ws", "main"))
        assert oldest is not None
        assert oldest[0] > (await info(client, "fix")).base
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


async def test_conflicts_in_a_blob_are_loaded_though_nothing_was_taken_over(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    with forced(WAYS["log in blobs"]):
        async with serving(js, subjects, engine):
            await edit(client, "main", Set("a", 1))
            await client.create_branch("ws", "fix", follow="manual")
            await edit(client, "fix", Set("a", 2))
            await edit(client, "main", Set("a", 3))
            done = await rebase(client, "fix")
            assert (done.performed, done.conflicts) == (0, 1)
            assert await conflicts(client, "fix") == [BranchConflict("a", Set("a", 1), Set("a", 2), Set("a", 3))]


async def test_a_branch_of_a_closed_branch_moves_to_the_target_of_that(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1), Set("b", 2))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2), Set("mine", 1))
        await client.create_branch("ws", "child", "fix", follow="manual")
        await edit(client, "child", Set("a", 3))
        assert await code_of(client, "child", Rebase(onto="main")) == "target_is_open"
        assert await code_of(client, "child", Rebase(onto="other")) == "not_its_target"
        await client.close_change_set("ws", "fix")
        await edit(client, "main", Set("b", 3))
        assert (await rebase(client, "child", onto="main")).conflicts == 1
        assert (await info(client, "child")).target == "main"
        assert await stands(client, "child") == {"a": 3, "b": 3}
        assert await conflicts(client, "child") == [BranchConflict("a", Set("a", 2), Set("a", 3), Set("a", 1))]
        await rebase(client, "child", strategy="ours")
        await client.apply("ws", "child")
        assert await stands(client, "main") == {"a": 3, "b": 3}


async def test_what_cannot_be_rebased_is_refused_and_says_why(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "tag", closed=True)
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2))
        base = (await info(client, "fix")).base
        assert await code_of(client, "main", Rebase()) == "not_a_branch"
        assert await code_of(client, "tag", Rebase()) == "closed"
        assert await code_of(client, "fix", Rebase(upto=10**6)) == "no_such_position"
        assert await code_of(client, "fix", Rebase(upto=base, settles=1)) == "moved"
        await edit(client, "main", Set("b", 1))
        response = await client.enqueue_updates_with_reply("ws", "fix", (), action=Rebase(upto=base))
        assert response.status == Success(0, commit_of(response), base, 0)
        assert "b" not in await stands(client, "fix")
        await client.protect("ws", "fix")
        assert await code_of(client, "fix", Rebase()) == "protected"
        await client.unprotect("ws", "fix")
        await client.delete_change_set("ws", "main")
        assert await code_of(client, "fix", Rebase()) == "deleted"
        await edit(client, "other", Set("a", 3))
        await client.create_branch("ws", "main", "other", follow="manual")
        assert await code_of(client, "fix", Rebase()) == "moved"
        await edit(client, "main", Set("a", 4))
        assert await code_of(client, "fix", Rebase()) == "moved"


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


async def test_an_apply_is_answered_only_once_its_branch_was_asked_to_go_on(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, failures = request_settling, [1, 2]

    async def failing(*given: object) -> None:
        if failures:
            failures.pop()
            raise TransientError("NATS does not answer")
        await ask(*given)  # type: ignore[arg-type] # the same arguments

    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2))
        monkeypatch.setattr("rebaser.change_set.processor.request_settling", failing)
        applied = commit_of(await client.apply("ws", "fix"))
        assert not failures
        assert (await settled(client, "fix", applied)).status == "applied"
        decided = [one for commit in await commits_of(client, "ws", "fix") for one in commit.requests]
        assert [one.request_id for one in decided if one.request_id.startswith("settle")] == [f"settle-{applied}"]


@pytest.mark.parametrize(
    "error", [ApiError(503, 10077, "maximum bytes exceeded"), NotAllowed("publish", "requests")], ids=type
)
async def test_an_apply_is_answered_though_its_branch_cannot_be_asked_to_go_on(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    error: RebaserError,
) -> None:
    publish = JetStream.publish

    async def refusing(self: JetStream, subject: str, payload: bytes, headers: Any = None, **more: Any) -> PubAck:
        if "settle-" in (headers or {}).get("Nats-Msg-Id", ""):
            raise error
        return await publish(self, subject, payload, headers, **more)

    monkeypatch.setattr(JetStream, "publish", refusing)
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2))
        applied = commit_of(await client.apply("ws", "fix"))
        assert await code_of(client, "main", Apply("fix", allow_stale=True)) == "behind"
        assert (await rebase(client, "fix")).position >= applied  # has the same effect
        assert (await info(client, "fix")).status == "applied"

"""Branches take over the edits of their targets with real servers, record conflicts, and refuse what they cannot do."""

import pytest

from rebaser_client import Derive, RebaserClient, Remove, RequestRejected, Set
from rebaser_client.jetstream import JetStream
from rebaser_client.log.branches import BranchConflict
from rebaser_core.branches.branch import Apply, Rebase
from rebaser_core.commit import Kind
from rebaser_core.messages import Success
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.history import check_history, commit_of, commits_of
from tests.support.owners import Engine, serving
from tests.support.rebases import WAYS, code_of, conflicts, info, rebase, settled
from tests.support.workspace import edit, refusal, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


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


async def test_a_rebase_ends_conflicts_whose_sides_agree_though_the_target_was_not_edited(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1), Set("b", 1), Set("c", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 10), Set("b", 10), Set("c", 10))
        await edit(client, "main", Set("a", 11), Set("b", 11), Set("c", 11))
        assert (await client.rebase("ws", "fix")).conflicts == 3
        assert (await client.rebase("ws", "fix")).commit is None
        await edit(client, "fix", Set("a", 1), Set("b", 11))  # as both had it, and as the target has it
        assert len(await conflicts(client, "fix")) == 3
        assert (await client.rebase("ws", "fix")).conflicts == 1
        assert await conflicts(client, "fix") == [BranchConflict("c", Set("c", 1), Set("c", 10), Set("c", 11))]
        assert await stands(client, "fix") == {"a": 11, "b": 11, "c": 10}
        assert (await client.rebase("ws", "fix")).commit is None


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
        assert await refusal(client.rebase("ws", "fix")) == "deleted"
        await edit(client, "other", Set("a", 3))
        await client.create_branch("ws", "main", "other", follow="manual")
        assert await code_of(client, "fix", Rebase()) == "moved"
        await edit(client, "main", Set("a", 4))
        assert await code_of(client, "fix", Rebase()) == "moved"

"""Owners bring branches that follow their targets up to date, after waiting requests and without any damage."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from rebaser.change_set.recheck import recheck
from rebaser_client import Derive, RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_client.log.branches import BranchConflict
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.branches.branch import Rebase
from rebaser_core.commit import BranchStatus, Commit, Kind, Marking, Strategy
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.branch_owners import OwnersOfBranch
from tests.support.history import check_history, commits_of
from tests.support.owners import Engine, serving
from tests.support.workspace import edit, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

WAYS = {"log": Thresholds(), "state": Thresholds(replay_max_bytes=0, fold_step=1)}


async def level(js: JetStream, subjects: Subjects, client: RebaserClient, name: str = "fix") -> Commit:
    """Wait until the branch is up to date, and return the newest commit that did this. Until then, make servers load
    it."""
    with anyio.fail_after(60):
        while True:
            await publish_task(js, subjects, ChangeSetKey("ws", name))
            info = await client.branch("ws", name)
            replays = [one for one in await commits_of(client, "ws", name) if one.kind is Kind.REPLAY]
            if info is not None and not info.behind and replays:
                return replays[-1]
            await anyio.sleep(0.02)


@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
async def test_a_branch_that_wakes_is_brought_up_to_date_in_one_commit_and_computed(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, limits: Thresholds
) -> None:
    with forced(limits):
        async with serving(js, subjects, engine, quiescent_period=0.1) as server:
            total = Derive("sum", "sum", {"values": ("a", "b")})
            await edit(client, "main", Set("a", 1), Set("b", 2), Set("c", 3), total, wait="derived")
            made = await client.create_branch("ws", "fix")
            assert made.follow == "auto"
            await edit(client, "fix", Set("a", 10), wait="derived")
            while ChangeSetKey("ws", "fix") in server._owners:  # it sleeps while its target is edited
                await anyio.lowlevel.checkpoint()
            await edit(client, "main", Set("b", 20))
            last = await edit(client, "main", Set("b", 21), Set("a", 11))
            pulled = await level(js, subjects, client)
            assert pulled.requests == ()
            assert pulled.source is not None
            assert pulled.source.sequence >= last
            found = await client.conflicts("ws", "fix")
            assert found.conflicts == (BranchConflict("a", Set("a", 1), Set("a", 10), Set("a", 11)),)
            await edit(client, "fix", wait="derived")
            assert await stands(client, "fix") == {"a": 10, "b": 21, "c": 3, "sum": 31}
            commits = await commits_of(client, "ws", "fix")
            check_history(commits)
            assert len([one for one in commits if one.kind is Kind.REPLAY]) == 1


async def test_a_branch_that_does_not_follow_is_left_alone(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine, quiescent_period=0.1):
        await edit(client, "main", Set("a", 1))
        for name, follow in (("fix", "manual"), ("other", "auto")):
            await client.create_branch("ws", name, follow=follow)  # type: ignore[arg-type] # it is one of the two
        await client.protect("ws", "other")
        await edit(client, "main", Set("a", 2))
        for name in ("fix", "other"):
            await edit(client, name)
        await client.unprotect("ws", "other")
        await level(js, subjects, client, "other")
        assert [one.kind for one in await commits_of(client, "ws", "fix")] == [Kind.CREATE, Kind.REBASE]
        info = await client.branch("ws", "fix")
        assert info is not None
        assert (info.follow, info.behind) == ("manual", True)


async def test_a_pull_comes_behind_what_is_queued_and_who_raced_it_is_told(
    owners: OwnersOfBranch, client: RebaserClient
) -> None:
    commits, processor, puller = await owners.owner()
    seen = commits.state.last
    await client.enqueue_updates("ws", "fix", [Set("a", 11)], expect_at=seen)
    async with anyio.create_task_group() as group:
        group.start_soon(puller.pull)
        await anyio.wait_all_tasks_blocked()
        assert commits.state.last == seen
        await processor.process(await owners.queued())
        puller.wake()
    kinds = [commit.kind for commit in (await commits_of(client, "ws", "fix"))[-2:]]
    assert kinds == [Kind.REBASE, Kind.REPLAY]
    assert await stands(client, "fix") == {"a": 11, "b": 2}
    assert [one.ours for one in (await client.conflicts("ws", "fix")).conflicts] == [Set("a", 11)]
    await client.enqueue_updates("ws", "fix", [Set("b", 3)], request_id="late", expect_at=seen)
    await client.enqueue_updates("ws", "fix", [Set("a", 12)], request_id="later", expect_at=seen)
    await processor.process(await owners.queued())
    refused = [one for commit in await commits_of(client, "ws", "fix") for one in commit.requests][-2:]
    assert [(one.request_id, one.code) for one in refused] == [("late", "moved"), ("later", "moved")]


async def test_a_branch_that_was_closed_under_a_look_and_is_open_again_is_looked_at_before_its_owner_ends(
    owners: OwnersOfBranch, client: RebaserClient
) -> None:
    commits, processor, puller = await owners.owner()
    closed, opened = Marking(status=BranchStatus.ABANDONED), Marking(status=BranchStatus.OPEN)
    message = await owners.ask(closed)
    async with anyio.create_task_group() as group:
        group.start_soon(puller.pull)
        await anyio.wait_all_tasks_blocked()  # until the pull waits for the request
        await processor.process([message])
        puller.wake()
    owed, left = [puller.owed], [await recheck(owners.context, commits, processor, puller)]
    await processor.process([await owners.ask(opened)])
    puller.wake()
    owed.append(puller.owed)
    # So an owner that releases the branch has its task published again.
    left.append(await recheck(owners.context, commits, processor, puller))
    with anyio.fail_after(60):
        await puller._wait()  # returns at once, because the clock stands still
    assert await puller.pull()
    assert [*owed, puller.owed] == [*left, False] == [False, True, False]
    assert (await stands(client, "fix"))["b"] == 2


@pytest.mark.parametrize("suspects", [False, True])
async def test_a_rebase_that_was_read_before_a_pull_is_read_again(
    owners: OwnersOfBranch, client: RebaserClient, suspects: bool
) -> None:
    commits, processor, puller = await owners.owner(suspects=suspects)
    action = Rebase(strategy=Strategy.THEIRS)
    message = await owners.ask(action)
    read = processor._reader.with_sources

    async def and_pull(*given: Any) -> Any:
        found = await read(*given)
        processor._reader.with_sources = read  # type: ignore[method-assign]
        processor.rebasing = False  # as if the request had been decided just before
        processor.answered = message.stream_sequence
        assert await puller.pull()
        return found

    processor._reader.with_sources = and_pull  # type: ignore[method-assign, assignment]
    done = await processor.process([message])
    assert list(done.rest) == [message]
    assert not (await processor.process([message])).rest
    kinds = [one.kind for one in await commits_of(client, "ws", "fix")]
    assert [kind for kind in kinds if kind is not Kind.ATTEMPT][-2:] == [Kind.REPLAY, Kind.REPLAY]
    assert await stands(client, "fix") == {"a": 2, "b": 2}
    assert commits.state.branch is not None
    assert not commits.state.branch.conflicts


async def test_a_pull_that_was_read_before_a_rebase_begins_anew(
    owners: OwnersOfBranch, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, processor, puller = await owners.owner()
    read = puller._read

    async def and_rebase() -> Any:
        found = await read()
        monkeypatch.setattr(puller, "_read", read)
        await processor.process([await owners.ask(Rebase(strategy=Strategy.OURS))])
        await owners.edit_target(Set("b", 3))
        return found

    monkeypatch.setattr(puller, "_read", and_rebase)
    assert await puller.pull()
    assert [bool(one.requests) for one in await commits_of(client, "ws", "fix")][-2:] == [True, False]
    assert await stands(client, "fix") == {"a": 10, "b": 3}
    assert commits.state.branch is not None
    assert not commits.state.branch.conflicts


async def test_a_pull_whose_target_was_rebased_onto_before_it_is_read_writes_nothing(
    owners: OwnersOfBranch, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, processor, puller = await owners.owner()
    read = puller._read

    async def rebase_and_read() -> Any:
        monkeypatch.setattr(puller, "_read", read)
        await processor.process([await owners.ask(Rebase(strategy=Strategy.OURS))])
        await owners.edit_target()  # a commit without edits
        return await read()

    monkeypatch.setattr(puller, "_read", rebase_and_read)
    assert await puller.pull()  # the log of the target grew by the request
    assert (await commits_of(client, "ws", "fix"))[-1].requests

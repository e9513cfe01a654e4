"""Branches are applied to their targets by real servers, with checkpoints, blobs and purges in between."""

import asyncio
import time

import anyio
import pytest

from rebaser.change_set.log import commit_parts
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.log.encoded_commit import EncodedCommit
from rebaser_client import Derive, RebaserClient, Remove, RequestConflicts, RequestRejected, Set
from rebaser_client.jetstream import JetStream
from rebaser_client.log.branch_changes import Changes, changes_of
from rebaser_client.log.commits import CommitReader
from rebaser_core.branches.branch import Apply
from rebaser_core.commit import Commit, Kind, Source
from rebaser_core.errors import FencedError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import read_blobs
from rebaser_core.response import Sides
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.history import check_history, commit_of, commits_of, replayed
from tests.support.owners import Engine, serving
from tests.support.workspace import edit, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def refused(client: RebaserClient, branch: str, **options: object) -> str:
    with pytest.raises(RequestRejected) as caught:
        await client.apply("ws", branch, **options)  # type: ignore[arg-type] # each has its own type
    return caught.value.code


WAYS = {
    "usual": Thresholds(),
    "blobs": Thresholds(inline_max_updates=0, inline_max_bytes=0, on_loop_max_bytes=0),
    "few deltas": Thresholds(max_deltas=1, delta_changes_divisor=1),
}


@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
async def test_a_target_takes_the_changes_of_a_branch_beside_its_own(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, limits: Thresholds
) -> None:
    with forced(limits):
        async with serving(js, subjects, engine, checkpoint_bytes=1024):
            await edit(
                client, "main", Set("a", 1), Set("b", 2), Set("c", 3), Derive("sum", "sum", {"values": ("a", "b")})
            )
            await client.create_branch("ws", "fix", follow="manual")
            await edit(client, "fix", Set("a", 10), Remove("c"), Set("d", 4))
            await edit(client, "fix", Set("d", 5), Set("e", 6))
            last = await edit(client, "fix", Remove("e"))
            await edit(client, "main", Set("b", 20))
            response = await client.apply("ws", "fix", author="ann", message="reviewed", wait="derived")
            assert await stands(client, "main") == {"a": 10, "b": 20, "d": 5, "sum": 30}
            commit = (await commits_of(client, "ws", "main"))[-2]
            log = {one.sequence: one for one in await commits_of(client, "ws", "main")}
            commit = log[commit_of(response)]
            assert (commit.kind, commit.authors[0].author) == (Kind.REBASE, "ann")
            assert commit.source is not None
            assert commit.source.change_set == "fix"
            assert commit.source.sequence >= last
            state = await client.state("ws", "main")
            assert state.taken == {"fix": commit.sequence}
            check_history(list(log.values()))
            await client.undo("ws", "main", author="ann", wait="derived")
            assert await stands(client, "main") == {"a": 1, "b": 20, "c": 3, "sum": 21}


async def test_a_value_edited_on_both_sides_is_a_conflict_and_nothing_is_applied(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1), Set("b", 2), Set("c", 3))
        await client.create_branch("ws", "fix", follow="manual")
        at = await edit(client, "fix", Set("a", 10), Remove("b"), Set("c", 4), Set("d", 5))
        await edit(client, "main", Set("a", 11), Derive("b", "sum", {"values": "a"}), Set("c", 4))
        await client.enqueue_updates_with_reply("ws", "main", (), wait="derived")
        before = await stands(client, "main")
        with pytest.raises(RequestConflicts) as caught:
            await client.apply("ws", "fix", at=at)
        assert {one.id: one.sides for one in caught.value.conflicts} == {
            "a": Sides(Set("a", 1), Set("a", 11), Set("a", 10)),
            "b": Sides(Set("b", 2), Derive("b", "sum", {"values": "a"}), None),
        }
        assert await stands(client, "main") == before
        assert (await client.state("ws", "main")).taken == {}
        await edit(client, "fix", Set("a", 11), Derive("b", "sum", {"values": "a"}))
        await client.apply("ws", "fix")
        assert await stands(client, "main") == before | {"d": 5}


async def test_an_answer_that_is_given_again_has_the_sides_of_its_conflicts(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async def asked(at: int) -> dict[str, Sides | None]:
        with pytest.raises(RequestConflicts) as caught:
            await client.apply("ws", "fix", at=at, request_id="r1", allow_stale=True)
        return {one.id: one.sides for one in caught.value.conflicts}

    async with serving(js, subjects, engine, checkpoint_bytes=1024):
        await edit(client, "main", Set("a", 1), Set("b", 2))
        await client.create_branch("ws", "fix", follow="manual")
        at = await edit(client, "fix", Set("a", 10), Remove("b"))
        await edit(client, "main", Set("a", 11), Set("b", 12))
        sides = {"a": Sides(Set("a", 1), Set("a", 11), Set("a", 10)), "b": Sides(Set("b", 2), Set("b", 12), None)}
        assert await asked(at) == sides
        for number in range(5):
            await edit(client, "main", Set("a", 20 + number), Set("c", "x" * 1024))
        assert await asked(at) == sides
    recorded = (await client.state("ws", "main")).outcomes.of(RequestId("r1"))
    result = recorded.decision.result
    assert result is not None
    async with serving(js, subjects, engine, checkpoint_bytes=1024):
        assert await asked(at) == sides
        named: set[str] = set()
        async for entry in client.entries("commits", "ws", "main"):
            if entry.headers is not None and entry.sequence > recorded.commit:
                named |= set(read_blobs(entry.headers))
        assert result.address in named  # a checkpoint keeps the answer, and names the blob that the answer needs
        await js.purge(f"OBJ_{subjects.blobs_bucket}", f"$O.{subjects.blobs_bucket}.>")
        assert await asked(at) == {}


async def test_what_cannot_be_applied_is_refused_and_says_why(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        first = await edit(client, "main", Set("a", 1))
        await edit(client, "other", Set("a", 1))
        await client.create_branch("ws", "tag", closed=True)
        await client.create_branch("ws", "fix", follow="manual")
        at = await edit(client, "fix", Set("a", 2))
        later = await edit(client, "fix", Set("b", 2))
        for name, code in (("none", "no_such_change_set"), ("other", "not_a_branch")):
            with pytest.raises(UnprocessableError) as caught:
                await client.apply("ws", name)
            assert caught.value.code == code

        async def ask(name: str, action: Apply) -> str:
            with pytest.raises(RequestRejected) as caught:
                await client.enqueue_updates_with_reply("ws", name, (), action=action)
            return caught.value.code

        assert await ask("main", Apply("none")) == "no_such_change_set"
        assert await ask("main", Apply("main")) == "self"
        assert await ask("main", Apply("other")) == "not_its_target"
        # The branch did not exist at that position.
        assert await ask("main", Apply("fix", first)) == "no_such_change_set"
        assert await ask("main", Apply("fix", 10**6)) == "no_such_position"
        assert await refused(client, "fix", to="other") == "not_its_target"
        assert await refused(client, "tag") == "closed"
        assert (await client.branch("ws", "main", at=first)) is not None
        await edit(client, "main", Set("m", 1))
        assert await refused(client, "fix", at=later, strict=True) == "moved"
        applied = await client.apply("ws", "fix", at=at)
        assert await stands(client, "main") == {"a": 2, "m": 1}
        assert await refused(client, "fix", at=later) == "behind"
        assert await refused(client, "fix", at=at) == "behind"
        await client.create_branch("ws", "child", "fix", follow="manual")
        await edit(client, "child", Set("c", 1))
        await client.apply("ws", "child")
        await replayed(client, "ws", "fix", commit_of(applied))
        assert [one.id for one in (await client.changes("ws", "fix")).changes] == ["b", "c"]
        await client.create_branch("ws", "quiet", follow="manual")
        await edit(client, "quiet", Set("q", 1))
        await client.apply("ws", "quiet", strict=True)
        assert (await stands(client, "main"))["q"] == 1


async def test_a_branch_is_applied_once_its_derived_values_are_up_to_date(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    engine = Engine()
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1), Derive("double", "sum", {"of": ["a", "a"]}))
        await client.create_branch("ws", "fix", follow="manual")  # inherits the debt of its parent
        at = await edit(client, "fix", Set("a", 2))
        with pytest.raises(RequestRejected) as caught:
            await client.enqueue_updates_with_reply("ws", "main", (), action=Apply("fix", at))
        assert caught.value.code == "stale"
        async with anyio.create_task_group() as group:
            group.start_soon(client.apply, "ws", "fix")
            await engine.asked.wait()
            assert await stands(client, "main") == {"a": 1, "double": None}
            engine.go.set()
        assert (await stands(client, "main"))["a"] == 2
        await client.create_branch("ws", "deep", follow="manual")
        await edit(client, "deep", Set("a", 3))
        await client.apply("ws", "deep", allow_stale=True)
        assert (await stands(client, "main"))["a"] == 3
        await client.create_branch("ws", "late", follow="manual")
        at = commit_of(await client.enqueue_updates_with_reply("ws", "late", [Set("a", 4)], wait="derived"))
        engine.go = anyio.Event()
        await edit(client, "late", Set("a", 5))  # not computed in the branch, but computed after the apply
        await client.enqueue_updates_with_reply("ws", "main", (), action=Apply("late", at))
        assert (await stands(client, "main"))["a"] == 4
        engine.go.set()


@pytest.mark.usefixtures("no_ack_wait")
@pytest.mark.parametrize("landed", [False, True])
async def test_an_owner_that_ends_around_its_append_applies_it_once(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    landed: bool,
) -> None:
    append = CommitLog.publish
    failures = [True]

    async def publish(commits: CommitLog, encoded: EncodedCommit) -> int:
        if encoded.commit.source is None or not failures:
            return await append(commits, encoded)
        failures.clear()
        if landed:
            await append(commits, encoded)
        raise FencedError("as if another owner had appended")

    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        at = await edit(client, "fix", Set("a", 2))
        monkeypatch.setattr(CommitLog, "publish", publish)
        applied = await client.apply("ws", "fix", at=at, request_id="one", keep=True)
        assert not failures
        await edit(client, "fix", Set("a", 3))
        await edit(client, "main", Set("a", 9))
        again = await client.apply("ws", "fix", at=at, request_id="one", keep=True)  # answered from the log
        assert again.status == applied.status
        sources = [one.source for one in await commits_of(client, "ws", "main") if one.source is not None]
    assert sources == [Source("fix", at, keep=True)]
    assert await stands(client, "main") == {"a": 9}


async def test_edits_of_the_target_meet_an_apply_in_the_order_of_the_queue(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", *[Set(f"id{number}", 0) for number in range(50)])
        for number in range(5):
            await client.create_branch("ws", f"fix{number}", follow="manual")
            await edit(client, f"fix{number}", *[Set(f"id{at}", f"fix{number}") for at in range(number, 50, 5)])

        async def apply(number: int) -> None:
            await client.apply("ws", f"fix{number}")

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(apply, number)
                group.start_soon(edit, client, "main", Set(f"own{number}", number))
        expected: dict[str, object] = {f"id{number}": f"fix{number % 5}" for number in range(50)}
        assert await stands(client, "main") == expected | {f"own{number}": number for number in range(5)}
        check_history(await commits_of(client, "ws", "main"))
        assert len((await client.state("ws", "main")).taken) == 5


async def test_a_large_branch_is_applied_while_the_loop_gets_its_turns(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    slices, step = 10, 10_000
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        for number in range(slices):
            await edit(client, "fix", *[Set(f"id{number}/{at}", at) for at in range(step)])
    async with serving(js, subjects, engine, apply_timeout=600):
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        async with anyio.create_task_group() as group:
            group.start_soon(count)
            began = time.thread_time()
            await client.apply("ws", "fix", timeout=600)
            used = time.thread_time() - began
            group.cancel_scope.cancel()
        assert turns > 200, f"the loop had {turns} turns in {used:.1f} s"
    assert len(await stands(client, "main")) == slices * step + 1


@pytest.mark.parametrize("named", [True, False])
async def test_a_branch_that_is_purged_while_it_is_read_is_read_again_or_refused(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    engine: Engine,
    named: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The position that a request names is purged. Without a position, the target takes the present state of the
    branch."""
    reads: list[int] = []

    async def overtaken(reader: CommitReader, key: ChangeSetKey, commit: Commit, **limits: int) -> Changes:
        reads.append(commit.sequence)
        if len(reads) == 1:
            for number in range(4):
                await edit(client, "fix", Set("b", str(number) * 2000))
            newest = await reader.newest_commit(key)
            assert newest is not None
            assert newest[1].checkpoint is not None
            await js.purge(subjects.commits_stream, subjects.commits(key), sequence=newest[1].checkpoint.sequence + 1)
        return await changes_of(reader, key, commit, **limits)

    monkeypatch.setattr("rebaser.change_set.readers.offer_reader.changes_of", overtaken)
    async with serving(js, subjects, engine, checkpoint_bytes=1024):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        at = await edit(client, "fix", Set("a", 2))
        action = Apply("fix", at if named else None)
        if named:
            with pytest.raises(RequestRejected, match="no longer readable") as caught:
                await client.enqueue_updates_with_reply("ws", "main", (), action=action)
            assert caught.value.code == "purged"
            assert reads == [at]
            assert await stands(client, "main") == {"a": 1}
        else:
            await client.enqueue_updates_with_reply("ws", "main", (), action=action)
            assert len(reads) == 2
            assert await stands(client, "main") == {"a": 2, "b": "3" * 2000}


async def test_a_branch_that_lacks_one_of_its_commits_is_not_applied(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    """Otherwise, the target would take some of its changes as if they were all."""
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2))
        lost = await edit(client, "fix", Set("b", 2))
        await edit(client, "fix", Set("c", 2))
        await js.delete_message(subjects.commits_stream, lost)
        assert await refused(client, "fix") == "purged"
        assert await stands(client, "main") == {"a": 1}


async def test_a_target_waits_only_for_a_while_for_a_branch_that_lacks_one_of_its_commits(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    """An apply without a position is not refused at once, because the branch may only have been purged meanwhile."""
    async with serving(js, subjects, engine, retry_for=1):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        lost = await edit(client, "fix", Set("b", 2))
        await edit(client, "fix", Set("c", 2))
        await js.delete_message(subjects.commits_stream, lost)
        with anyio.fail_after(60), pytest.raises(RequestRejected, match="given up") as caught:
            await client.enqueue_updates_with_reply("ws", "main", (), action=Apply("fix"))
        assert caught.value.code == "purged"
        await edit(client, "main", Set("a", 2))
        assert await stands(client, "main") == {"a": 2}


@pytest.mark.parametrize("named", [True, False])
async def test_a_branch_is_applied_though_one_of_its_commits_does_not_say_what_it_replaced(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    engine: Engine,
    named: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_parts, "MAX_BEFORE", 1000)
    with forced(Thresholds(inline_max_updates=0, blob_slice_max_items=1)):
        async with serving(js, subjects, engine):
            await edit(client, "main", *(Set(f"v{n}", "x" * 800) for n in range(4)), Set("b", 1))
            await client.create_branch("ws", "fix", follow="manual")
            at = await edit(client, "fix", *(Remove(f"v{n}") for n in range(4)), Set("b", 2))
            commit = (await commits_of(client, "ws", "fix"))[-1]
            assert (commit.sequence, commit.before, commit.before_blob) == (at, None, None)
            with anyio.fail_after(60):
                action = Apply("fix", at if named else None)
                await client.enqueue_updates_with_reply("ws", "main", (), action=action)
            assert await stands(client, "main") == {"b": 2}

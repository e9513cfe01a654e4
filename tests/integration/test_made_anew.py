"""Readers of a change set that is deleted and created anew: watches, and the Spark data source."""

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread

from rebaser_client import Commit, RebaserClient, Set, State, Update, Value
from rebaser_client.jetstream import JetStream
from rebaser_client.spark.logs import Logs
from rebaser_client.spark.options import SourceOptions
from rebaser_client.spark.source import StreamReader
from rebaser_core.commit import BranchStatus, Kind
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.history import commit_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("shop", "fix")


async def edit(client: RebaserClient, name: str, *updates: Update) -> int:
    return commit_of(await client.enqueue_updates_with_reply("shop", name, updates))


def options(nats_url: str, subjects: Subjects, **more: str) -> SourceOptions:
    return SourceOptions.read({"nats": nats_url, "prefix": subjects.prefix, "workspace": "shop", **more})


async def make_anew(client: RebaserClient) -> tuple[int, int, int, int]:
    """Return the commits that edit the first change set fix, delete it, create the second one, and edit that."""
    await edit(client, "main", Set("a", 1), Set("b", 1))
    await client.create_branch("shop", "fix", follow="manual")
    first = await edit(client, "fix", Set("a", 2), Set("old", True))
    deleted = commit_of(await client.delete_change_set("shop", "fix"))
    made = await client.create_branch("shop", "fix", follow="manual")
    return first, deleted, made.sequence, await edit(client, "fix", Set("b", 3))


async def test_a_watcher_is_told_that_a_change_set_begins_anew(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    seen: list[Commit] = []

    async def watch(after: int, until: int) -> list[int]:
        seen.clear()
        with anyio.fail_after(60):
            async for commit in client.watch("shop", "fix", after=after):
                seen.append(commit)
                if commit.sequence >= until:
                    break
        return [commit.sequence for commit in seen]

    async with serving(js, subjects, Engine()):
        first, deleted, made, last = await make_anew(client)
        assert (await watch(0, last))[1:] == [first, deleted, made, last]
        marks = [commit.marking.status for commit in seen if commit.marking is not None]
        assert marks == [BranchStatus.DELETED]
        assert seen[-2].kind is Kind.CREATE
        await js.purge(subjects.commits_stream, subjects.commits(KEY), sequence=made)
        assert await watch(first, last) == [made, last], "whoever comes late begins with the new one"
        folded = {update.id for commit in seen for update in commit.delta}
        assert folded == {"b"}


async def test_a_difference_across_a_deletion_has_all_values_that_were_deleted_or_came_back(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    async def ids(at: int, other_at: int) -> list[tuple[str, bool, bool]]:
        """Return each id that differs, and whether it exists on each side."""
        found = await client.diff("shop", "fix", at=at, other_at=other_at)
        assert (found.first, found.last) == (at, other_at)
        return [(one.id, one.before is not None, one.after is not None) for one in found.changes]

    async with serving(js, subjects, Engine()):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("shop", "fix", None, follow="manual")
        first = await edit(client, "fix", Set("a", 2), Set("b", 1))
        deleted = commit_of(await client.delete_change_set("shop", "fix"))
        back = commit_of(await client.reopen_change_set("shop", "fix"))
        again = commit_of(await client.delete_change_set("shop", "fix"))
        await client.create_branch("shop", "fix", None, follow="manual")
        last = await edit(client, "fix", Set("b", 1), Set("c", 1))
    both = [("a", True, False), ("b", True, False)]
    assert await ids(first, deleted) == both
    assert await ids(deleted, first) == await ids(deleted, back) == [("a", False, True), ("b", False, True)]
    assert await ids(first, back) == []
    assert await ids(back, again) == both
    assert await ids(back, last) == [("a", True, False), ("c", False, True)]
    assert await ids(again, last) == [("b", False, True), ("c", False, True)]


async def test_a_difference_between_two_positions_before_the_creation_is_that_of_the_parent(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    async with serving(js, subjects, Engine()):
        first = await edit(client, "main", Set("a", 1), Set("b", 1))
        second = await edit(client, "main", Set("a", 2))
        await client.create_branch("shop", "fix", follow="manual")
        await client.create_branch("shop", "deep", "fix", follow="manual")
    for name in ("main", "fix", "deep"):
        found = await client.diff("shop", name, at=first, other_at=second)
        assert (found.first, found.last) == (first, second)
        assert [(one.id, one.before, one.after) for one in found.changes] == [("a", Set("a", 1), Set("a", 2))]
        assert [one.id for one in (await client.diff("shop", name, at=0, other_at=second)).changes] == ["a", "b"]


async def test_a_parent_that_was_made_anew_from_its_child_is_not_taken_for_the_parent(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    """Each of the two change sets that have the names now was created from the name of the other."""
    async with serving(js, subjects, Engine()):
        first = await edit(client, "main", Set("a", 1))
        await client.create_branch("shop", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2))
        await client.delete_change_set("shop", "main")
        made = await client.create_branch("shop", "main", "fix", follow="manual")
        await edit(client, "main", Set("a", 3))
    with anyio.fail_after(30):
        for name in ("fix", "main"):
            assert await client.values("shop", name, at=0) == {}
            assert (await client.value("shop", name, "a", at=first)) == Value(1, State.OK)
            assert (await client.diff("shop", name, at=0, other_at=first)).last == first
        assert (await client.value("shop", "fix", "a", at=made.sequence)) == Value(2, State.OK)


async def test_the_history_of_a_value_ends_where_its_change_set_was_created(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    async with serving(js, subjects, Engine()):
        first, deleted, made, last = await make_anew(client)

    async def history(id_: str, at: int | None = None) -> tuple[list[int], int | None]:
        found = await client.value_history("shop", "fix", id_, at=at)
        logged = [entry.sequence async for entry in client.log("shop", "fix", id_, at=at)]
        assert logged == [entry.sequence for entry in found.entries]
        return logged, found.next

    assert await history("a") == await history("a", made) == ([], None)
    assert await history("b") == ([last], None)
    assert await history("a", deleted) == await history("old", first) == ([first], None)
    every = [entry.sequence async for entry in client.log("shop", "fix")]
    assert every[:4] == [last, made, deleted, first]


async def test_a_branch_is_compared_with_the_change_set_that_has_the_name_of_its_target_now(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    async with serving(js, subjects, Engine()):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("shop", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2), Set("old", 1))
        await client.create_branch("shop", "deep", "fix", follow="manual")
        await edit(client, "deep", Set("a", 9), Set("old", 9))
        await client.delete_change_set("shop", "fix")
        await client.create_branch("shop", "fix", follow="manual")
        last = await edit(client, "fix", Set("new", 1))
        found = await client.changes("shop", "deep")
    assert found.target_sequence == last
    assert [(one.id, one.base, one.ours, one.theirs) for one in found.changes] == [
        ("a", Set("a", 2), Set("a", 9), Set("a", 1)),
        ("old", Set("old", 1), Set("old", 9), None),
    ]


async def test_spark_reads_each_of_them_at_its_positions(
    js: JetStream, subjects: Subjects, client: RebaserClient, nats_url: str
) -> None:
    async with serving(js, subjects, Engine()):
        first, deleted, made, last = await make_anew(client)
    async with Logs.connect(options(nats_url, subjects)) as logs:

        async def read(at: int | None) -> tuple[dict[str, object], str, list[str]]:
            state, infos = await logs.state(KEY, at), await logs.change_sets([KEY], at)
            diff = await logs.changes(KEY, at)
            assert state is not None
            changed = [] if diff is None else [one.id for one in diff.changes]
            return {id_: value.value for id_, value in state.values().items()}, infos[0].status, changed

        assert await read(first) == ({"a": 2, "b": 1, "old": True}, "open", ["a", "old"])
        assert await read(deleted) == ({}, "deleted", [])
        assert await read(made) == ({"a": 1, "b": 1}, "open", [])
        assert await read(None) == await read(last) == ({"a": 1, "b": 3}, "open", ["b"])
        found = await logs.commits([KEY], first, last)
        assert [commit.sequence for _, commit in found] == [deleted, made, last]
        assert (await logs.change_sets(None))[0].born == made


async def test_a_stream_that_misses_the_deletion_fails_unless_it_may(
    js: JetStream, subjects: Subjects, client: RebaserClient, nats_url: str
) -> None:
    """The stream has returned values of a change set, and does not know that they are deleted."""
    async with serving(js, subjects, Engine()):
        first, _, made, last = await make_anew(client)
    await js.purge(subjects.commits_stream, subjects.commits(KEY), sequence=made)
    for lenient in (False, True):
        more = {"table": "commits", "changeSet": "fix", "failOnDataLoss": str(not lenient).lower()}
        reader = StreamReader(options(nats_url, subjects, **more), pa.schema([]))
        end = await to_thread.run_sync(reader.latestOffset, {"sequence": first}, None)
        await to_thread.run_sync(reader.stop)
        assert end == {"sequence": last}
        async with Logs.connect(options(nats_url, subjects, **more)) as logs:
            if lenient:
                assert [commit.sequence for _, commit in await logs.commits([KEY], first, last)] == [made, last]
                assert [commit.sequence for _, commit in await logs.commits([KEY], made, last)] == [last]
            else:
                with pytest.raises(TransientError, match="were purged"):
                    await logs.commits([KEY], first, last)

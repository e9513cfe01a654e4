"""Change sets are deleted, created anew and restored by real servers, with checkpoints and purges."""

from typing import Any

import anyio
import pytest

from rebaser.change_set.log import checkpointer
from rebaser.change_set.readers import origin_reader
from rebaser.doctor.examination import Stores, examine
from rebaser.doctor.history import Cost
from rebaser.runtime.request_deleter import RequestDeleter
from rebaser.sweeper.closed import ClosedChangeSets
from rebaser.sweeper.debts import DebtTracker
from rebaser.sweeper.old_history import OldHistory
from rebaser_client import Derive, RebaserClient, RequestRejected, Set, Update
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.log.reader import StateLoader
from rebaser_core.commit import BranchStatus, Kind, Marking
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.support.damage import DamagedLog
from tests.support.history import check_history, commit_of, commits_of
from tests.support.owners import DOUBLE, Engine, serving
from tests.support.workspace import edit, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


def stores_of(js: JetStream, subjects: Subjects) -> Stores:
    return Stores(js, subjects, open_blobs(None, js, subjects.blobs_bucket))


async def refused(client: RebaserClient, name: str, *updates: Update) -> str:
    with pytest.raises(RequestRejected) as caught:
        await edit(client, name, *updates)
    return caught.value.code


async def test_what_is_deleted_is_empty_until_it_is_brought_back(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine, checkpoint_bytes=1024):
        await edit(client, "main", Set("a", 1))
        await edit(client, "main", Derive("sum", "sum", {"values": "a"}))
        for number in range(20):
            await edit(client, "main", Set("text", "x" * 100 + str(number)))
        last = await edit(client, "main", Set("b", 2), request_id="once")
        await client.create_branch("ws", "fix", follow="manual")
        before = await stands(client, "main")
        deleted = commit_of(await client.delete_change_set("ws", "main"))
        assert await stands(client, "main") == {}
        assert await stands(client, "main", last) == before
        assert await refused(client, "main", Set("a", 3)) == "deleted"
        assert await refused(client, "main") == "deleted"
        with pytest.raises(RequestRejected, match="reopen it"):
            await client.delete_change_set("ws", "main")
        with pytest.raises(RequestRejected, match="deleted"):
            await client.apply("ws", "fix")
        assert await edit(client, "main", Set("b", 2), request_id="once") == last, "it was decided before"
        assert (await stands(client, "fix")).keys() == before.keys()
    async with serving(js, subjects, engine, checkpoint_bytes=1024):
        info = await client.branch("ws", "main")
        assert info is not None
        assert (info.status, info.sequence > deleted) == ("deleted", True)
        with pytest.raises(RequestRejected) as caught:
            await client.create_branch("ws", "other", "main", follow="manual")
        assert caught.value.code == "no_such_change_set"
        back = commit_of(await client.reopen_change_set("ws", "main"))
        assert await edit(client, "main", Set("b", 2), request_id="once") == last, "it was decided before"
        assert await stands(client, "main") == before
        assert await stands(client, "main", back - 1) == {}
        await client.enqueue_updates_with_reply("ws", "main", [Set("a", 5)], wait="derived")
        assert (await stands(client, "main"))["sum"] == 5
        await client.enqueue_updates_with_reply("ws", "fix", [Set("c", 5)], wait="derived")
        await client.apply("ws", "fix")
        assert (await stands(client, "main"))["c"] == 5
    check_history(await commits_of(client, "ws", "main"))
    found = await examine(stores_of(js, subjects), ChangeSetKey("ws", "main"))
    assert (found.findings, found.newer) == ([], "")


async def test_the_doctor_finds_that_what_was_brought_back_is_lost(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.delete_change_set("ws", "main")
        found = await examine(stores_of(js, subjects), ChangeSetKey("ws", "main"))
        assert found.findings == []
        await client.reopen_change_set("ws", "main")
        await edit(client, "main", Set("b", 1))
    state = await client.state("ws", "main")
    assert state.checkpoint is not None
    await DamagedLog(js, subjects, ChangeSetKey("ws", "main")).lose_blob(state.checkpoint.address)
    found = await examine(stores_of(js, subjects), ChangeSetKey("ws", "main"))
    assert [finding.cost for finding in found.findings] == [Cost.NOTHING, Cost.EDITS]
    assert (found.state.status is BranchStatus.OPEN, set(found.state.cells)) == (True, {"b"})


@pytest.mark.usefixtures("no_ack_wait")
async def test_a_new_change_set_takes_the_name_of_a_deleted_one(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine, checkpoint_bytes=1024):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        last = await edit(client, "fix", Set("a", 2), request_id="once")
        await client.delete_change_set("ws", "fix")
        made = await client.create_branch("ws", "fix", follow="manual")
        assert await stands(client, "fix") == {"a": 1}
        assert await edit(client, "fix", Set("a", 2), request_id="once") == last, "it was decided before"
        assert await stands(client, "fix", last) == {"a": 2}
        with pytest.raises(RequestRejected) as caught:
            await client.create_branch("ws", "old", "fix", at=last, follow="manual")
        assert caught.value.code == "purged"
        with pytest.raises(RequestRejected) as caught:
            await client.create_branch("ws", "fix", follow="manual")
        assert caught.value.code == "exists"
        for number in range(20):
            await edit(client, "fix", Set("text", "x" * 100 + str(number)))
        await client.delete_change_set("ws", "fix")
        await client.reopen_change_set("ws", "fix")
        assert (await stands(client, "fix")).keys() == {"a", "text"}
        info = await client.branch("ws", "fix")
        assert info is not None
        assert (info.origin_sequence, info.status) == (made.origin_sequence, "open")


async def test_what_is_deleted_is_brought_back_only_if_nothing_came_after_what_its_author_has_seen(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        last = await edit(client, "main", Set("a", 1))
        deleted = commit_of(await client.delete_change_set("ws", "main"))
        back = Marking(status=BranchStatus.OPEN)
        with pytest.raises(RequestRejected) as caught:
            await client.enqueue_updates_with_reply("ws", "main", (), action=back, expect_at=last)
        assert caught.value.code == "moved"
        assert await stands(client, "main") == {}
        newest = await client.branch("ws", "main")
        assert newest is not None
        assert newest.sequence > deleted
        await client.enqueue_updates_with_reply("ws", "main", (), action=back, expect_at=newest.sequence)
        assert await stands(client, "main") == {"a": 1}


async def test_no_change_set_becomes_its_own_target(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    """A branch survives its target, whose name is free then."""
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await client.delete_change_set("ws", "main")
        with pytest.raises(RequestRejected, match="cannot be its own target") as caught:
            await client.create_branch("ws", "main", "fix", target="main", follow="manual")
        assert caught.value.code == "self"
        await client.create_branch("ws", "main", "fix", follow="manual")
        assert await stands(client, "main") == {"a": 1}


@pytest.mark.usefixtures("no_ack_wait")
async def test_a_name_with_many_outcomes_is_free_when_they_are_forgotten(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds if no other request came: the request to create makes the owner forget outcomes."""
    monkeypatch.setattr(origin_reader, "MAX_CARRIED", 3)
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "nightly", follow="manual")
        for number in range(4):
            await edit(client, "nightly", Set("a", number), request_id=f"once-{number}")
        await client.delete_change_set("ws", "nightly")
        with pytest.raises(RequestRejected, match="retry once these outcomes are forgotten") as caught:
            await client.create_branch("ws", "nightly", follow="manual")
        assert caught.value.code == "exists"
    await anyio.sleep(
        2.1
    )  # the window, and outcomes are forgotten once a second; NATS's time of the next request counts
    async with serving(js, subjects, engine, retry_window=1):
        made = await client.create_branch("ws", "nightly", follow="manual")
        assert made.status == "open"
        assert await stands(client, "nightly") == {"a": 1}
        assert (await client.state("ws", "nightly")).recorded(RequestId("once-3")) is None


async def test_a_protected_change_set_is_not_deleted(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.protect("ws", "main")
        with pytest.raises(RequestRejected, match="end its protection"):
            await client.delete_change_set("ws", "main")
        await client.unprotect("ws", "main")
        await client.delete_change_set("ws", "main")
        assert await stands(client, "main") == {}


async def test_an_update_that_runs_does_not_keep_a_change_set_from_being_deleted(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    engine = Engine()
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1), Derive("sum", "sum", {"values": "a"}))
        with anyio.fail_after(60):
            await client.delete_change_set("ws", "main")
            await client.reopen_change_set("ws", "main")
            engine.go.set()
            await client.enqueue_updates_with_reply("ws", "main", [Set("a", 2)], wait="derived")
        assert await stands(client, "main") == {"a": 2, "sum": 2}


async def test_the_overview_shows_a_deleted_change_set_as_long_as_it_has_work(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine, quiescent_period=0.05):
        await edit(client, "main", Set("a", 1))
        await edit(client, "other", Set("a", 1))
        await client.delete_change_set("ws", "main")
        with anyio.fail_after(60):
            while [one.change_set for one in (await client.status("ws")).change_sets] != ["other"]:  # noqa: ASYNC110
                await anyio.sleep(0.05)  # nothing reports when the task is gone


@pytest.mark.usefixtures("no_ack_wait")
async def test_what_was_deleted_is_purged_when_its_history_is_over(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    """The sweeper purges it, and goes by the time of the newest commit of all logs."""
    async with serving(js, subjects, engine, checkpoint_bytes=1024):
        first = await edit(client, "main", Set("a", 1))
        for number in range(20):
            await edit(client, "main", Set("text", "x" * 100 + str(number)))
        deleted = commit_of(await client.delete_change_set("ws", "main"))
        await edit(client, "other", Set("a", 1))
    reader = StateLoader(js, subjects, stores_of(js, subjects).blobs)
    assert await OldHistory(js, subjects, reader, 1e9).purge() == 0
    assert set(await stands(client, "main", first)) == {"a"}
    assert await OldHistory(js, subjects, reader, 0.0).purge() > 20
    assert await stands(client, "main") == {}
    (tombstone,) = await commits_of(client, "ws", "main")
    assert tombstone.sequence == deleted
    async with serving(js, subjects, engine):
        with pytest.raises(RequestRejected) as caught:
            await client.reopen_change_set("ws", "main")
        assert caught.value.code == "purged"
        await client.create_branch("ws", "main", "other", follow="manual")
        await edit(client, "main", Set("b", 1))
        await edit(client, "other", Set("b", 1))
    assert await OldHistory(js, subjects, reader, 0.0).purge() > 1  # the tombstone, and the refusal
    assert (await commits_of(client, "ws", "main"))[0].kind is Kind.CREATE
    assert await stands(client, "main") == {"a": 1, "b": 1}
    assert (await examine(stores_of(js, subjects), ChangeSetKey("ws", "main"))).findings == []


async def test_what_is_closed_for_long_is_deleted_unless_it_is_reopened_or_protected(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    """The sweeper requests it, and goes by the time of the newest commit of all logs."""
    async with serving(js, subjects, engine):
        for name in ("main", "kept", "again", "fixed"):
            await edit(client, name, Set("a", 1))
        await client.create_branch("ws", "tag", closed=True)
        for name in ("main", "again", "fixed"):
            await client.close_change_set("ws", name)
        await client.protect("ws", "fixed")
        debts = DebtTracker(js, subjects)
        await debts.read()
        assert debts.closed.keys() == {"ws.main", "ws.again"}
        await client.reopen_change_set("ws", "again")  # between the sweeper's check and its request
        assert await ClosedChangeSets(js, subjects, 3600).delete(debts.closed, debts.newest_ns) == 0
        assert await ClosedChangeSets(js, subjects, 0).delete(debts.closed, debts.newest_ns) == 0
        closed = ClosedChangeSets(js, subjects, 1e-6)
        assert await closed.delete(debts.closed, debts.newest_ns + 10**9) == 2
        assert await closed.delete(debts.closed, debts.newest_ns + 10**9) == 0, "it was asked for before"
        with pytest.raises(RequestRejected, match="deleted"):
            await edit(client, "main", Set("a", 2))
        await edit(client, "again", Set("a", 2))
        found = {info.change_set: info.status for info in await client.branches("ws")}
        assert (found["main"], found["again"], found["tag"], found["fixed"]) == ("deleted", "open", "kept", "abandoned")
        await debts.read()
        assert debts.closed.keys() == set()


async def test_a_full_queue_keeps_no_other_change_set_from_being_deleted(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, full = JetStream.publish, [subjects.requests(ChangeSetKey("ws", "a"))]

    async def refusing(self: JetStream, subject: str, *args: Any, **named: Any) -> Any:
        if subject in full:
            raise ApiError(503, 10077, "maximum messages per subject exceeded")
        return await publish(self, subject, *args, **named)

    async with serving(js, subjects, engine):
        for name in "abc":
            await edit(client, name, Set("a", 1))
            await client.close_change_set("ws", name)
        debts = DebtTracker(js, subjects)
        await debts.read()
        monkeypatch.setattr(JetStream, "publish", refusing)
        closed = ClosedChangeSets(js, subjects, 1e-6)
        await closed.delete(debts.closed, debts.newest_ns + 10**9)
        for name in "bc":
            with pytest.raises(RequestRejected, match="deleted"):
                await edit(client, name, Set("a", 2))
        full.clear()
        await closed.delete(debts.closed, debts.newest_ns + 10**9)
        with pytest.raises(RequestRejected, match="deleted"):
            await edit(client, "a", Set("a", 2))


@pytest.mark.parametrize("job", ["update", "checkpoint"])
async def test_a_job_that_a_deletion_overtakes_does_not_hold_the_name(
    js: JetStream, subjects: Subjects, client: RebaserClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of the job is refused. The owner gives its task back at once, not only after the ack wait."""
    engine, writing, go, deleted = Engine(), anyio.Event(), anyio.Event(), anyio.Event()
    write, flush = checkpointer.write, RequestDeleter.flush

    async def held(*args: Any, **named: Any) -> Any:
        writing.set()
        await go.wait()
        return await write(*args, **named)

    async def slow(self: RequestDeleter) -> None:
        """Let the job continue once the deletion is stored, before the owner knows that it has to end."""
        if deleted.is_set():
            engine.go.set()
            go.set()
            await anyio.sleep(0.3)
        await flush(self)

    monkeypatch.setattr(checkpointer, "write", held if job == "checkpoint" else write)
    monkeypatch.setattr(RequestDeleter, "flush", slow)
    await ensure_topology(js, subjects, TopologyOptions(ack_wait=300))
    async with serving(js, subjects, engine, ack_wait=300, sweep_interval=300, checkpoint_bytes=1024):
        await edit(client, "main", Set("a", 1), *([DOUBLE] if job == "update" else [Set("b", "x" * 2000)]))
        await (engine.asked if job == "update" else writing).wait()
        deleted.set()
        await client.delete_change_set("ws", "main")
        with anyio.fail_after(60):
            await client.create_branch("ws", "main", None)
            await edit(client, "main", Set("a", 1))

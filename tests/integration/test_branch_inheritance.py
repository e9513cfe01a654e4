"""Tests what a branch inherits from its parent: values and their history, checkpoints, blobs, updates that are owed."""

import gc
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import pytest

from rebaser.doctor.examination import Stores, examine
from rebaser.doctor.repair import repair
from rebaser_client import Derive, RebaserClient, Remove, Set
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_client.log.reader import StateLoader
from rebaser_client.nats.errors import NotAllowed
from rebaser_core.branches.branch import differing
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import decode_addresses, read_blobs
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.history import check_history, commits_of
from tests.support.owners import Engine, serving
from tests.support.workspace import edit, refusal, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


WAYS = {
    "usual": Thresholds(),
    "blob": Thresholds(inline_tail_max_bytes=0),
    "checkpoint": Thresholds(inline_tail_max_bytes=0, tail_max_bytes=0),
    "few deltas": Thresholds(max_deltas=1, delta_changes_divisor=1),
}


@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
async def test_a_branch_begins_as_its_parent_and_goes_its_own_way(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, limits: Thresholds
) -> None:
    with forced(limits):
        async with serving(js, subjects, engine):
            await edit(client, "main", Set("a", 1), Set("b", 2))
            first = await edit(client, "main", Set("c", 3))
            made = await client.create_branch("ws", "fix", author="ann", message="try it", follow="manual")
            assert (made.origin, made.origin_sequence, made.target, made.base) == ("main", first, "main", first)
            assert [one.behind for one in await client.branches("ws")] == [False, False]
            await edit(client, "main", Set("a", 10))
            await edit(client, "fix", Set("b", 20), Remove("c"), Set("d", 4))
            assert await stands(client, "main") == {"a": 10, "b": 2, "c": 3}
            assert await stands(client, "fix") == {"a": 1, "b": 20, "d": 4}
            assert await stands(client, "fix", made.sequence) == {"a": 1, "b": 2, "c": 3}
            again = await client.create_branch("ws", "deep", "fix", target="main", follow="manual")
            assert (again.origin, again.target, again.base, again.changes) == ("fix", "main", first, 3)
            child = await client.create_branch("ws", "child", "fix", follow="manual")
            assert (child.target, child.changes) == ("fix", 0)
            await edit(client, "deep", Set("b", 2))
            assert await stands(client, "deep") == {"a": 1, "b": 2, "d": 4}
            found = await client.changes("ws", "deep")
            assert {one.id for one in found.changes} == {"c", "d"}
            found = await client.changes("ws", "fix")
            assert [(one.id, one.base, one.ours, one.theirs, one.moved) for one in found.changes] == [
                ("b", Set("b", 2), Set("b", 20), Set("b", 2), False),
                ("c", Set("c", 3), None, Set("c", 3), False),
                ("d", None, Set("d", 4), None, False),
            ]
            assert (await client.changes("ws", "child")).changes == ()
            check_history(await commits_of(client, "ws", "fix"))
            shown = {one.change_set: one for one in await client.branches("ws")}
            assert list(shown) == ["child", "deep", "fix", "main"]
            assert (shown["fix"].changes, shown["fix"].behind, shown["main"].target) == (3, True, None)
            assert shown["deep"].changes == 3


@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
async def test_checkpoints_of_parent_and_child_form_one_chain(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, limits: Thresholds
) -> None:
    with forced(limits):
        async with serving(js, subjects, engine, checkpoint_bytes=1024, history_for=0.001):
            books: dict[str, dict[str, object]] = {"main": {}}
            bases: dict[str, dict[str, object]] = {}  # the values of the target at the base
            name = "main"
            for number in range(40):
                if number % 9 == 8:
                    books[f"b{number}"] = dict(books[name])
                    target = {17: "main", 35: "b17"}.get(number)
                    bases[f"b{number}"] = dict(books[name]) if target is None else bases[name]
                    await client.create_branch("ws", f"b{number}", name, target=target, follow="manual")
                    name = f"b{number}"
                id_ = f"id{number % 7}"
                books[name][id_] = number
                await edit(client, name, Set(id_, number))
                if number % 4 == 3:
                    await edit(client, "main", Set("m", number))
                    books["main"]["m"] = number
        for name, book in books.items():
            assert await stands(client, name) == book
        for name in list(books)[1:]:
            state = await client.state("ws", name)
            assert state.branch is not None
            patch = {one.id: one.base for one in differing(state.branch.changes.items(), state.cells.edit_of)}
            changes = (await client.changes("ws", name)).changes
            assert {one.id: one.base for one in changes} == patch
            undone = books[name] | {one.id: one.base.value for one in changes if isinstance(one.base, Set)}
            added = {one.id for one in changes if one.base is None}
            assert {id_: value for id_, value in undone.items() if id_ not in added} == bases[name]


async def test_inherited_debt_is_worked_off_when_the_branch_is_used(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    slow = Engine()
    async with serving(js, subjects, slow):
        await edit(client, "main", Set("a", 1), Derive("b", "sum", {"of": ["a", "a"]}))
        await client.create_branch("ws", "fix", follow="manual")
        (overview,) = [one for one in (await client.status("ws")).change_sets if one.change_set == "fix"]
        assert not overview.debt
        slow.go.set()
        await client.create_branch("ws", "other", wait="derived", follow="manual")
        assert await stands(client, "other") == {"a": 1, "b": 2}
        await client.enqueue_updates_with_reply("ws", "fix", [Set("c", 3)], wait="derived")
        assert await stands(client, "fix") == {"a": 1, "b": 2, "c": 3}


async def test_waiting_for_derived_values_has_a_branch_computed_that_nobody_used(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    slow = Engine()
    async with serving(js, subjects, slow):
        await edit(client, "main", Set("a", 1), Derive("b", "sum", {"of": ["a", "a"]}))
        made = await client.create_branch("ws", "fix", follow="manual")
        slow.go.set()
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(client.wait_covered, "ws", "fix", made.sequence)
        assert await stands(client, "fix") == {"a": 1, "b": 2}
        requests = [entry async for entry in client.log("ws", "fix") if entry.kind == "rebase"]
        assert len(requests) == 1
        with pytest.raises(TimeoutError, match="derived values of ws/fix are not up to date as of commit"):
            await client.wait_covered("ws", "fix", 10**9, timeout=0.05)


async def test_a_client_that_may_not_send_waits_until_somebody_else_uses_the_branch(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = anyio.Event()

    async def denied(*_: object) -> None:
        asked.set()
        raise NotAllowed("publish", "rebaser.requests.ws.fix")

    slow = Engine()
    async with serving(js, subjects, slow):
        await edit(client, "main", Set("a", 1), Derive("b", "sum", {"of": ["a", "a"]}))
        made = await client.create_branch("ws", "fix", follow="manual")
        slow.go.set()
        monkeypatch.setattr(client, "enqueue_updates", denied)
        async with anyio.create_task_group() as group:
            group.start_soon(client.wait_covered, "ws", "fix", made.sequence)
            await asked.wait()
            await edit(client, "fix", Set("c", 3))
        assert await stands(client, "fix") == {"a": 1, "b": 2, "c": 3}


async def test_before_a_branch_was_created_its_state_is_that_of_its_parent(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        begin = datetime.now(UTC)
        first = await edit(client, "main", Set("a", 1))
        one = datetime.now(UTC)
        second = await edit(client, "main", Set("a", 2))
        two = datetime.now(UTC)
        third = await edit(client, "main", Set("a", 3))
        three = datetime.now(UTC)
        await refused_once(client)
        await client.create_branch("ws", "fix", at=second, follow="manual")
        deep = await client.create_branch("ws", "deep", "fix", follow="manual")
        await edit(client, "deep", Set("b", 1))
    for name in ("fix", "deep"):
        assert await stands(client, name, begin) == await stands(client, name, 0) == {}
        assert await stands(client, name, one) == await stands(client, name, first) == {"a": 1}
        assert await stands(client, name, two) == await stands(client, name, second) == {"a": 2}
        # Not the value of main.
        assert await stands(client, name, three) == await stands(client, name, third) == {"a": 2}
    assert await stands(client, "deep", deep.sequence) == {"a": 2}
    compared = await client.diff("ws", "deep", "deep", at=first)
    assert [(one.id, one.before, one.after) for one in compared.changes] == [
        ("a", Set("a", 1), Set("a", 2)),
        ("b", None, Set("b", 1)),
    ]


async def test_blame_finds_who_defined_an_inherited_value(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await client.enqueue_updates_with_reply("ws", "main", [Set("a", 1), Set("b", 1)], author="ann")
        await client.create_branch("ws", "fix", follow="manual")
        await client.create_branch("ws", "deep", "fix", follow="manual")
        await client.enqueue_updates_with_reply("ws", "deep", [Set("b", 2)], author="ben")
    found = await client.blame("ws", "deep", "a", "b")
    assert {id_: one.request and one.request[1].author for id_, one in found.items()} == {"a": "ann", "b": "ben"}
    assert [entry.kind for entry in [one async for one in client.log("ws", "fix")]] == ["create"]
    shown = await client.show("ws", "fix")
    assert shown.requests[0].changes == ()
    compared = await client.diff("ws", "main", "deep")
    assert [(one.id, one.before, one.after) for one in compared.changes] == [("b", Set("b", 1), Set("b", 2))]


@pytest.mark.parametrize("checkpoints", [False, True])
async def test_the_doctor_examines_a_branch_and_repairs_it(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, checkpoints: bool
) -> None:
    small = {"checkpoint_bytes": 1024, "history_for": 0.001} if checkpoints else {}
    with forced(Thresholds(inline_tail_max_bytes=0)):
        async with serving(js, subjects, engine, **small):
            await edit(client, "main", Set("a", 1))
            await refused_once(client)
            made = await client.create_branch("ws", "fix", follow="manual")
            for number in range(5):
                await edit(client, "fix", Set("b", number))
    stores = Stores(js, subjects, open_blobs(None, js, subjects.blobs_bucket))
    found = await examine(stores, ChangeSetKey("ws", "fix"))
    assert not found.damaged
    assert {id_: value.value for id_, value in found.state.values().items()} == {"a": 1, "b": 4}
    await js.delete_message(subjects.commits_stream, made.sequence + 1)
    found = await examine(stores, ChangeSetKey("ws", "fix"))
    if not found.damaged:  # the log was purged before
        return
    await repair(stores, found, "doctor")
    assert await stands(client, "fix") == {"a": 1, "b": 4}
    state = await client.state("ws", "fix")
    assert state.branch is not None
    assert state.branch.target == "main"


async def test_the_checkpoint_of_the_parent_is_no_damage_of_a_branch(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine, checkpoint_bytes=1024):
        for number in range(6):
            await edit(client, "main", Set("a", f"{number}" * 300))
        made = await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("b", 1))
    stores = Stores(js, subjects, open_blobs(None, js, subjects.blobs_bucket))
    found = await examine(stores, ChangeSetKey("ws", "fix"))
    checkpoint = found.state.checkpoint
    assert checkpoint is not None
    assert checkpoint.sequence < made.sequence
    assert not found.damaged


async def refused_once(client: RebaserClient) -> None:
    assert await refusal(client.create_branch("ws", "fix", "nobody", follow="manual")) == "no_such_change_set"


async def test_states_with_the_same_checkpoint_base_share_their_ids_as_long_as_one_of_them_lives(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    reader = StateLoader(js, subjects, open_blobs(None, js, subjects.blobs_bucket), share_ids=True)
    main, branches = ChangeSetKey("ws", "main"), ("fix", "twin")
    async with serving(js, subjects, engine, checkpoint_bytes=1024):
        number, commit = 0, None
        while commit is None or commit.checkpoint is None:
            number += 1
            await edit(client, "main", *(Set(f"id{one}", number) for one in range(50)))
            commit = await reader.last(main)
        for name in branches:
            await client.create_branch("ws", name, at=commit.sequence, follow="manual")
    fix, twin = [await reader.load(ChangeSetKey("ws", name)) for name in branches]
    assert len(twin.state.cells) == 50
    assert all(
        one is other for one, other in zip(fix.state.cells.columns.ids, twin.state.cells.columns.ids, strict=True)
    )
    assert reader._by_base
    del fix, twin
    gc.collect()
    assert not reader._by_base


@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
async def test_every_blob_that_a_log_needs_is_named_in_its_headers(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, limits: Thresholds
) -> None:
    """With only the named blobs, every change set can be loaded with its history and its changes."""
    with forced(replace(limits, inline_max_updates=2)):
        async with serving(js, subjects, engine, checkpoint_bytes=1024, history_for=0.001):
            for number in range(12):
                await edit(client, "main", *(Set(f"id{one}", number) for one in range(5)))
            await client.create_branch("ws", "fix", follow="manual")
            await client.create_branch("ws", "deep", "fix", follow="manual")
            for number in range(8):
                await edit(client, "deep", *(Set(f"id{one}", -number) for one in range(3)))
            await client.create_branch("ws", "twin", "deep", target="fix", follow="manual")
    blobs = open_blobs(None, js, subjects.blobs_bucket)
    asked: set[str] = set()

    class Noting:
        async def get(self, address: str, *, max_bytes: int) -> bytes:
            asked.add(address)
            return await blobs.get(address, max_bytes=max_bytes)

    reader = StateLoader(js, subjects, Noting())  # type: ignore[arg-type] # it is only read
    for name in ("main", "fix", "deep", "twin"):
        asked.clear()
        await reader.load(ChangeSetKey("ws", name))
        async for commit in reader.back(ChangeSetKey("ws", name)):
            await reader.with_before(await reader.with_delta(commit))
        named: set[str] = set()
        async for entry in client.entries("commits", "ws", name):
            for address in read_blobs(entry.headers):
                if address.startswith("@"):
                    named |= {address[1:], *decode_addresses(await blobs.get(address[1:], max_bytes=10**6))}
                named.add(address)
        assert asked
        assert asked <= named

"""Change sets created from a parent with many commits after its checkpoint: its state is loaded once, not for each."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from rebaser.change_set.readers.origin_reader import read_fork
from rebaser.server import Server
from rebaser_client import RebaserClient, Remove, Set
from rebaser_client.jetstream import JetStream
from rebaser_client.log.positions import At
from rebaser_client.log.reader import LoadedState
from rebaser_core.branches.branch import Create
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.damage import DamagedLog
from tests.support.owners import Engine, serving
from tests.support.workspace import edit, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

SMALL = Thresholds(tail_max_bytes=2000, inline_tail_max_bytes=100)


def counted(server: Server, monkeypatch: pytest.MonkeyPatch, name: str = "main") -> list[int]:
    """Return the positions at which the server loads a change set."""
    loads: list[int] = []
    reader = server._context.reader
    load: Callable[[ChangeSetKey, At | None], Awaitable[LoadedState]] = reader.load

    async def counting(key: ChangeSetKey, at: At | None = None) -> LoadedState:
        if key.change_set == name and isinstance(at, int):
            loads.append(at)
        return await load(key, at)

    monkeypatch.setattr(reader, "load", counting)
    return loads


async def fill(client: RebaserClient, name: str = "main") -> None:
    for number in range(10):
        await edit(client, name, Set(f"v{number}", "x" * 300), Set("n", number))


async def test_a_parent_is_loaded_once_for_many_change_sets(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forced(SMALL):
        async with serving(js, subjects, engine) as server:
            loads = counted(server, monkeypatch)
            await fill(client)
            async with anyio.create_task_group() as group:
                for number in range(5):
                    group.start_soon(client.create_branch, "ws", f"same{number}")
            assert len(loads) == 1
            whole = await stands(client, "main")
            await edit(client, "main", Set("n", "later"), Remove("v3"))
            later = await stands(client, "main")
            made = await client.create_branch("ws", "later", follow="manual")
            await edit(client, "main", Set("n", "much later"))
            await edit(client, "later", Set("v1", "own"))
            assert len(loads) == 1, "what main did since is copied"
            for number in range(5):
                assert await stands(client, f"same{number}") == whole
            assert await stands(client, "later") == later | {"v1": "own"}
            assert await stands(client, "later", made.sequence) == later
            changes = (await client.changes("ws", "later")).changes
            assert [one.id for one in changes] == ["v1"]
            await fill(client)
            await client.create_branch("ws", "again")
            assert len(loads) == 2, "that is too large to be copied by now"
            assert await stands(client, "again") == await stands(client, "main")
    fresh = await client.state("ws", "later")
    assert isinstance(fresh, ChangeSetState)
    assert fresh.cells.edited("v4") < made.sequence


async def test_a_checkpoint_that_is_lost_is_made_again(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forced(SMALL):
        async with serving(js, subjects, engine) as server:
            loads = counted(server, monkeypatch)
            await fill(client)
            await client.create_branch("ws", "one")
            commit = await client._reader.last(ChangeSetKey("ws", "one"))
            assert commit is not None
            assert commit.checkpoint is not None
            await DamagedLog(js, subjects, ChangeSetKey("ws", "one")).lose_blob(commit.checkpoint.address)
            await client.create_branch("ws", "two")
            assert len(loads) == 2
            assert await stands(client, "two") == await stands(client, "one") == await stands(client, "main")


async def test_a_parent_that_is_another_by_now_is_loaded(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forced(SMALL):
        async with serving(js, subjects, engine) as server:
            loads = counted(server, monkeypatch)
            await fill(client)
            first = await client.create_branch("ws", "one")
            await client.delete_change_set("ws", "main")
            await client.create_branch("ws", "main", None)
            await fill(client)
            await edit(client, "main", Set("new", True), Remove("v1"))
            await client.create_branch("ws", "two")
            assert await stands(client, "two") == await stands(client, "main")
            assert set(await stands(client, "one")) - set(await stands(client, "two")) == {"v1"}
            assert len(loads) == 2
            await edit(client, "one", Set("n", 1))
            asked = Create("one", first.sequence)
            key = ChangeSetKey("ws", "three")
            fork = await read_fork(server._context, key, asked, ChangeSetState(), 100, stored_ms=0)
            assert fork.origin is not None
            assert fork.origin.sequence == first.sequence, "a position is never that of a kept checkpoint"


async def test_a_parent_that_was_created_again_and_is_small_by_now_is_copied(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    """The checkpoint that was made of the earlier change set is not used, although the log still has all commits
    since."""
    with forced(SMALL):
        async with serving(js, subjects, engine):
            await fill(client)
            await client.create_branch("ws", "one")
            await client.delete_change_set("ws", "main")
            await client.create_branch("ws", "main", None)
            await edit(client, "main", Set("new", True))
            with anyio.fail_after(60):
                await client.create_branch("ws", "two")
            assert await stands(client, "two") == {"new": True}


async def test_a_branch_of_a_branch_takes_its_replays_along(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forced(SMALL):
        async with serving(js, subjects, engine) as server:
            loads = counted(server, monkeypatch, "fix")
            await edit(client, "main", Set("a", 1), Set("b", 1))
            await client.create_branch("ws", "fix", follow="manual")
            await fill(client, "fix")
            for target in ("fix", "main"):
                await client.create_branch("ws", f"early-{target}", "fix", target=target, follow="manual")
            await edit(client, "fix", Set("a", 2))
            await edit(client, "main", Set("a", 3), Set("b", 3))
            await client.rebase("ws", "fix")
            for target in ("fix", "main"):
                made = await client.create_branch("ws", f"late-{target}", "fix", target=target, follow="manual")
                assert await stands(client, made.change_set) == await stands(client, "fix")
                state = await client.state("ws", made.change_set)
                assert state.branch is not None
                assert list(state.branch.conflicts) == ([] if target == "fix" else ["a"])
                assert made.changes == len(state.branch.changes)
            assert len(loads) == 2, "one with the changes of the branch, and one without"

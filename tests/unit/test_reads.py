"""Every read of a client uses the requested position, and shows which values are stale."""

from collections.abc import AsyncGenerator, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser_client.operations.reads import ReadOperations
from rebaser_core.commit import BlobRef, Commit, Computed, Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Set

pytestmark = pytest.mark.anyio

COMMITS = (
    Commit("c1", 0, Kind.REBASE, 0, "o", None, 0, delta=(Set("a", 1), Derive("d", "sum", {"x": "a"}))),
    Commit("c2", 1, Kind.DVU, 0, "o", None, None, delta=(Computed("d", 1),)),
    Commit("c3", 2, Kind.REBASE, 0, "o", None, 2, delta=(Set("a", 2),)),
)


class Log:
    """A log in memory. The deltas of its commits are loaded only when they are needed."""

    async def load(self, _: object, at: int | None = None) -> Any:
        state = ChangeSetState()
        for sequence, commit in enumerate(COMMITS, 1):
            if at is None or sequence <= at:
                state.fold(sequence, commit)
        return SimpleNamespace(state=state)

    async def load_values(self, key: object, ids: Collection[str], at: int | None = None) -> Any:
        assert set(ids) <= {"a", "d"}
        return (await self.load(key, at)).state

    async def newest_message(self, _: object) -> Any:
        return SimpleNamespace(sequence=len(COMMITS))

    async def follow(self, _: object, after: int) -> AsyncGenerator[Commit, None]:
        for sequence, commit in enumerate((*COMMITS, replace(COMMITS[2], previous=3)), 1):
            if sequence > after:
                yield replace(commit, delta=(), delta_blob=BlobRef(f"{sequence}", 1), sequence=sequence)

    async def with_delta(self, commit: Commit) -> Commit:
        assert commit.delta_blob is not None
        return replace(commit, delta=(Set("loaded", commit.sequence),), delta_blob=None)


@pytest.fixture
def reads() -> ReadOperations:
    made = object.__new__(ReadOperations)
    made._loader = made._reader = cast("Any", Log())
    return made


@pytest.mark.parametrize(("at", "found"), [(None, (2, 1, "stale")), (3, (2, 1, "stale")), (2, (1, 1, "ok"))])
async def test_what_is_read_is_that_of_the_position(
    reads: ReadOperations, at: int | None, found: tuple[object, ...]
) -> None:
    def told(a: Any, d: Any) -> tuple[object, ...]:
        return a.value, d.value, str(d.state)

    one, other = [await reads.value("ws", "cs", id_, at=at) for id_ in "ad"]
    assert told(one, other) == found
    values = await reads.values("ws", "cs", at=at)
    assert told(values["a"], values["d"]) == found
    items = await reads.items("ws", "cs", at=at)
    assert [item.id for item in items] == ["a", "d"]
    assert told(*[item.value for item in items]) == found
    assert (await reads.state("ws", "cs", at=at)).last == (at or len(COMMITS))


async def test_a_page_begins_behind_the_last_one(reads: ReadOperations) -> None:
    assert [item.id for item in await reads.items("ws", "cs", limit=1)] == ["a"]
    assert [item.id for item in await reads.items("ws", "cs", after="a", limit=1)] == ["d"]
    assert await reads.items("ws", "cs", after="d", limit=1) == []


async def test_a_watcher_gets_deltas_from_now_on_or_after_a_position(reads: ReadOperations) -> None:
    async def watched(after: int | None) -> list[tuple[Any, ...]]:
        return [tuple(commit.delta) async for commit in reads.watch("ws", "cs", after=after)]

    assert await watched(None) == [(Set("loaded", 4),)]
    assert await watched(2) == [(Set("loaded", 3),), (Set("loaded", 4),)]

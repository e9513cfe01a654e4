"""Change sets, changes of a branch and differences are read in pages, and are the same as if read at once."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from rebaser_client import BranchDiff, Derive, Diff, RebaserClient, Remove, Set, UnprocessableError
from rebaser_client.jetstream import JetStream
from rebaser_client.log.branches import BranchReader
from rebaser_client.log.changes import LogHistory
from rebaser_client.log.heads import HeadReader
from rebaser_core.streams.subjects import Subjects
from tests.support.owners import Engine, serving
from tests.support.workspace import edit

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


def counted(monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> list[str]:
    """Return a list that gets an item for each call of the method."""
    calls: list[str] = []
    method: Any = getattr(of, name)

    def call(*given: Any, **named: Any) -> Any:
        calls.append(name)
        return method(*given, **named)

    monkeypatch.setattr(of, name, call)
    return calls


def ids_of(page: BranchDiff | Diff) -> list[str]:
    return sorted([*(one.id for one in page.changes), *(id_ for id_, _, _ in page.derived)])


async def pages(read: Callable[[str], Awaitable[BranchDiff | Diff]]) -> Sequence[list[str]]:
    found: list[list[str]] = []
    while ids := ids_of(await read(found[-1][-1] if found else "")):
        found.append(ids)
    return found


async def test_change_sets_are_listed_in_pages_that_show_them_as_they_are_now(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        for name in "edbca":
            await client.create_branch("ws", name, follow="manual")
        await client.create_branch("ws", "z", "a", follow="manual")
        await client.enqueue_updates_with_reply("other", "main", [Set("a", 1)])
        whole = await client.branches("ws")
        assert [one.change_set for one in whole] == ["a", "b", "c", "d", "e", "main", "z"]
        first = await client.branches("ws", limit=3)
        assert first == whole[:3]
        starts = counted(monkeypatch, HeadReader, "__init__")
        await edit(client, "main", Set("a", 2))
        await client.create_branch("ws", "new", follow="manual")
        second = await client.branches("ws", after="c", limit=3)
        assert [(one.change_set, one.behind) for one in second] == [("d", True), ("e", True), ("main", False)]
        third = await client.branches("ws", after="main", limit=3)
        assert [one.change_set for one in third] == ["new", "z"]
        assert starts == [], "later pages read only what is new"
        assert await client.branches("ws", after="z", limit=3) == []
        assert await client.branches("ws", after="main") == third
        assert [one.change_set for one in await client.branches("other", after="a", limit=3)] == ["main"]
        assert await client.branches("none", limit=3) == []
    for options in ({"limit": 3}, {"after": "a"}):
        with pytest.raises(UnprocessableError, match="require a workspace"):
            await client.branches(**options)


async def test_the_changes_of_a_branch_are_read_once_for_all_pages(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.go.set()
    async with serving(js, subjects, engine):
        derived = [Derive(f"d{number}", "sum", {"of": f"v{number}"}) for number in range(6)]
        await edit(client, "main", *(Set(f"v{number}", 0) for number in range(6)), *derived, wait="derived")
        await client.create_branch("ws", "fix", follow="manual")
        edits = [Set(f"v{number}", 1) for number in range(5)]
        await edit(client, "fix", *edits, Remove("v5"), Set("e", 1), wait="derived")
        await edit(client, "main", Set("v3", 7))
        whole = await client.changes("ws", "fix")
        with_derived = await client.changes("ws", "fix", derived=True)
        assert ids_of(whole) == ["e", *(f"v{number}" for number in range(6))]
        assert ids_of(with_derived) == ["d0", "d1", "d2", "d3", "d4", "d5", *ids_of(whole)]
        reads = counted(monkeypatch, BranchReader, "diff")
        found = await pages(lambda after: client.changes("ws", "fix", after=after, limit=3))
        assert found == [["e", "v0", "v1"], ["v2", "v3", "v4"], ["v5"]]
        assert len(reads) == 1
        found = await pages(lambda after: client.changes("ws", "fix", derived=True, after=after, limit=4))
        assert found == [["d0", "d1", "d2", "d3"], ["d4", "d5", "e", "v0"], ["v1", "v2", "v3", "v4"], ["v5"]]
        assert len(reads) == 2
        page = await client.changes("ws", "fix", after="v2", limit=1)
        assert (page.changes, page.info, page.target_sequence) == (
            whole.changes[4:5],
            whole.info,
            whole.target_sequence,
        )
        await client.changes("ws", "fix", limit=3)
        await edit(client, "main", Set("v4", 8))
        page = await client.changes("ws", "fix", after="v3", limit=3)
        assert page.target_sequence == whole.target_sequence, "all pages are compared with the same position"
        assert [(one.id, one.moved) for one in page.changes] == [("v4", False), ("v5", False)]
        await edit(client, "fix", Set("v6", 1), wait="derived")
        page = await client.changes("ws", "fix", after="v3", limit=3)
        assert [(one.id, one.moved) for one in page.changes] == [("v4", True), ("v5", False), ("v6", False)]
    for call in (
        client.changes("ws", "fix", limit=0),
        client.conflicts("ws", "fix", limit=0),
        client.branches("ws", limit=0),
        client.value_history("ws", "fix", "v1", limit=0),
        client.queue("ws", "fix", limit=0),
        client.items("ws", "fix", limit=0),
    ):
        with pytest.raises(UnprocessableError, match="limit must be at least 1, not 0"):
            await call


async def test_a_difference_is_read_once_for_all_pages(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.go.set()
    async with serving(js, subjects, engine):
        total = Derive("total", "sum", {"of": ["a", "b"]})
        first = await edit(client, "main", Set("a", 1), Set("b", 1), Set("gone", 1), total, wait="derived")
        await edit(client, "main", Set("a", 2), Remove("gone"), Set("z", 1), wait="derived")
        whole = await client.diff("ws", "main", at=first)
        reads = counted(monkeypatch, LogHistory, "diff")
        found = await pages(lambda after: client.diff("ws", "main", at=first, after=after, limit=2))
        assert found == [["a", "gone"], ["z"]]
        assert len(reads) == 1
        assert (await client.diff("ws", "main", at=first, after="a")).changes == whole.changes[1:]
        found = await pages(lambda after: client.diff("ws", "main", at=first, derived=True, after=after, limit=3))
        assert found == [["a", "gone", "total"], ["z"]]
        assert (await client.diff("ws", "main", at=first, after="a", limit=1)).changes == whole.changes[1:2]
        await client.diff("ws", "main", at=first, limit=1)
        await edit(client, "main", Set("y", 1))
        assert ids_of(await client.diff("ws", "main", at=first, after="gone", limit=5)) == ["y", "z"]
        found = await pages(lambda after: client.diff("ws", "main", "other", after=after, limit=3))
        assert found == [["a", "b", "total"], ["y", "z"]]
        await client.create_branch("ws", "fix", follow="manual")
        before = len(reads)
        found = await pages(lambda after: client.diff("ws", "fix", at=first, after=after, limit=2))
        assert found == [["a", "gone"], ["y", "z"]]
        assert len(reads) == before + 1, "at that position, the state is in the log of the parent"

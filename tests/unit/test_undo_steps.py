"""Tests which requests an undo and a redo find in a branch that also reverts commits of its target."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from rebaser_client.log.changes import LogEntry
from rebaser_client.log.undo import find_redo, find_undo
from rebaser_core.commit import Authorship, Commit, Decision, Kind, Outcome, Reverts
from rebaser_core.ids import RequestId

pytestmark = pytest.mark.anyio


def commit(sequence: int, author: str = "ann", reverts: Reverts | None = None) -> Commit:
    decision = Decision(sequence, RequestId(f"r{sequence}"), Outcome.SUCCESS, 1)
    made = Commit("c", sequence - 1, Kind.REBASE, 0, "o", None, None, requests=(decision,), reverts=reverts)
    return replace(made, sequence=sequence, authors=(Authorship(author, ""),))


class Log:
    def __init__(self, *commits: Commit) -> None:
        self.commits = {one.sequence: one for one in commits}

    async def entries(self) -> AsyncGenerator[LogEntry, None]:
        for sequence in sorted(self.commits, reverse=True):
            yield LogEntry.of(self.commits[sequence])

    async def commit_at(self, sequence: int) -> Commit | None:
        return self.commits[max([one for one in self.commits if one <= sequence], default=0)]

    async def undo(self) -> int | None:
        step = await find_undo(self.entries(), "ann")
        return None if step is None else step.entry.sequence

    async def redo(self) -> int | None:
        step = await find_redo(self.entries(), "ann", self.commit_at)
        return None if step is None else step.entry.sequence


async def test_a_revert_of_commits_of_the_target_reverts_none_of_here() -> None:
    """All logs share one sequence, so a range of the target's commits spans commits of the branch."""
    assert await Log(commit(5), commit(9, "bob", Reverts(3, 8, None, "main"))).undo() == 5
    assert await Log(commit(5), commit(9, "bob", Reverts(3, 8))).undo() is None
    assert await Log(commit(5), commit(9, "bob", Reverts(5, 5, RequestId("r5"), "main"))).undo() == 5


async def test_a_revert_of_a_request_of_the_target_is_no_undo() -> None:
    """A redo would revert it as if it were an undo."""
    assert await Log(commit(5), commit(9, "ann", Reverts(5, 5, RequestId("r5")))).redo() == 9
    assert await Log(commit(5, "bob"), commit(9, "ann", Reverts(7, 7, RequestId("r7"), "main"))).redo() is None
    log = Log(
        commit(5), commit(7, "ann", Reverts(5, 5, RequestId("r5"))), commit(9, "ann", Reverts(6, 8, None, "main"))
    )
    assert await log.redo() == 7


async def test_an_undo_that_was_reverted_is_not_redone_a_second_time() -> None:
    undone = commit(7, "ann", Reverts(5, 5, RequestId("r5")))
    redone = commit(9, "ann", Reverts(7, 7, RequestId("r7")))
    assert await Log(commit(5), undone).redo() == 7
    assert await Log(commit(5), undone, redone).redo() is None
    assert await Log(commit(5), undone, redone).undo() == 5

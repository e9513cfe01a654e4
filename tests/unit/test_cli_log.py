"""The commits of applied branches below the commits that applied them, in `rebaser log --source`."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from rebaser.cli.commands.history.log import _Query, _Row
from rebaser_client.log.branches import BranchInfo
from rebaser_client.log.changes import LogEntry
from rebaser_client.nats.errors import NotAllowed
from rebaser_core.commit import Commit, Decision, Kind, Outcome, Source
from rebaser_core.errors import RebaserError, TransientError
from rebaser_core.ids import ChangeSetKey, RequestId

pytestmark = pytest.mark.anyio


def entry(sequence: int, source: Source | None = None) -> LogEntry:
    decided = (Decision(sequence, RequestId(f"r{sequence}"), Outcome.SUCCESS, 1),)
    return LogEntry.of(Commit("c", 0, Kind.REBASE, 0, "o", None, None, decided, sequence=sequence, source=source))


class Branches:
    """Branches in memory, instead of a client: the sequences of their commits, the newest first. The log of a branch in
    `failing` fails after its newest commit."""

    def __init__(self, failing: dict[str, RebaserError], **logs: list[int]) -> None:
        self.failing, self.logs = failing, logs

    async def branch(self, workspace: str, name: str, *, at: int) -> BranchInfo:
        return BranchInfo(workspace, name, at, datetime(2026, 1, 1, tzinfo=UTC))

    async def log(self, _: str, name: str, __: str | None, *, at: int) -> AsyncGenerator[LogEntry, None]:
        for sequence in self.logs[name]:
            if sequence <= at:
                yield entry(sequence)
                if name in self.failing:
                    raise self.failing[name]


async def rows(branches: Branches, *applied: tuple[int, Source]) -> list[tuple[int, list[int], str]]:
    """Return, for each commit that applied a branch, the commits below it, and why there are no more."""
    query = _Query(ChangeSetKey("ws", "main"), None, None, None, all_=False, source=True)
    query.rows = [_Row(entry(sequence, source)) for sequence, source in applied]
    await query._add_sources(cast("Any", branches), query.rows)
    return [(row.entry.sequence, [each.entry.sequence for each in row.below], row.lost) for row in query.rows]


async def test_each_commit_has_those_since_the_branch_was_applied_before() -> None:
    found = await rows(
        Branches({}, fix=[25, 22, 15, 12], other=[18, 11]),
        *((30, Source("fix", 25)), (21, Source("other", 18)), (20, Source("fix", 15))),
    )
    assert found == [(30, [25, 22], ""), (21, [18, 11], ""), (20, [15, 12], "")]


@pytest.mark.parametrize(
    "error", [TransientError("commit 12 is damaged", code="damaged_commit"), NotAllowed("subscribe", "commits")]
)
async def test_a_branch_that_cannot_be_read_hides_no_other(error: RebaserError) -> None:
    found = await rows(
        Branches({"bad": error}, bad=[15, 12], fix=[25, 22]), *((30, Source("fix", 25)), (20, Source("bad", 15)))
    )
    assert found == [(30, [25, 22], ""), (20, [15], error.message)]


async def test_an_error_that_may_pass_is_raised() -> None:
    with pytest.raises(TransientError, match="no answer"):
        await rows(Branches({"bad": TransientError("no answer")}, bad=[15]), (20, Source("bad", 15)))

"""Finds the request that an undo or a redo reverts.

Only the log is read, so all programs that an author uses find the same request. A request is *reverted* if there is a
revert of it that is not itself reverted. An undo is a revert of one request that made edits. A redo is a revert of an
undo.

Invariant: an undo or a redo never reverts a request of another author.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from rebaser_client.log.changes import LogEntry
from rebaser_client.log.positions import PositionPurged
from rebaser_core.commit import Authorship, Commit, Decision, Kind, Outcome, Reverts
from rebaser_core.ids import RequestId

MAX_SCANNED = 10_000  # commits that are read in search of the request

Entries = AsyncGenerator[LogEntry, None]


@dataclass(frozen=True, slots=True)
class UndoStep:
    """The request that an undo or a redo reverts. `entry` is its commit, which may contain other requests."""

    entry: LogEntry
    decision: Decision
    author: Authorship


class _Reverted:
    """The requests and commits that reverts have undone, collected from the newest commit to the oldest."""

    def __init__(self) -> None:
        self._requests: defaultdict[int, set[RequestId]] = defaultdict(set)  # by log sequence of their commit
        self._ranges: list[Reverts] = []

    def add(self, reverts: Reverts) -> None:
        if reverts.of is not None:  # the reverted commits belong to another change set
            return
        if reverts.request is None:
            self._ranges.append(reverts)
        else:
            self._requests[reverts.first].add(reverts.request)

    def covers(self, sequence: int, request_id: RequestId) -> bool:
        self._ranges = [one for one in self._ranges if one.first <= sequence]
        return request_id in self._requests.get(sequence, ()) or any(sequence <= one.last for one in self._ranges)


async def find_undo(entries: Entries, author: str) -> UndoStep | None:
    """Return the newest request of `author` that made edits, and is neither a revert nor reverted.

    `entries` is the log, newest first. Return None if there is no such request among the newest `MAX_SCANNED` commits,
    or since the change set was created: older commits are those of an earlier change set of this name.
    """
    reverted, scanned = _Reverted(), 0
    async with aclosing(entries):
        async for entry in entries:
            scanned += 1
            if scanned > MAX_SCANNED or entry.kind is Kind.CREATE:
                break
            if entry.reverts is None:
                if (step := _newest_edit(entry, author, reverted)) is not None:
                    return step
            elif not reverted.covers(entry.sequence, entry.requests[0][0].request_id):
                reverted.add(entry.reverts)
    return None


async def find_redo(
    entries: Entries, author: str, commit_at: Callable[[int], Awaitable[Commit | None]]
) -> UndoStep | None:
    """Return the newest undo of `author` that is not reverted; None if the author has made other edits since.

    `entries` is the log, newest first. `commit_at` reads the commit at a log sequence.
    """
    reverted, scanned = _Reverted(), 0
    async with aclosing(entries):
        async for entry in entries:
            scanned += 1
            if scanned > MAX_SCANNED or entry.kind is Kind.CREATE:
                break
            if _newest_edit(entry, author, reverted) is not None:
                break
            if entry.reverts is None:
                continue
            decision, who = entry.requests[0]
            if reverted.covers(entry.sequence, decision.request_id):
                continue
            reverted.add(entry.reverts)
            if who.author == author and entry.reverts.request is not None and entry.reverts.of is None:
                try:
                    undone = await commit_at(entry.reverts.first)
                except PositionPurged:
                    continue  # the commit was purged, so it is unknown whether this revert was an undo or a redo
                if undone is not None and undone.reverts is None:
                    return UndoStep(entry, decision, who)
    return None


def _newest_edit(entry: LogEntry, author: str, reverted: _Reverted) -> UndoStep | None:
    if entry.kind is not Kind.REBASE or entry.reverts is not None:
        return None
    for decision, who in reversed(entry.requests):
        made_edits = decision.outcome is Outcome.SUCCESS and decision.performed > 0
        if made_edits and who.author == author and not reverted.covers(entry.sequence, decision.request_id):
            return UndoStep(entry, decision, who)
    return None

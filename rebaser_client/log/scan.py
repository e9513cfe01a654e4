"""Finds the commits that defined or removed one value, in bounded steps.

Invariant: each step reads at least one commit, so that repeated steps reach the oldest commit.
"""

import time
from contextlib import aclosing
from dataclasses import dataclass

from rebaser_client.cooperative import cooperate
from rebaser_client.log.changes import LogEntry
from rebaser_client.log.commits import CommitReader
from rebaser_client.log.positions import At
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey

MAX_COMMITS = 2000
MAX_BYTES = 64 << 20
MAX_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ValueHistory:
    """Commits that defined or removed a value, newest first, with their deltas.

    `next` is the position from which to search on, or None if there are no older commits of the change set. `commits`
    and `bytes` are the number of commits that were read, and their size.
    """

    entries: tuple[LogEntry, ...]
    next: int | None
    commits: int
    bytes: int


async def find_definitions(
    reader: CommitReader, key: ChangeSetKey, id_: str, *, at: At | None = None, limit: int = 20
) -> ValueHistory:
    """Return up to `limit` commits of `key` that define or remove `id_`, from the position `at` (None: the newest
    commit) back to the creation of the change set. Older commits are those of an earlier change set of this name.

    The search ends early after `MAX_COMMITS` commits, `MAX_BYTES` bytes or `MAX_SECONDS` seconds. Raise the errors of
    `CommitReader.back`.
    """
    found: list[LogEntry] = []
    commits, size, end = 0, 0, time.monotonic() + MAX_SECONDS
    async with aclosing(reader.back(key, at)) as log:
        async for commit in log:
            size += _size(commit)
            full = len(found) == limit or commits >= MAX_COMMITS or size > MAX_BYTES or time.monotonic() > end
            if commits and full:
                return ValueHistory(tuple(found), commit.sequence, commits, size - _size(commit))
            commits += 1
            if commit.kind is Kind.CREATE:
                break
            if commit.has_edits:
                loaded = await reader.with_delta(commit)
                if any(update.id == id_ for update in loaded.delta):
                    found.append(LogEntry.of(loaded))
            await cooperate()
    return ValueHistory(tuple(found), None, commits, size)


def _size(commit: Commit) -> int:
    """Return the number of bytes that have to be read to know the edits of a commit."""
    blobs = commit.folded_blobs if commit.has_edits else ()
    return commit.size + sum(blob.size for blob in blobs)

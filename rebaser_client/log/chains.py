"""Reads commits that follow one another in a log, without a gap.

Invariant: a chain is complete. Each of its commits says which message precedes it, and is compared with that message.
"""

from collections.abc import Callable
from contextlib import aclosing

from rebaser_client.cooperative import cooperate
from rebaser_client.log.commits import CommitReader
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey


async def read_chain(
    commits: CommitReader,
    key: ChangeSetKey,
    after: int,
    newest: Commit,
    accept: Callable[[Commit], bool] = lambda _: True,
) -> list[Commit] | None:
    """Return the commits of `key` after log sequence `after` up to `newest`, oldest first. Deltas in blobs are not
    loaded. Commits with results of derived values are left out, because they may take much memory.

    `newest` must be later than `after`. Return None if a commit is missing or is not readable as a commit, or if
    `accept` returns False for one of the commits, which are read from the newest to the oldest. Raise `TransientError`
    for a damaged commit.
    """
    chain: list[Commit] = []
    commit: Commit | None = newest
    async with aclosing(commits.before(key, newest)) as older:
        while commit is not None and accept(commit):
            if commit.kind is not Kind.DVU:
                chain.append(commit)
            if commit.previous <= after:
                return chain[::-1] if commit.previous == after else None
            await cooperate()
            previous, commit = commit.previous, await anext(older, None)
            if commit is not None and commit.sequence != previous:
                return None
    return None

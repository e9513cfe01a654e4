"""Finds the log that contains a position of a change set. For a position before the creation of the change set, this is
the log of its parent.

Invariant: the parent is never read beyond the position from which the change set was created. So a change set that was
created later under the name of the parent is never taken for it. It may even have been created from its child, so the
search would go round in circles.
"""

from contextlib import suppress

from rebaser_client.jetstream import StoredMessage
from rebaser_client.log.commits import CommitReader
from rebaser_client.log.positions import At
from rebaser_core.commit import BranchSummary
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import read_branch, read_edited
from rebaser_core.messages.commit import check_is_commit


async def source_of(commits: CommitReader, key: ChangeSetKey, at: At | None) -> tuple[ChangeSetKey, At | None]:
    """Return the change set and the position whose state is the state of `key` at the position `at`.

    The change set is `key`, or an ancestor of `key` if `key` did not exist yet at that position.

    Raise the errors of `CommitReader.newest_commit`.
    """
    until: int | None = None
    while at is not None:
        found = await commits.newest_commit(key, at)
        if found is not None and _is_own(found[0]):
            break
        branch = await _branch(commits, key, until)
        if branch is None or not branch.origin:
            break
        at, until = await _before(commits, key, at, branch), branch.origin_sequence
        key = ChangeSetKey(key.workspace, branch.origin)
    return key, at


def _is_own(message: StoredMessage) -> bool:
    """Return whether the change set already had values, or had been created by a request, at the commit `message`."""
    return read_branch(message.headers) is not None or read_edited(message.headers, message.sequence) > 0


async def _branch(commits: CommitReader, key: ChangeSetKey, at: int | None) -> BranchSummary | None:
    """Return the summary of the branch from the headers of its newest commit at or before the position `at`.

    The payload is not decoded.
    """
    message = await commits.newest_message(key, at)
    while message is not None:
        with suppress(UnprocessableError):
            check_is_commit(message.headers)
            return read_branch(message.headers)
        message = await commits.newest_message(key, message.sequence - 1)
    return None


async def _before(commits: CommitReader, key: ChangeSetKey, at: At, branch: BranchSummary) -> At:
    """Return the earlier of `at` and the position of the parent from which the branch `key` was created."""
    if isinstance(at, int):
        return min(at, branch.origin_sequence)
    parent = await commits.newest_message(ChangeSetKey(key.workspace, branch.origin), at)
    return at if parent is None or parent.sequence <= branch.origin_sequence else branch.origin_sequence

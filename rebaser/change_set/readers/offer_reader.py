"""Reads what a branch offers to its target: the changes of the branch as of one position.

Invariant: the offer contains all changes as of that position. It is read from the log of the branch, and does not
depend on the owner of the branch or on a client.
"""

from rebaser.runtime.context import Context
from rebaser_client.cooperative import cooperate
from rebaser_client.jetstream import StoredMessage
from rebaser_client.log.branch_changes import STEP, Changes, GapError, UnknownEdit, changes_of
from rebaser_client.log.positions import ATTEMPTS, PositionPurged
from rebaser_core.branches.branch import Apply, differing
from rebaser_core.branches.merge import PatchEntry
from rebaser_core.commit import Commit, Source
from rebaser_core.decisions.apply import Offer, check_source
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import read_branch, read_edited

MAX_BYTES = 128 * 1024 * 1024  # maximum bytes of the blobs that one request may read


async def read_offer(context: Context, key: ChangeSetKey, apply: Apply) -> Offer:
    """Return what the branch that `apply` specifies offers to the change set `key`.

    Raise `UnprocessableError` with the code `self`, `no_such_change_set`, `no_such_position`, `purged`, `too_large`,
    `stale` if derived values of the branch are not up to date, or a code of `check_source`. Raise `TransientError` if
    the log or a blob cannot be read, and `UnsupportedVersion` for a commit of a newer version.
    """
    if apply.source == key.change_set:
        raise UnprocessableError("a change set cannot be applied to itself: specify one of its branches", code="self")
    branch = ChangeSetKey.of(key.workspace, apply.source)
    for _ in range(ATTEMPTS):
        offer = await _read(context, key, branch, apply)
        if offer is not None:
            return offer
        if apply.at is not None:
            raise await context.reader.purged(branch, apply.at)
    raise TransientError(
        f"the log of {branch} was purged while it was read, or lacks a commit: try again later", code="purged"
    )


async def _read(context: Context, key: ChangeSetKey, branch: ChangeSetKey, apply: Apply) -> Offer | None:
    """Return the offer of `branch` to `key`; None if a needed commit is no longer in the log."""
    reader = context.reader
    newest = named = await reader.newest_commit(branch)
    if newest is not None and apply.at is not None and apply.at != newest[0].sequence:
        named = await reader.newest_commit(branch, apply.at)
    if newest is None or named is None:
        name = f"{branch.workspace}/{branch.change_set}"
        text = f"there is no change set {name}" if newest is None else f"{name} had no commit at position {apply.at}"
        raise UnprocessableError(text, code="no_such_change_set")
    (now, last), (then, commit) = newest, named
    source = Source(branch.change_set, commit.sequence, apply.keep)
    summary = read_branch(then.headers)
    check_source(key.change_set, source, read_branch(now.headers), summary)
    if birth_of(now, last) != birth_of(then, commit):
        raise UnprocessableError(
            f"{branch.change_set}@{commit.sequence} is a position of an earlier change set of this name that was"
            " deleted; choose a later position",
            code="purged",
        )
    assert summary is not None  # noqa: S101 - checked by `check_source`
    edited = read_edited(then.headers, then.sequence)
    covered = last.sequence if last.covers is None else last.covers
    if covered < edited and not apply.allow_stale:
        raise UnprocessableError(
            f"derived values of {branch.change_set}@{commit.sequence} are not up to date: wait for the update, or allow"
            " stale values",
            code="stale",
        )
    try:
        changes = await changes_of(reader, branch, commit, max_bytes=MAX_BYTES)
    except UnknownEdit:
        try:
            return Offer(source, summary.base, await _patch_of_state(context, branch, commit.sequence))
        except PositionPurged:
            return None
    except (GapError, PositionPurged):
        return None
    return Offer(source, summary.base, await _patch(context, changes))


def birth_of(message: StoredMessage, commit: Commit) -> int:
    """Return the log sequence of the commit that created the change set; 0 if no commit did."""
    summary = read_branch(message.headers)
    return commit.created_by or (0 if summary is None else summary.birth)


async def _patch_of_state(context: Context, branch: ChangeSetKey, sequence: int) -> tuple[PatchEntry, ...]:
    """Return the changes of `branch` as of log sequence `sequence`. Load the whole state to find them, which takes
    longer than reading commits."""
    state = (await context.reader.load(branch, sequence)).state
    assert state.branch is not None  # noqa: S101 - only a branch has an offer
    patch: list[PatchEntry] = []
    entries = list(state.branch.changes.items())
    for start in range(0, len(entries), STEP):
        await cooperate()
        patch += differing(entries[start : start + STEP], state.cells.edit_of)
        _check_size(context, patch)
    return tuple(patch)


async def _patch(context: Context, changes: Changes) -> tuple[PatchEntry, ...]:
    patch: list[PatchEntry] = []
    entries = list(changes.items())
    for start in range(0, len(entries), STEP):
        await cooperate()
        patch += [PatchEntry(id_, one.base, one.here) for id_, one in entries[start : start + STEP] if not one.is_level]
        _check_size(context, patch)
    return tuple(patch)


def _check_size(context: Context, patch: list[PatchEntry]) -> None:
    """Raise `UnprocessableError` if a request may not have so many changes. Values that were edited back to their
    definition at the base do not count."""
    if len(patch) > (most := context.settings.limits.max_updates):
        raise UnprocessableError(f"the branch has more than {most:,} changes", code="too_large")

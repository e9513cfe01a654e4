"""Reads the origin of a new change set: a commit of its parent, the checkpoint before that commit, and the commits in
between.

Invariant: the origin is complete as of one position of the parent's log. Reading does not involve the parent's owner.
The parent's log may be purged afterwards, because the new change set needs only the blobs that its first commit lists.
"""

from dataclasses import replace
from itertools import islice
from typing import TypeAlias

import anyio

from rebaser.change_set.log.checkpointer import ROW, all_stored, put_all
from rebaser.change_set.readers.offer_reader import birth_of
from rebaser.change_set.readers.tail_reader import TailReader
from rebaser.runtime.context import Context
from rebaser.runtime.tail_cache import MadeCheckpoint, Tail, same_message
from rebaser_client.backoff import Backoff
from rebaser_client.cooperative import run_offloaded
from rebaser_client.jetstream import StoredMessage
from rebaser_client.log.commits import DAMAGED, MAX_BLOB
from rebaser_client.log.positions import PositionPurged, at_text
from rebaser_client.log.reader import LOAD_ATTEMPTS, RELOAD_MIN
from rebaser_core import thresholds
from rebaser_core.branches.branch import Create, Fork
from rebaser_core.checkpoint import open_checkpoint
from rebaser_core.checkpoint.writer import CheckpointDraft
from rebaser_core.commit import BlobRef, BranchStatus, BranchSummary, CheckpointRef, Commit, Origin, TailRow
from rebaser_core.decisions.deletion import remembered_outcomes
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import (
    decode_tail,
    read_branch,
    read_edited,
)
from rebaser_core.state.change_set import BrokenChain, ChangeSetState

_Copied: TypeAlias = tuple[CheckpointRef | None, tuple[TailRow, ...], BlobRef | None, tuple[str, ...]]
"""A checkpoint; copies of the commits after it, as rows or as a blob; and the addresses of all blobs that the
checkpoint and the copies need."""

MAX_CARRIED = 1000  # maximum number of recorded outcomes that a `create` commit repeats


async def read_fork(
    context: Context, key: ChangeSetKey, create: Create, state: ChangeSetState, inline_max: int, *, stored_ms: int
) -> Fork:
    """Return the content of the commit that creates `key`. `state` is the state of `key` before that commit.

    `stored_ms` is the time at which NATS stored the request (Unix ms). If the copied commits have more than
    `inline_max` bytes, they go to a blob.

    Raise `UnprocessableError` with the code `exists`, `self`, `no_such_change_set`, `not_its_target`,
    `no_such_position`, or `purged` if the position can no longer be read. Raise `TransientError` if the log or a blob
    cannot be read, and `UnsupportedVersion` for a commit of a newer version.
    """
    if create.parent == key.change_set:
        raise UnprocessableError("a change set cannot be created from itself: use another name", code="self")
    if create.target == key.change_set:  # the name is that of a deleted change set, which was the target of the parent
        raise UnprocessableError("a change set cannot be its own target: its target can be the parent", code="self")
    _check_new(key, state, stored_ms - int(context.settings.retry_window * 1000))
    if create.parent is None:
        return Fork(BranchSummary("", 0, _status(create), 0, 0, "", 0))
    parent = ChangeSetKey.of(key.workspace, create.parent)
    backoff = Backoff(RELOAD_MIN)
    while True:
        try:
            return await _Parent(context, parent, create, inline_max).read()
        except (BrokenChain, PositionPurged) as error:  # the parent was purged during the read
            if create.at is not None:
                await context.reader.check_readable(parent, create.at)
            if backoff.attempt >= LOAD_ATTEMPTS:
                raise TransientError(f"the log of {parent} cannot be read: {error}", code=DAMAGED) from error
            await anyio.sleep(backoff.next_delay())


def _check_new(key: ChangeSetKey, state: ChangeSetState, before_ms: int) -> None:
    """Raise `UnprocessableError` (`exists`) if `key` was edited or created before, or has too many recorded outcomes.

    A deleted change set does not count as created. Outcomes that were recorded before `before_ms` do not count, because
    no client repeats their requests any more.
    """
    name, branch = f"{key.workspace}/{key.change_set}", state.branch
    if state.status is BranchStatus.DELETED:
        branch = None
    if branch is not None and branch.origin:
        about = f"created from {branch.origin}@{branch.origin_sequence}, {branch.status}"
        raise UnprocessableError(f"{name} already exists: {about}", code="exists")
    if branch is not None or state.edited:
        raise UnprocessableError(f"{name} already exists: use another name", code="exists")
    if any(True for _ in islice(remembered_outcomes(state, before_ms), MAX_CARRIED, None)):
        what = "had" if state.status is BranchStatus.DELETED else "has refused"
        raise UnprocessableError(
            f"{name} {what} more than {MAX_CARRIED} requests, whose outcomes are still remembered; use another name,"
            " or retry once these outcomes are forgotten (REBASER_RETRY_WINDOW)",
            code="exists",
        )


def _status(create: Create) -> BranchStatus:
    return BranchStatus.CLOSED if create.closed else BranchStatus.OPEN


class _Parent:
    """One attempt to read the change set `parent` for the request `create`."""

    def __init__(self, context: Context, parent: ChangeSetKey, create: Create, inline_max: int) -> None:
        self._context = context
        self._reader = context.reader
        self._parent = parent
        self._create = create
        self._inline_max = inline_max

    async def read(self) -> Fork:
        message, commit = await self._newest()
        branch = read_branch(message.headers)
        target, base = self._target(branch, commit.sequence)
        sibling = target != self._parent.change_set
        checkpoint = commit.checkpoint
        if checkpoint is not None and checkpoint.changes is not None and not sibling:
            checkpoint = replace(checkpoint, changes=None, size=checkpoint.size - checkpoint.changes.size)
        copied = await self._after_made(message, commit, sibling) or await self._tail(message, commit, checkpoint)
        if copied is None:
            async with self._context.tails.making:
                copied = await self._after_made(message, commit, sibling)
                copied = copied or await self._make_checkpoint(message, commit, sibling)
        checkpoint, rows, blob, needed = copied
        follows = self._create.follows
        origin = Origin(self._parent.change_set, commit.sequence, target, base, rows, blob, follows)
        inherited = (branch.changes, branch.conflicts) if sibling and branch is not None else (0, 0)
        about = (*inherited, origin.change_set, origin.sequence)
        summary = BranchSummary(target, base, _status(self._create), *about, follows=follows)
        return Fork(summary, origin, checkpoint, commit.covers, commit.unknown, needed)

    async def _newest(self) -> tuple[StoredMessage, Commit]:
        """Return the newest commit at the requested position, with its message. Raise `UnprocessableError` if the
        parent had no edits at that position."""
        reader, at = self._reader, self._create.at
        message = await reader.newest_message(self._parent, at)
        while message is not None:
            commit = reader.decode(message.sequence, message.headers, message.data)
            if commit is not None and read_edited(message.headers, message.sequence):
                await self._check_same(message, commit)
                return message, commit
            if commit is not None:
                break  # no edit was applied to the parent up to this commit
            message = await reader.newest_message(self._parent, message.sequence - 1)  # not a commit: skip it
        name = f"{self._parent.workspace}/{self._parent.change_set}"
        when = "" if at is None else f" at {at_text(at)}"
        raise UnprocessableError(f"there is no change set {name}{when}", code="no_such_change_set")

    async def _check_same(self, message: StoredMessage, commit: Commit) -> None:
        """Raise `UnprocessableError` (`purged`) if `commit` belongs to an earlier change set of the parent's name."""
        newest = None if self._create.at is None else await self._reader.newest_commit(self._parent)
        if newest is not None and birth_of(*newest) != birth_of(message, commit):
            name = f"{self._parent.change_set}@{commit.sequence}"
            raise UnprocessableError(
                f"{name} belongs to an earlier change set of this name that was deleted; choose a later position",
                code="purged",
            )

    def _target(self, branch: BranchSummary | None, sequence: int) -> tuple[str, int]:
        """Return the target of the new change set, and its base. `branch` describes the parent as of `sequence`."""
        wanted, parent = self._create.target, self._parent.change_set
        if wanted in (None, parent):
            return parent, sequence
        if branch is not None and branch.target == wanted:
            return wanted, branch.base
        other = f"whose target is {branch.target}" if branch is not None and branch.target else "which has no target"
        raise UnprocessableError(f"{wanted} is not the target of {parent}, {other}", code="not_its_target")

    async def _tail(self, message: StoredMessage, commit: Commit, checkpoint: CheckpointRef | None) -> _Copied | None:
        """Return `checkpoint`, to which `commit` refers, with copies of the commits after it.

        Return None if the commits are too large to be copied.
        """
        reader = TailReader(self._context, self._parent)
        tail = await reader.read(message, commit, may_be_purged=self._create.at is not None)
        if tail is None or len(tail.data) > max(thresholds.now.tail_max_bytes, self._inline_tail_max):
            return None
        rows, blob = await self._stored(tail)
        return checkpoint, rows, blob, await self._all_needed(checkpoint, tail.needed)

    async def _after_made(self, message: StoredMessage, commit: Commit, sibling: bool) -> _Copied | None:
        """Return a checkpoint that this server stored when it created an earlier change set from the same parent, with
        copies of the commits after it.

        Return None if there is no such checkpoint, if the commits after it cannot be copied, or if one of its blobs is
        no longer stored.
        """
        made = self._context.tails.made(self._parent, sibling, commit.checkpoint)
        if made is None or self._create.at is not None:
            return None
        if not await all_stored(self._context.blobs, made.needed):
            return None
        if same_message(made.newest, message):
            return made.checkpoint, (), None, made.needed
        if not commit.created_by <= made.newest.sequence <= message.sequence:
            return None  # the parent was created again after that checkpoint, or `message` is older than the checkpoint
        tail = await TailReader(self._context, self._parent).since(made.newest, message)
        if tail is None or len(tail.data) > max(thresholds.now.tail_max_bytes, self._inline_tail_max):
            return None
        rows, blob = await self._stored(tail)
        return made.checkpoint, rows, blob, tuple(dict.fromkeys([*made.needed, *tail.needed]))

    @property
    def _inline_tail_max(self) -> int:
        return min(thresholds.now.inline_tail_max_bytes, self._inline_max)

    async def _stored(self, tail: Tail) -> tuple[tuple[TailRow, ...], BlobRef | None]:
        """Return the copied commits, as rows or as a blob."""
        if len(tail.data) <= self._inline_tail_max:
            return decode_tail(tail.data) if tail.rows is None else tail.rows, None
        # The blob is stored again even if this server stored it earlier, because it may have been deleted since.
        return (), BlobRef(await self._context.blobs.put(tail.data), len(tail.data))

    async def _all_needed(self, checkpoint: CheckpointRef | None, needed: tuple[str, ...]) -> tuple[str, ...]:
        """Return `needed` and the addresses of the blobs of `checkpoint`. `needed` may lack them, because headers from
        older servers do not list them."""
        if checkpoint is None or checkpoint.address in needed:
            return needed
        newest = await self._context.blobs.get(checkpoint.address, max_bytes=MAX_BLOB)
        reader = await run_offloaded(len(newest), open_checkpoint, newest, checkpoint.address)
        parts = [checkpoint.address, *(part.address for part in reader.before)]
        parts += [] if checkpoint.changes is None else [checkpoint.changes.address]
        return tuple(dict.fromkeys([*needed, *parts]))

    async def _make_checkpoint(self, message: StoredMessage, commit: Commit, sibling: bool) -> _Copied:
        """Store a checkpoint of the parent's state at `commit`. It shares parts with the parent's own checkpoint."""
        loaded = await self._reader.load(self._parent, commit.sequence)
        if not sibling:
            loaded.state.branch = None
        with loaded.state.view() as view:
            draft = CheckpointDraft(loaded.state, view, loaded.chain)
            await run_offloaded(draft.rows * ROW, view.run, draft.copy)
        written = await run_offloaded(draft.encoded_rows * ROW, draft.write)
        checkpoint, needed = await put_all(self._context.blobs, written)
        made = MadeCheckpoint(message, commit.checkpoint, checkpoint, needed)
        if self._create.at is None:
            self._context.tails.add_made(self._parent, sibling, made)
        return checkpoint, (), None, needed

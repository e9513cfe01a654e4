"""Reads the changes that a branch has made since its base, from the commits of the branch.

Invariant: the cost depends on the changes and on the commits that are read, not on the size of the change set. No state
is loaded, so NumPy is not needed.
"""

from typing import Any, TypeAlias

from rebaser_client.cooperative import cooperate, run_offloaded
from rebaser_client.log.chains import read_chain
from rebaser_client.log.commits import DAMAGED, CommitReader
from rebaser_core.branches.branch import Changed, Contested
from rebaser_core.branches.merge import definition_of
from rebaser_core.commit import BlobRef, Commit, Kind, Replay
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import decode_changes, read_row

STEP = 500  # updates that are processed before other tasks run
NO_LIMIT = 2**62

Changes: TypeAlias = dict[str, Changed]
"""The changes of a branch: a mapping from ids of values to the definition at the base of the branch, the definition at
a position of the branch, and the conflict, if any."""


class GapError(Exception):
    """The changes of a branch cannot be determined from its commits alone. The caller has to load the state of the
    branch."""


class UnknownEdit(GapError):  # noqa: N818 - named after a state of the log
    """All commits of a branch exist, but they lack information that is needed to find its changes.

    A commit may lack the definitions that it replaced, because they were too large, or because an older server wrote
    the commit. It is also possible that a rebase gave a new base to a value that had been edited back to its old base,
    and that the checkpoint before the rebase does not list this value.
    """


async def read_changes(
    commits: CommitReader, key: ChangeSetKey, sequence: int, *, max_bytes: int = NO_LIMIT
) -> Changes:
    """Return the values edited in the branch `key` as of its commit `sequence`, and their conflicts with the target.

    Some of these values may have been edited back to their definition at the base.

    Raise `GapError` if a commit no longer exists, and its subclass `UnknownEdit` if all commits exist, but lack
    information. Raise `UnprocessableError` with code `too_large` if more than `max_bytes` bytes of blobs would have to
    be read. Raise `TransientError` if a blob cannot be read.
    """
    commit = await commits.commit_at(key, sequence)
    if commit is None:
        raise GapError
    return await changes_of(commits, key, commit, max_bytes=max_bytes)


async def changes_of(commits: CommitReader, key: ChangeSetKey, commit: Commit, *, max_bytes: int = NO_LIMIT) -> Changes:
    """Return the same as `read_changes`, as of `commit`, which was read before."""
    begin = commit.created_by
    after = begin or (0 if commit.checkpoint is None else commit.checkpoint.sequence)
    later = await read_chain(commits, key, after, commit) if commit.sequence > after else []
    if later is None:
        raise GapError
    fold = _Fold(commits, max_bytes)
    if begin:
        created = commit if commit.sequence == begin else await commits.commit_at(key, begin)
        if created is None or created.sequence != begin:
            raise GapError
        await _inherit(commits, fold, created)
    else:
        await fold.start(commit)
    for each in later:
        await fold.add(each)
    return fold.changes


async def _inherit(commits: CommitReader, fold: "_Fold", created: Commit) -> None:
    """Begin with the changes of the parent, if the branch has the same target as its parent."""
    origin = created.origin
    if origin is None or origin.target == origin.change_set:
        return
    fold.take(origin.tail_blob)
    origin = (await commits.with_tail(created)).origin
    await fold.start(created)
    for row in () if origin is None else origin.tail:
        commit = read_row(row)
        if commit is not None:
            await fold.add(commit)


class _Fold:
    """Accumulates the changes of a branch, commit by commit."""

    def __init__(self, commits: CommitReader, max_bytes: int) -> None:
        self._commits = commits
        self._room = max_bytes
        self.changes: Changes = {}

    def take(self, *blobs: BlobRef | None) -> None:
        """Add the sizes of `blobs`, which are read next, to the total. Raise `UnprocessableError` if it exceeds the
        limit."""
        self._room -= sum(blob.size for blob in blobs if blob is not None)
        if self._room < 0:
            text = "the changes of the branch are in blobs that are too large to be read for one request"
            raise UnprocessableError(text, code="too_large")

    async def start(self, commit: Commit) -> None:
        """Begin with the changes as of the checkpoint that `commit` refers to."""
        changes = None if commit.checkpoint is None else commit.checkpoint.changes
        if changes is None:
            return
        self.take(changes)
        data = await self._commits.blob(changes.address)
        try:
            self.changes = dict(await run_offloaded(len(data), decode_changes, data))
        except UnprocessableError as error:
            text = (
                f"the list of the branch's changes that commit {commit.sequence} refers to is damaged: {error.message}"
            )
            raise TransientError(text, code=DAMAGED) from error

    async def add(self, commit: Commit) -> None:
        await cooperate()
        if commit.kind is Kind.CREATE:
            origin = commit.origin
            if origin is None or origin.target == origin.change_set:
                self.changes.clear()
            return
        if commit.kind is Kind.REPLAY:
            await self._add_replay(commit)
        elif commit.has_edits:
            await self._add_edits(commit)

    async def _add_edits(self, commit: Commit) -> None:
        self.take(commit.delta_blob, commit.before_blob)
        loaded = await self._commits.with_before(await self._commits.with_delta(commit))
        if loaded.before is None:
            raise UnknownEdit
        before = {update.id: update for update in loaded.before}
        settled = set(commit.settled)
        delta: Any = loaded.delta
        for start in range(0, len(delta), STEP):
            await cooperate()
            for update in delta[start : start + STEP]:
                id_, known = update.id, self.changes.get(update.id)
                base = before.get(id_) if known is None else known.base
                contested = None if known is None or id_ in settled else known.contested
                self.changes[id_] = Changed(base, definition_of(update), contested)

    async def _add_replay(self, commit: Commit) -> None:
        self.take(commit.delta_blob, None if commit.replay is None else commit.replay.blob)
        loaded = await self._commits.with_delta(commit)
        delta: Any = loaded.delta
        for start in range(0, len(delta), STEP):
            await cooperate()
            for update in delta[start : start + STEP]:
                self.changes.pop(update.id, None)
        replay = loaded.replay or Replay()
        left = {update.id: Contested(definition_of(update), commit.sequence) for update in replay.conflicts}
        for start in range(0, len(replay.bases), STEP):
            await cooperate()
            for update in replay.bases[start : start + STEP]:
                known = self.changes.get(update.id)
                if known is None:
                    raise UnknownEdit
                self.changes[update.id] = Changed(definition_of(update), known.here, left.get(update.id))

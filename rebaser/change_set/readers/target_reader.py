"""Reads the changes that were made to a branch's target after the branch's base, from the target's log or by comparing
states.

Invariant: the result contains all edits of the target up to one position. Reading does not involve the owner of the
target. The log is used only if it has every commit after the base. If a commit was purged, or if the commits are larger
than a state, the state of the target is loaded and compared with the state of the branch. This way, even a very old
branch can be rebased.
"""

from dataclasses import replace
from typing import Any

import anyio

from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.readers.offer_reader import birth_of
from rebaser.runtime.context import Context
from rebaser_client.backoff import Backoff
from rebaser_client.cooperative import cooperate
from rebaser_client.jetstream import StoredMessage
from rebaser_client.log.branch_changes import STEP, GapError, read_changes
from rebaser_client.log.chains import read_chain
from rebaser_client.log.positions import PositionPurged, read_newest
from rebaser_client.log.reader import COMMIT_OVERHEAD, LOAD_ATTEMPTS, RELOAD_MIN
from rebaser_core import thresholds
from rebaser_core.branches.branch import Branch, Rebase
from rebaser_core.branches.merge import Definition, definition_of
from rebaser_core.commit import BranchStatus, Commit, Source
from rebaser_core.decisions.replay import TargetCommits, Theirs, check_moves, refuse_rebase
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import read_branch
from rebaser_core.shell import command
from rebaser_core.state.comparison import definitions_that_differ

UPDATE_BYTES = 100  # estimated bytes of an update, for comparing the size of commits with the size of a state


async def read_theirs(context: Context, commits: CommitLog, rebase: Rebase) -> Theirs:
    """Return the changes that were made to a branch's target since the branch's base. `commits` is the branch's log.

    The branch may change meanwhile, so the caller must check the result with `Theirs.fits`. The caller must not hold
    the append lock, because this function takes that lock to compare states.

    Raise `UnprocessableError` with the codes of `refuse_rebase` and `check_moves`, or `deleted`, `no_such_change_set`,
    `no_such_position`, `not_its_target`, `target_is_open`, `self`, `too_large`, or `purged` if the position `upto` is
    no longer readable. Raise `TransientError` if a log or a blob cannot be read, and `UnsupportedVersion` for a commit
    of a newer version.
    """
    refusal, branch = refuse_rebase(commits.state), commits.state.branch
    if refusal is not None or branch is None:
        raise refusal or UnprocessableError("this change set is not a branch of another one", code="not_a_branch")
    if rebase.settles is not None and rebase.settles < branch.birth:
        raise UnprocessableError(
            f"commit {rebase.settles}, which was applied, belongs to an earlier change set of this name",
            code="moved",
        )
    target = _Target(context, commits, rebase, branch)
    return await (read_newest(target.read) if rebase.upto is None else target.read())


class _Target:
    """Reads the target that `rebase` specifies, for `branch`, whose log is `commits`."""

    def __init__(self, context: Context, commits: CommitLog, rebase: Rebase, branch: Branch) -> None:
        self._context = context
        self._reader = context.reader
        self._commits = commits
        self._key = key = commits.key
        self._rebase = rebase
        self._branch = replace(branch)  # a copy, because other commits may move the base during the read
        self._target = ChangeSetKey.of(key.workspace, branch.target if rebase.onto is None else rebase.onto)
        self._taken = 0  # sequence of the newest commit that applied the branch, once the target's state is loaded

    async def read(self) -> Theirs:
        rebase, branch, target = self._rebase, self._branch, self._target
        if rebase.onto is not None:
            await self._check_onto()
        elif rebase.upto is not None and rebase.upto <= branch.base:
            return Theirs(Source(target.change_set, branch.base), branch.base, {})
        found = await self._newest()
        if found is None:
            name = f"{target.workspace}/{target.change_set}"
            raise UnprocessableError(f"there is no change set {name}", code="no_such_change_set")
        message, newest = found
        source, summary = Source(target.change_set, newest.sequence), read_branch(message.headers)
        if summary is not None and summary.status is BranchStatus.DELETED:
            reopen = command("reopen", target.workspace, target.change_set)
            raise UnprocessableError(
                f"the target {target.change_set} is deleted: restore it first (`{reopen}`)", code="deleted"
            )
        if summary is not None and rebase.onto is None:
            check_moves(branch, birth_of(message, newest), source)
        if rebase.onto is not None:
            return Theirs(source, branch.base, await self._by_state(newest))
        if newest.sequence <= branch.base:
            return Theirs(Source(target.change_set, branch.base), branch.base, {})
        commits = await self._by_commits(newest)
        if commits is not None:
            definitions, apply = commits.definitions, commits
        else:
            definitions = await self._by_state(newest)
            apply = await self._newest_apply()
        agreed = await self._agreed(apply.applied, apply.applied_in)
        return Theirs(source, branch.base, definitions, apply.applied, agreed, apply.applied_in, apply.applied_ms)

    async def _newest(self) -> tuple[StoredMessage, Commit] | None:
        """Return the newest commit of the target up to the position in the request, and its message; None if there is
        none.

        A request from `settling` specifies the commit that applied the branch. If that commit is missing, a deposed
        NATS leader may have answered, so this method reads again. The number of attempts is bounded, because a stream
        that was restored from a backup may lack the commit.
        """
        rebase, backoff = self._rebase, Backoff(RELOAD_MIN)
        while True:
            found = await self._reader.newest_commit(self._target, rebase.upto)
            if rebase.settles is None or (found is not None and found[0].sequence == rebase.upto):
                return found
            if backoff.attempt >= LOAD_ATTEMPTS:
                text = f"commit {rebase.upto}, which applied this branch, is not in the log of {self._target}"
                raise UnprocessableError(text, code="no_such_position")
            await anyio.sleep(backoff.next_delay())

    async def _check_onto(self) -> None:
        """Raise `UnprocessableError` unless the present target is closed and has the new target as its own target."""
        onto, present = self._target.change_set, ChangeSetKey.of(self._key.workspace, self._branch.target)
        if onto == self._key.change_set:
            raise UnprocessableError("a change set cannot be rebased onto itself", code="self")
        message = await self._reader.newest_message(present)
        branch = None if message is None else read_branch(message.headers)
        if branch is None or branch.target != onto:
            raise UnprocessableError(f"{onto} is not the target of {present.change_set}", code="not_its_target")
        if branch.status is BranchStatus.OPEN:
            raise UnprocessableError(
                f"{present.change_set}, the present target, is open: close it before the branch gets another target",
                code="target_is_open",
            )

    async def _by_commits(self, newest: Commit) -> TargetCommits | None:
        """Return the changes of the commits after the base, up to `newest`; None if one of the commits was purged, or
        if they are too large."""
        checkpoint = 0 if newest.checkpoint is None else newest.checkpoint.size
        limits = thresholds.now
        room = min(limits.replay_max_bytes, max(limits.replay_min_bytes, checkpoint))

        def accept(commit: Commit) -> bool:
            nonlocal room
            room -= COMMIT_OVERHEAD + (0 if commit.delta_blob is None else commit.delta_blob.size)
            room -= UPDATE_BYTES * len(commit.delta) if commit.has_edits else 0
            return room >= 0

        chain = await read_chain(self._reader, self._target, self._branch.base, newest, accept)
        if chain is None:
            return None
        commits = TargetCommits(self._key.change_set, self._branch.birth)
        for commit in chain:
            await self._add(commits, commit)
        return commits

    async def _add(self, commits: TargetCommits, commit: Commit) -> None:
        commits.add(commit)
        if not commit.has_edits:
            return
        delta: Any = (await self._reader.with_delta(commit)).delta
        for start in range(0, len(delta), STEP):
            await cooperate()
            commits.add_updates(delta[start : start + STEP])

    async def _by_state(self, newest: Commit) -> dict[str, Definition]:
        """Load the state of the target as of `newest`, and return the definitions that have changed since the base."""
        state, branch = self._commits.state, self._branch
        target = (await self._reader.load(self._target, newest.sequence)).state
        self._taken = target.taken.get(self._key.change_set, 0)
        found: dict[str, Definition] = {}
        async with self._commits.append_lock():
            present = state.branch
            if present is None or present.base != branch.base:
                return found  # the base moved, so the caller discards the result
            for some in definitions_that_differ(state, present.changes, target, STEP):
                found |= some
                await cooperate()
        return found

    async def _newest_apply(self) -> TargetCommits:
        """Return the newest commit that applied the branch, if it is after the base and still in the target's log."""
        commits = TargetCommits(self._key.change_set, self._branch.birth)
        taken = self._taken
        if taken > self._branch.base:
            commit = await self._commit(taken)
            if commit is not None:
                commits.add(commit)
        return commits

    async def _commit(self, sequence: int) -> Commit | None:
        """Return the target's commit at log sequence `sequence`, which must have existed; None if it was purged.

        A purge removes a commit together with all older ones. So if NATS returns an older commit, a deposed leader may
        have answered. This method then reads again, a bounded number of times.
        """
        backoff = Backoff(RELOAD_MIN)
        while True:
            try:
                commit = await self._reader.commit_at(self._target, sequence)
            except PositionPurged:
                return None
            if commit is None or commit.sequence == sequence:
                return commit
            if backoff.attempt >= LOAD_ATTEMPTS:
                return None
            await anyio.sleep(backoff.next_delay())

    async def _agreed(self, applied: Source | None, applied_in: int) -> dict[str, Definition]:
        """Return the changes of the branch that the target has taken over by applying the branch.

        `applied` is the position of the branch that was applied, `applied_in` the target's commit that applied it. If
        the log of the branch no longer reaches back to that position, return only the edits of that commit. A value
        that both sides had changed in the same way may then be reported as a conflict.
        """
        if applied is None:
            return {}
        try:
            changes = await read_changes(self._reader, self._key, applied.sequence)
        except (GapError, PositionPurged):
            commit = await self._commit(applied_in)
            delta: Any = () if commit is None else (await self._reader.with_delta(commit)).delta
            return {update.id: definition_of(update) for update in delta}
        return {id_: changed.here for id_, changed in changes.items() if not changed.is_level}

"""Reads branches: an overview from the headers of their newest commits, and their changes from all their commits.

Invariant: the cost of reading the changes of a branch depends on the number of changes and of commits that are read,
not on the size of the change set. States, which need NumPy, are loaded only if the commits do not contain all changes.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from anyio import to_thread

from rebaser_client.cooperative import cooperate
from rebaser_client.jetstream import JetStream, StoredMessage
from rebaser_client.log.branch_changes import Changes, GapError, read_changes
from rebaser_client.log.branch_errors import no_change_set, not_a_branch
from rebaser_client.log.changes import Definition, MovedValue, moved_values
from rebaser_client.log.commits import CommitReader, replaces_values
from rebaser_client.log.heads import Head, read_heads
from rebaser_client.log.positions import ATTEMPTS, At, read_newest
from rebaser_core.branches.branch import Changed
from rebaser_core.branches.merge import same_definition
from rebaser_core.commit import BranchStatus, BranchSummary
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import read_branch, read_edited, read_protected, read_summary
from rebaser_core.messages.commit_fields.origin import AUTO, MANUAL
from rebaser_core.record import record
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Remove

if TYPE_CHECKING:
    from rebaser_client.log.reader import StateLoader
    from rebaser_core.state.change_set import ChangeSetState


@record
class BranchInfo:
    """A change set, as described by the headers of its newest commit.

    - `sequence` and `time`: the log sequence of the newest commit, and the time when the commit was stored.
    - `origin` and `origin_sequence`: the change set from which this change set was created, and the log sequence as of
      which it was created. `origin` is None if this change set began empty.
    - `target` and `base`: the change set to which this change set can be applied, and the log sequence up to which this
      change set contains the commits of the target. `target` is None if this change set is not a branch.
    - `status`: `open`; `applied` or `abandoned` if the change set was closed; `kept` if it was created as closed; or
      `deleted`.
    - `changes`: the number of values that were edited since the base, including values that were edited back to their
      definition at the base.
    - `conflicts`: the number of values in conflict with the target.
    - `behind`: whether the target was edited after the base.
    - `protected`: whether servers refuse all edits except applied branches.
    - `born`: the log sequence of the commit that created the change set from `origin`; 0 if it began empty.
    - `follow`: `auto` if servers bring the branch up to date with its target without a request, otherwise `manual`.
    - `owner`: the id of the server that stored the newest commit; empty if the server runs an older release.
    - `errors`: the number of values whose newest result is an error, even if the result is stale; None if the headers
      do not contain this number.
    """

    workspace: str
    change_set: str
    sequence: int
    time: datetime
    status: str = BranchStatus.OPEN.value
    origin: str | None = None
    origin_sequence: int = 0
    target: str | None = None
    base: int = 0
    changes: int = 0
    behind: bool = False
    protected: bool = False
    conflicts: int = 0
    born: int = 0
    follow: str = MANUAL
    owner: str = ""
    errors: int | None = None


@dataclass(frozen=True, slots=True)
class BranchConflict:
    """A value that a branch and its target defined differently. `base` is the definition that both replaced.

    `ours` is the definition in the branch. `theirs` is the definition in the target, as of the commit up to which the
    branch was last rebased. None instead of a definition means that the value does not exist.
    """

    id: str
    base: Definition | None
    ours: Definition | None
    theirs: Definition | None


@dataclass(frozen=True, slots=True)
class BranchChange:
    """A value whose definition in a branch (`ours`) differs from its definition at the base of the branch (`base`).

    `theirs` is the definition that the target has now. None instead of a definition means that the value does not
    exist.
    """

    id: str
    base: Definition | None
    ours: Definition | None
    theirs: Definition | None

    @property
    def moved(self) -> bool:
        """Whether the target also changed the definition after the base."""
        return not same_definition(self.base, self.theirs)

    @property
    def landed(self) -> bool:
        """Whether the target already has the branch's definition."""
        return same_definition(self.ours, self.theirs)


@dataclass(frozen=True, slots=True)
class BranchDiff:
    """The changes of a branch since its base, sorted by id.

    `target_sequence` is the log sequence of the target as of which the definitions `theirs` in `changes` were read.
    `derived` contains the derived values that differ only in their result; it is empty unless the caller requested
    them.
    """

    info: BranchInfo
    target_sequence: int
    changes: tuple[BranchChange, ...]
    derived: tuple[MovedValue, ...] = ()


@record
class FoundBranch:
    """A change set, the message in its log from which `info` was read, and its target.

    `target` is None if the change set is not a branch, or if the log of its target is empty. The field `behind` of
    `target` is not set.
    """

    info: BranchInfo
    message: StoredMessage
    target: BranchInfo | None = None


class BranchReader:
    """Reads branches. `commits` reads their commits, and `loader` returns the object that loads states."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        commits: CommitReader,
        loader: Callable[[], Awaitable["StateLoader"]],
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._commits = commits
        self._loader = loader
        self._kept: tuple[tuple[ChangeSetKey, int], tuple[BranchConflict, ...]] | None = None

    async def all(self, workspace: str | None = None) -> list[BranchInfo]:
        """Return all change sets of `workspace`, or of all workspaces, that have a log, sorted by name.

        Only headers are read. Raise `ApiError` if the stream of commits does not exist.
        """
        heads = await read_heads(self._js, self._subjects, workspace)
        edited = {key: edited_at(head) for key, head in heads.items()}
        infos: list[BranchInfo] = []
        for key in sorted(heads):
            info = branch_info(key, heads[key])
            infos.append(with_behind(info, 0 if info.target is None else edited.get(key.beside(info.target), 0)))
        return infos

    async def one(self, key: ChangeSetKey, at: At | None = None, target_at: At | None = None) -> BranchInfo | None:
        """Return the change set `key` as of the position `at`; None if the change set had no commit at that position.

        `target_at` is the position of the target with which the branch is compared to find out whether the branch is
        behind. For both positions, None means the newest commit.
        """
        found = await self.find(key, at, target_at)
        return None if found is None else found.info

    async def find(self, key: ChangeSetKey, at: At | None = None, target_at: At | None = None) -> FoundBranch | None:
        """Return the same as `one`, with what else was read."""
        message = await self._commits.newest_message(key, at)
        if message is None:
            return None
        info = info_of(key, message)
        if info.target is None:
            return FoundBranch(info, message)
        of = key.beside(info.target)
        target = await self._commits.newest_message(of, target_at)
        if target is None:
            return FoundBranch(info, message)
        return FoundBranch(with_behind(info, _edited(target.headers, target.sequence)), message, info_of(of, target))

    async def diff(self, key: ChangeSetKey, at: At | None = None, target_at: At | None = None) -> BranchDiff:
        """Return the changes of the branch `key` since its base, with the definitions of the same ids in its target.

        `at` is the position of the branch, and `target_at` is the position of the target. For both positions, None
        means the newest commit.

        Raise `UnprocessableError` with code `no_such_change_set`, or `not_a_branch` for a change set without a target.
        Raise `PositionPurged` if `at` is no longer readable.
        """
        if at is None:
            return await read_newest(partial(self._diff, key, None, target_at))
        return await self._diff(key, at, target_at)

    async def _diff(self, key: ChangeSetKey, at: At | None, target_at: At | None) -> BranchDiff:
        info, of = await self._branch(key, at, target_at)
        changes = await self._changes(key, info.sequence)
        differing = {id_: changed for id_, changed in changes.items() if not changed.is_level}
        target = ChangeSetKey(key.workspace, of)
        newest, theirs = info.base, dict[str, Definition | None]()
        if info.behind:
            newest, theirs = await self._theirs(target, info.base, differing, target_at)
        return BranchDiff(
            info,
            newest,
            tuple(
                BranchChange(id_, one.base, one.here, theirs.get(id_, one.base))  # type: ignore[arg-type] # never `Remove`
                for id_, one in sorted(differing.items())
            ),
        )

    async def edits(self, key: ChangeSetKey) -> dict[str, Definition | None]:
        """Return the definitions in the branch `key` of the values that it edited since its base, by id; None for
        a value that it removed. A value may have its definition at the base again. Raise the errors of `diff`."""

        async def read() -> dict[str, Definition | None]:
            info, _ = await self._branch(key, None)
            changes = await self._changes(key, info.sequence) if info.changes else {}
            return {id_: changed.here for id_, changed in changes.items()}  # type: ignore[misc] # never `Remove`

        return await read_newest(read)

    async def derived(self, diff: BranchDiff) -> tuple[MovedValue, ...]:
        """Return the derived values that differ between the branch in `diff` and its base although their definitions
        are the same, sorted by id.

        This loads the states of the branch and of the target. Each state is read as of the newest commit up to which
        its definitions stay the same, because more derived values are up to date at that commit. Raise
        `PositionPurged` if the base is no longer readable.
        """
        info = diff.info
        before = await self._computed(ChangeSetKey(info.workspace, str(info.target)), info.base)
        after = await self._computed(ChangeSetKey(info.workspace, info.change_set), info.sequence)
        return await to_thread.run_sync(moved_values, before, after)

    async def _computed(self, key: ChangeSetKey, sequence: int) -> "ChangeSetState":
        at = await self._commits.newest_same(key, sequence)
        return (await (await self._loader()).load(key, at)).state

    async def conflicts(
        self, key: ChangeSetKey, at: At | None = None, *, keep: bool = False
    ) -> tuple[BranchInfo, tuple[BranchConflict, ...]]:
        """Return the branch `key`, and its conflicts with its target, sorted by id. Raise the errors of `diff`.

        If `keep` is true, the conflicts are cached for further calls at the same position, and replace the conflicts
        that were cached earlier.
        """
        if at is None:
            return await read_newest(partial(self._conflicts, key, None, keep))
        return await self._conflicts(key, at, keep)

    async def _conflicts(
        self, key: ChangeSetKey, at: At | None, keep: bool
    ) -> tuple[BranchInfo, tuple[BranchConflict, ...]]:
        info, _ = await self._branch(key, at)
        if not info.conflicts:
            return info, ()
        if self._kept is not None and self._kept[0] == (key, info.sequence):
            return info, self._kept[1]
        found = await self._conflicts_at(key, info.sequence)
        if keep:
            self._kept = (key, info.sequence), found
        return info, found

    async def _conflicts_at(self, key: ChangeSetKey, sequence: int) -> tuple[BranchConflict, ...]:
        changes = await self._changes(key, sequence)
        contested = [(id_, one, one.contested) for id_, one in changes.items() if one.contested is not None]
        return tuple(
            BranchConflict(id_, conflict.base, one.here, one.base)  # type: ignore[arg-type] # never `Remove`
            for id_, one, conflict in sorted(contested, key=itemgetter(0))
        )

    async def _branch(self, key: ChangeSetKey, at: At | None, target_at: At | None = None) -> tuple[BranchInfo, str]:
        """Return the branch `key` and its target, both as of the position `at`."""
        info = await self.one(key, at, target_at)
        if info is None:
            raise no_change_set(key)
        if info.target is None:
            raise not_a_branch(key)
        return info, info.target

    async def _changes(self, key: ChangeSetKey, sequence: int) -> Changes:
        """Return the values edited in the branch as of its commit `sequence`, and their conflicts with the target."""
        for _ in range(ATTEMPTS):
            with suppress(GapError):  # commits were purged meanwhile, or do not contain all changes
                return await read_changes(self._commits, key, sequence)
        state = (await (await self._loader()).load(key, sequence)).state
        if state.branch is None:
            return {}
        conflicts, here = state.branch.conflicts, state.cells.edit_of
        return {id_: Changed(base, here(id_), conflicts.get(id_)) for id_, base in state.branch.changes.items()}

    async def _theirs(
        self, target: ChangeSetKey, base: int, ids: Mapping[str, object], at: At | None
    ) -> tuple[int, dict[str, Definition | None]]:
        """Return the log sequence of the newest commit of `target` at or before `at`, and definitions by id. These are
        the definitions in `target` of all `ids` that were edited there after `base`. If the commits that would show
        these edits can no longer be read, or if `target` was deleted meanwhile, the definitions of all `ids` are
        returned.
        """
        theirs: dict[str, Definition | None] = {}
        newest, oldest = 0, base + 1
        async with aclosing(self._commits.back(target, at)) as commits:
            async for commit in commits:
                newest = newest or commit.sequence
                if commit.sequence <= base:
                    return newest, theirs
                if replaces_values(commit):
                    break
                oldest = commit.previous
                if commit.has_edits:
                    for update in reversed((await self._commits.with_delta(commit)).delta):
                        if update.id in ids:
                            gone = isinstance(update, Remove)
                            theirs.setdefault(update.id, None if gone else update)  # type: ignore[arg-type] # never `Remove`
                await cooperate()
        if oldest <= base:
            return newest, theirs
        state = await (await self._loader()).load_values(target, ids, at, stale=False)
        return state.last, {id_: state.cells.edit_of(id_) for id_ in ids}  # type: ignore[misc] # never `Remove`


def branch_info(key: ChangeSetKey, head: Head) -> BranchInfo:
    """Return the change set `key` as its newest message describes it. The field `behind` is false; `with_behind` sets
    it."""
    time = datetime.fromtimestamp(head.timestamp_ns / 1e9, UTC)
    return _info(key.workspace, key.change_set, head.sequence, time, head.headers)


def edited_at(head: Head) -> int:
    """Return the log sequence of the newest commit with edits."""
    return _edited(head.headers, head.sequence)


def info_of(key: ChangeSetKey, message: StoredMessage) -> BranchInfo:
    """Return the change set `key` as `message` describes it. The field `behind` is false; `with_behind` sets it."""
    time = datetime.fromisoformat(message.time)
    return _info(key.workspace, key.change_set, message.sequence, time, message.headers)


def _info(workspace: str, name: str, sequence: int, time: datetime, headers: Mapping[str, str]) -> BranchInfo:
    try:
        branch: BranchSummary | None = read_branch(headers)
    except RebaserError:  # the change set is listed even if the headers are damaged, or from a newer server
        branch = None
    protected, (owner, errors) = read_protected(headers), read_summary(headers)
    if branch is None:
        return BranchInfo(workspace, name, sequence, time, protected=protected, owner=owner, errors=errors)
    return BranchInfo(
        workspace,
        name,
        sequence,
        time,
        branch.status.value,
        branch.origin or None,
        branch.origin_sequence,
        branch.target or None,
        branch.base,
        branch.changes,
        protected=protected,
        conflicts=branch.conflicts,
        born=(branch.birth or sequence) if branch.origin else 0,
        follow=AUTO if branch.follows else MANUAL,
        owner=owner,
        errors=errors,
    )


def _edited(headers: Mapping[str, str], sequence: int) -> int:
    try:
        return read_edited(headers, sequence)
    except UnprocessableError:
        return sequence


def with_behind(info: BranchInfo, edited: int) -> BranchInfo:
    """Return `info` with `behind` set if the branch is behind its target.

    `edited` is the log sequence of the newest commit of the target that contains edits, or 0 if there is none.
    """
    return info if info.target is None or edited <= info.base else replace(info, behind=True)

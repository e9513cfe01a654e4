"""Branches: the requests to create, apply and rebase a branch, and the state of a branch.

Invariant, the law of branches: undoing the `changes` of a branch gives the definitions that its target had at the base.
For each id, `changes.get(id, definition in the branch)` is the definition in the target at the base.

The state of a branch follows only from its commits. If an id is edited back to its definition at the base, it may stay
in `changes` until the next checkpoint, so readers must compare the definitions (`differing`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rebaser_core.branches.merge import Definition, PatchEntry, definition_of, same_definition
from rebaser_core.commit import (
    BranchStatus,
    BranchSummary,
    CheckpointRef,
    Commit,
    Marking,
    Origin,
    Reverts,
    Strategy,
)
from rebaser_core.record import record
from rebaser_core.updates import Update


@record
class Create:
    """The request to create a change set: from `parent` as of log sequence `at` (None: the newest commit), or empty
    without a parent.

    `target` is the target of the new change set, which is either the parent (None) or the target of the parent. If
    `closed` is true, the new change set accepts no edits. If `follows` is true, its owner pulls the changes of the
    target.
    """

    parent: str | None = None
    at: int | None = None
    target: str | None = None
    closed: bool = False
    follows: bool = True


@record
class Apply:
    """The request to apply the changes of the branch `source` to its target, as of log sequence `at` (None: the newest
    commit).

    `strict`: refuse the request if the target was edited after the base of the branch. `allow_stale`: accept it even if
    derived values of the branch are not up to date. `keep`: leave the branch open, even if all of its edits are
    applied.
    """

    source: str
    at: int | None = None
    strict: bool = False
    allow_stale: bool = False
    keep: bool = False


@record
class Rebase:
    """The request to a branch to take over what its target changed since the base, up to log sequence `upto` (None: the
    newest commit).

    `onto`: the new target, which must be the target of the present target (None: the target stays). If `settles` is
    set, the request comes from the server that applied the branch as of this log sequence, in the commit `upto` of the
    target.
    """

    upto: int | None = None
    onto: str | None = None
    strategy: Strategy = Strategy.RECORD
    settles: int | None = None


Action: TypeAlias = Reverts | Create | Apply | Marking | Rebase
"""The actions: a request asks either for one of them or for edits."""


@record
class Fork:
    """The facts about the parent that a `create` commit records. They are read from the log of the parent.

    The fields have the meaning that they have in `Commit`. `origin` is None for a change set that begins empty.
    `checkpoint` is the checkpoint of the parent. `covers` is the log sequence of the parent up to which its derived
    values are correct. `unknown` are the functions that the writer of the parent's newest commit lacked. `blobs` are
    the addresses of the blobs that the new log needs. `branch` is a summary of the new change set.
    """

    branch: BranchSummary
    origin: Origin | None = None
    checkpoint: CheckpointRef | None = None
    covers: int | None = None
    unknown: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()


@record
class Contested:
    """A conflict of a branch with its target: both sides replaced the definition `left`, each with a different one.

    The definition in the target is in `Branch.changes`. `told` is the log sequence of the replay that recorded the
    conflict.
    """

    left: Definition
    told: int


@record
class Changed:
    """A value that a branch changed: its definition at the base, and in the branch (`here`). `contested` is the
    conflict, if any."""

    base: Definition
    here: Definition
    contested: Contested | None = None

    @property
    def is_level(self) -> bool:
        """Whether the value was edited back to its base."""
        return same_definition(self.base, self.here)


@dataclass(slots=True)
class Branch:
    """The state of a change set that a `create` commit began, at log sequence `birth`.

    A change set without a `create` commit also has such a state once it has been closed, with a `birth` of 0.

    `origin` is its parent (empty if it began empty), as of log sequence `origin_sequence`. `target` is the change set
    that it branches from (empty for none), as of log sequence `base`. `changes` contains, by id, the definition at the
    base of each value that was edited in the branch. `conflicts` contains, by id, the conflicts about these values.
    `own` is the log sequence of the newest commit with edits made in the branch, not taken over from the target;
    `birth` if there is none. If `follows` is true, the owner of the branch pulls the changes of the target without a
    request.
    """

    birth: int
    origin: str = ""
    origin_sequence: int = 0
    target: str = ""
    base: int = 0
    status: BranchStatus = BranchStatus.OPEN
    changes: dict[str, Definition] = field(default_factory=dict)
    conflicts: dict[str, Contested] = field(default_factory=dict)
    own: int = 0
    follows: bool = False

    @classmethod
    def of(cls, sequence: int, origin: Origin | None, status: BranchStatus | None, parent: "Branch | None") -> "Branch":
        """Return the branch that the `create` commit at `sequence` begins.

        `parent` is the branch state of the parent change set; None if the parent has none. If the target of the new
        branch is not its parent, it is the parent's target. Then the branch begins with the parent's changes.
        """
        status = BranchStatus.OPEN if status is None else status
        if origin is None:
            return cls(sequence, status=status, own=sequence)
        branch = cls(sequence, origin.change_set, origin.sequence, origin.target, origin.base, status, own=sequence)
        branch.follows = origin.follows
        if origin.target != origin.change_set and parent is not None:
            branch.changes, branch.conflicts = dict(parent.changes), dict(parent.conflicts)
        return branch

    def set_changes(self, changes: Mapping[str, Changed]) -> None:
        """Set the changes and conflicts that a checkpoint contains."""
        self.changes = {id_: changed.base for id_, changed in changes.items()}
        self.conflicts = {id_: changed.contested for id_, changed in changes.items() if changed.contested is not None}

    def edit(self, id_: str, here: Callable[[str], Definition]) -> None:
        """Record an edit of `id_`. `here` returns its definition before the edit."""
        if self.target and id_ not in self.changes:
            self.changes[id_] = here(id_)

    def take(self, id_: str) -> None:
        """Record that `id_` was taken over from the target: it is neither changed nor in conflict any more."""
        self.changes.pop(id_, None)
        self.conflicts.pop(id_, None)

    def fold(self, sequence: int, commit: Commit, here: Callable[[str], Definition], step: int) -> Iterator[None]:
        """Update the branch from the commit at log sequence `sequence`. The delta of the commit must have been applied
        before.

        `here` returns the definition of an id. Yields after each `step` ids.
        """
        for id_ in commit.settled:
            self.conflicts.pop(id_, None)
        replay = commit.replay
        if replay is None:
            self.own = sequence if commit.delta else self.own
            return
        if replay.strategy is not Strategy.RECORD:
            self.own = sequence
        left = {update.id: Contested(definition_of(update), sequence) for update in replay.conflicts}
        for start in range(0, len(replay.bases), step):
            if start:
                yield
            for update in replay.bases[start : start + step]:
                self._rebase(update.id, definition_of(update), here(update.id), left.get(update.id))
        assert commit.source is not None  # noqa: S101 - the decoder gives each `replay` commit one
        self.target, self.base = commit.source.change_set, commit.source.sequence
        self.status = self.status if commit.status is None else commit.status

    def _rebase(self, id_: str, base: Definition, ours: Definition, contested: Contested | None) -> None:
        """Record that `id_` has a new base, and whether it is in conflict now. `ours`: its definition in the branch."""
        if same_definition(base, ours):
            self.changes.pop(id_, None)
        else:
            self.changes[id_] = base
        if contested is None:
            self.conflicts.pop(id_, None)
        else:
            self.conflicts[id_] = contested

    def summary(self, edited: Iterable[Update] = (), settled: Sequence[str] = ()) -> BranchSummary:
        """Return the summary of this branch once the updates `edited` are applied; they resolve the conflicts about
        `settled`."""
        changes, conflicts = len(self.changes), len(self.conflicts) - len(settled)
        if self.target:
            changes += len({update.id for update in edited if update.id not in self.changes})
        about = (changes, conflicts, self.origin, self.origin_sequence, self.birth, self.follows)
        return BranchSummary(self.target, self.base, self.status, *about)


def differing(changes: Iterable[tuple[str, Definition]], here: Callable[[str], Definition]) -> Iterator[PatchEntry]:
    """Yield, as a patch from the base, the changes whose definition according to `here` differs from the definition at
    the base."""
    for id_, base in changes:
        ours = here(id_)
        if not same_definition(base, ours):
            yield PatchEntry(id_, base, ours)

"""Defines the requests to create, apply and rebase a branch, and the state of a branch.

Invariant, the law of branches: undoing the `changes` of a branch gives the definitions that its target had at the base.
For each id, `changes.get(id, definition in the branch)` is the definition in the target at the base.

The state of a branch depends only on the commits of the branch. An id whose definition was changed back to that at the
base may stay in `changes` until the next checkpoint. Readers of `changes` must therefore compare the definitions, for
instance with `differing`.
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
    """The request to create a change set.

    The new change set begins with the values that `parent` had at log sequence `at` (None: at its newest commit), or
    without values if `parent` is None. `target` is the target of the new change set: either the parent (None) or the
    target of the parent. If `closed` is true, the new change set accepts no edits. If `follows` is true, the server
    that owns the new change set regularly rebases it onto its target's newest edits.
    """

    parent: str | None = None
    at: int | None = None
    target: str | None = None
    closed: bool = False
    follows: bool = True


@record
class Apply:
    """The request to apply the changes of the branch `source` to its target.

    The changes are those that the branch has at its log sequence `at` (None: at its newest commit). If `strict` is
    true, the request is refused if the target was edited after the base of the branch. If `allow_stale` is true, the
    request is accepted even if derived values of the branch are not up to date. If `keep` is true, the branch stays
    open even if all of its edits are applied.
    """

    source: str
    at: int | None = None
    strict: bool = False
    allow_stale: bool = False
    keep: bool = False


@record
class Rebase:
    """The request to rebase a branch, that is, to take over the edits that its target has received since the base.

    `upto` is the log sequence of the target's last commit to take over (None: the newest). `onto` is the new target of
    the branch, which must be the target of the current target (None: the target does not change).

    After a server has applied a branch to its target, it sends a rebase to the branch. Only this kind of rebase has
    `settles`, the branch's log sequence up to which it was applied. Its `upto` is the log sequence of the target's
    commit that applied the branch.
    """

    upto: int | None = None
    onto: str | None = None
    strategy: Strategy = Strategy.RECORD
    settles: int | None = None


Action: TypeAlias = Reverts | Create | Apply | Marking | Rebase
"""An action other than an edit. A request contains either one action or edits."""


@record
class Fork:
    """The facts about the parent that a `create` commit records. They are read from the parent's log.

    The fields have the same meaning as in `Commit`. `origin` is None for a change set that begins empty. `checkpoint`
    is the parent's newest checkpoint. `covers` is the log sequence up to which the parent's derived values are up to
    date. `unknown` contains the functions that were missing on the server that wrote the parent's newest commit.
    `blobs` are the addresses of the blobs that the new log needs. `branch` is a summary of the new change set.
    """

    branch: BranchSummary
    origin: Origin | None = None
    checkpoint: CheckpointRef | None = None
    covers: int | None = None
    unknown: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()


@record
class Contested:
    """A conflict between a branch and its target: both replaced the definition of a value, but with different
    definitions.

    `base` is the definition that both replaced. `recorded_at` is the log sequence of the `replay` commit that recorded
    the conflict. The target's new definition is in `Branch.changes`.
    """

    base: Definition
    recorded_at: int


@record
class Changed:
    """A value that a branch changed, with its definition at the base (`base`) and in the branch (`here`). `contested`
    is the conflict about this value, or None if there is no conflict."""

    base: Definition
    here: Definition
    contested: Contested | None = None

    @property
    def is_level(self) -> bool:
        """Whether the value was changed back, so that it has the same definition in the branch as at the base."""
        return same_definition(self.base, self.here)


@dataclass(slots=True)
class Branch:
    """The state that a change set has in addition to its values, if its log begins with a `create` commit.

    `birth` is the log sequence of the `create` commit. A change set without such a commit also has this state once it
    has been closed; its `birth` is then 0.

    `origin` is the parent of the change set, or empty if the change set began without values. `origin_sequence` is the
    parent's log sequence at which the change set was created. `target` is the change set to which the branch can be
    applied (empty for none), and `base` is the log sequence up to which the branch contains the target's edits.
    `changes` maps the id of each value that was edited in the branch to its definition at the base, and `conflicts`
    maps ids of these values to their conflicts. `own` is the log sequence of the newest commit with edits that were
    made in the branch itself; if there is no such commit, it is `birth`. If `follows` is true, the owner of the branch
    takes over edits of the target automatically.
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
        """Return the state of a branch right after its `create` commit, which has the log sequence `sequence`.

        `parent` is the parent's own `Branch`, or None if the parent has none. If the target of the new branch is the
        target of its parent, the new branch begins with the changes of its parent.
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
        """Replace the changes and conflicts of this branch with `changes`, which come from a checkpoint."""
        self.changes = {id_: changed.base for id_, changed in changes.items()}
        self.conflicts = {id_: changed.contested for id_, changed in changes.items() if changed.contested is not None}

    def edit(self, id_: str, here: Callable[[str], Definition]) -> None:
        """Record that `id_` is about to be edited. `here` returns the current definition of an id."""
        if self.target and id_ not in self.changes:
            self.changes[id_] = here(id_)

    def take(self, id_: str) -> None:
        """Record that the branch has taken over the target's definition of `id_`, which is then neither changed nor in
        conflict."""
        self.changes.pop(id_, None)
        self.conflicts.pop(id_, None)

    def fold(self, sequence: int, commit: Commit, here: Callable[[str], Definition], step: int) -> Iterator[None]:
        """Fold the commit at log sequence `sequence` into this state. The commit's delta must already have been applied
        to the values.

        `here` returns the current definition of an id. The generator yields after every `step` ids, so that other work
        can run in between.
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
        assert commit.source is not None  # noqa: S101 - each decoded `replay` commit has a source
        self.target, self.base = commit.source.change_set, commit.source.sequence
        self.status = self.status if commit.status is None else commit.status

    def _rebase(self, id_: str, base: Definition, ours: Definition, contested: Contested | None) -> None:
        """Record `base` as the definition of `id_` at the new base, and `contested` as its conflict, if any. `ours` is
        the definition of `id_` in the branch."""
        if same_definition(base, ours):
            self.changes.pop(id_, None)
        else:
            self.changes[id_] = base
        if contested is None:
            self.conflicts.pop(id_, None)
        else:
            self.conflicts[id_] = contested

    def summary(self, edited: Iterable[Update] = (), settled: Sequence[str] = ()) -> BranchSummary:
        """Return the summary that this branch will have once the updates `edited` are applied and the conflicts about
        the ids `settled` are resolved."""
        changes, conflicts = len(self.changes), len(self.conflicts) - len(settled)
        if self.target:
            changes += len({update.id for update in edited if update.id not in self.changes})
        about = (changes, conflicts, self.origin, self.origin_sequence, self.birth, self.follows)
        return BranchSummary(self.target, self.base, self.status, *about)


def differing(changes: Iterable[tuple[str, Definition]], here: Callable[[str], Definition]) -> Iterator[PatchEntry]:
    """Yield a patch entry for each id in `changes` whose current definition differs from its definition at the base.

    `changes` contains pairs of an id and its definition at the base. `here` returns the current definition of an id.
    """
    for id_, base in changes:
        ours = here(id_)
        if not same_definition(base, ours):
            yield PatchEntry(id_, base, ours)

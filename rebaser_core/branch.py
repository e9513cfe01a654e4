"""Change sets that branch from others: what a request to create one asks for, and the state of a branch.

Invariant, the law of branches: whoever undoes the `changes` of a branch gets the definitions of its target at its base.
For each id: `changes.get(id, definition here)` is the definition of the target at the base.

The state of a branch follows from its commits alone. An id that was edited back to its base may stay in `changes` until
the next checkpoint, so readers must compare (`differing`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from rebaser_core.commit import BranchStatus, BranchSummary, CheckpointRef, Marking, Origin, Reverts, Strategy
from rebaser_core.merge import Definition, PatchEntry, same_definition
from rebaser_core.record import record
from rebaser_core.updates import Update


@record
class Create:
    """The request to create a change set from `parent` as of log sequence `at` (None: now), or an empty one.

    `target`: the change set to branch from: the parent (None), or the target of the parent. `closed`:
    the new change set accepts no edits.
    """

    parent: str | None = None
    at: int | None = None
    target: str | None = None
    closed: bool = False


@record
class Apply:
    """The request to apply the changes of the branch `source` to its target, as of log sequence `at` (None: now).

    `strict`: only if the target was not edited after the base of the branch. `allow_stale`: also if derived values of
    the branch are not up to date. `keep`: the branch stays open, even if all of its edits are applied.
    """

    source: str
    at: int | None = None
    strict: bool = False
    allow_stale: bool = False
    keep: bool = False


@record
class Rebase:
    """The request to a branch to take over what its target changed since the base, up to log sequence `upto`
    (None: now).

    `onto`: the new target, which must be the target of the present one (None: the target stays). `settles`: the request
    comes from the server that applied the branch as of this log sequence, in the commit `upto` of the target.
    """

    upto: int | None = None
    onto: str | None = None
    strategy: Strategy = Strategy.RECORD
    settles: int | None = None


Action: TypeAlias = Reverts | Create | Apply | Marking | Rebase
"""What a request asks for instead of edits."""


@record
class Fork:
    """What a `create` commit says of the parent, as it was read from the log of the parent.

    The fields have the meaning that they have in `Commit`. `origin`: None for a change set that begins empty.
    `checkpoint`: that of the parent. `covers`: up to where the derived values of the parent are correct. `unknown`:
    functions that the writer of the parent's newest commit lacked. `blobs`: those that the new log needs. `branch`: the
    new change set.
    """

    branch: BranchSummary
    origin: Origin | None = None
    checkpoint: CheckpointRef | None = None
    covers: int | None = None
    unknown: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()


@dataclass(slots=True)
class Branch:
    """The state of a change set that a `create` commit began, at log sequence `birth`.

    A change set that no `create` commit began has one, too, once it was closed: its `birth` is 0.

    `origin`: its parent (empty if it began empty), as of log sequence `origin_sequence`. `target`: what it branches
    from (empty for none), as of log sequence `base`. `changes`: by id, the definition at the base of each value that
    was edited here.
    """

    birth: int
    origin: str = ""
    origin_sequence: int = 0
    target: str = ""
    base: int = 0
    status: BranchStatus = BranchStatus.OPEN
    changes: dict[str, Definition] = field(default_factory=dict)

    @classmethod
    def of(cls, sequence: int, origin: Origin | None, status: BranchStatus | None, parent: "Branch | None") -> "Branch":
        """Return the branch that the `create` commit at `sequence` begins.

        `parent`: the branch state of the change set that it is created from; None if that has none. If the target of
        the new branch is not its parent, it is the parent's target. Then the branch begins with the parent's changes.
        """
        status = BranchStatus.OPEN if status is None else status
        if origin is None:
            return cls(sequence, status=status)
        changes: dict[str, Definition] = {}
        if origin.target != origin.change_set and parent is not None:
            changes = dict(parent.changes)
        return cls(sequence, origin.change_set, origin.sequence, origin.target, origin.base, status, changes)

    def edit(self, id_: str, here: Callable[[str], Definition]) -> None:
        """Record an edit of `id_`. `here` returns its definition before the edit."""
        if self.target and id_ not in self.changes:
            self.changes[id_] = here(id_)

    def summary(self, edited: Iterable[Update] = ()) -> BranchSummary:
        """What a header says of this branch once `edited` is applied."""
        changes = len(self.changes)
        if self.target:
            changes += len({update.id for update in edited if update.id not in self.changes})
        origin = self.origin, self.origin_sequence
        return BranchSummary(self.target, self.base, self.status, changes, 0, *origin, self.birth)


def differing(changes: Iterable[tuple[str, Definition]], here: Callable[[str], Definition]) -> Iterator[PatchEntry]:
    """The changes whose definition `here` is not the one at the base, as a patch from the base."""
    for id_, base in changes:
        ours = here(id_)
        if not same_definition(base, ours):
            yield PatchEntry(id_, base, ours)

"""Replays the target of a branch: decides which of the target's changes the branch takes over, and which are in
conflict.

Invariant: a replay overwrites no edit of the branch, unless the request asks for that. If both sides defined an id
differently, the definition of the branch stays, and the conflict is recorded with the definition that both sides
replaced. After the replay, the law of branches (`rebaser_core.branches.branch`) holds for the new base.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field

from rebaser_core.branches.branch import Branch
from rebaser_core.branches.merge import Definition, definition_of, same_definition
from rebaser_core.commit import BranchStatus, BranchSummary, Commit, Kind, Replay, Source, Strategy
from rebaser_core.errors import UnprocessableError
from rebaser_core.record import record
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Remove, Update


@record
class Theirs:
    """The changes that the target of a branch made after `base`, the base of the branch.

    `source` is the target and its log sequence, which becomes the new base. `definitions` contains, by id, the
    definition in the target of each value that the target defined or removed after the base. `applied` is the position
    of the branch that the target applied after the base. It is None if it applied none. `agreed` contains, by id, the
    definitions at that position of the values that the branch had changed; the apply gave the target the same
    definitions. `applied_in` and `applied_ms`: the log sequence of the apply in the target, and its time (Unix ms); 0
    if there is none.
    """

    source: Source
    base: int
    definitions: Mapping[str, Definition]
    applied: Source | None = None
    agreed: Mapping[str, Definition] = field(default_factory=dict)
    applied_in: int = 0
    applied_ms: int = 0

    def fits(self, branch: Branch) -> bool:
        """Return whether these changes still fit `branch`: its base has not moved since they were read."""
        return branch.base == self.base


def refuse_rebase(state: ChangeSetState) -> UnprocessableError | None:
    """Return why the change set cannot replay its target; None if it can.

    The code is `closed`, `not_a_branch` or `protected`.
    """
    branch = state.branch
    if branch is not None and branch.status is not BranchStatus.OPEN:
        return UnprocessableError(
            f"this change set is closed ({branch.status}): it cannot be rebased unless it is reopened", code="closed"
        )
    if branch is None or not branch.target:
        return UnprocessableError("this change set is not a branch of another", code="not_a_branch")
    if state.protected:
        return UnprocessableError("this change set is protected: it cannot be rebased", code="protected")
    return None


def check_moves(branch: Branch, born: int, source: Source) -> None:
    """Check that `branch` can replay `source`, its target, which was created at log sequence `born` (0: by an edit).

    Raises `UnprocessableError` with code `moved` if the target was created after the base of the branch. In that case,
    the branch was created from an earlier change set of the same name.
    """
    if born > branch.base:
        raise UnprocessableError(
            f"{source.change_set} was created again in commit {born}, after the base {branch.base} of the branch",
            code="moved",
        )


class TargetCommits:
    """The changes of consecutive commits of a target. `definitions` is as in `Theirs`.

    `applied` is the position of the branch `name` that the newest apply among these commits took; `applied_in` and
    `applied_ms` are the sequence and time of that commit. If no commit applied the branch, `applied` is None and the
    others are 0. `birth` is the sequence of the commit that created the branch. An apply of an older position took an
    earlier branch of the same name.
    """

    def __init__(self, name: str, birth: int) -> None:
        self.definitions: dict[str, Definition] = {}
        self.applied: Source | None = None
        self.applied_in = 0
        self.applied_ms = 0
        self._name = name
        self._birth = birth

    def add(self, commit: Commit) -> None:
        """Add the next commit without its delta."""
        source = commit.source if commit.kind is Kind.REBASE else None
        if source is not None and source.change_set == self._name and source.sequence >= self._birth:
            self.applied, self.applied_in, self.applied_ms = source, commit.sequence, commit.at_ms

    def add_updates(self, updates: Iterable[Update]) -> None:
        """Add updates of the next commit."""
        for update in updates:
            self.definitions[update.id] = definition_of(update)


class Replayed:
    """The changes that a branch takes over from `theirs`: `delta`, and the `bases` and `conflicts` of the commit
    (`commit.Replay`).

    `status`: APPLIED if the replay closes the branch, because the target has all edits made in the branch; otherwise
    None. `changes` and `unresolved`: how many changes and conflicts the branch has after the replay. All of these are
    known once `compare` has run.
    """

    def __init__(self, branch: Branch, theirs: Theirs, strategy: Strategy) -> None:
        applied = theirs.applied
        done = applied is not None and not applied.keep and branch.own <= applied.sequence
        self.source = theirs.source
        self.status = BranchStatus.APPLIED if done else None
        self.delta: list[Update] = []
        self.bases: list[Update] = []
        self.conflicts: list[Update] = []
        self.changes = len(branch.changes)
        self.unresolved = len(branch.conflicts)
        self._branch = branch
        self._theirs = theirs
        self._strategy = strategy

    def content(self) -> Replay:
        """Return the part of the commit about the ids that stay changed."""
        return Replay(tuple(self.bases), tuple(self.conflicts), self._strategy)

    def summary(self) -> BranchSummary:
        """Return the summary of the branch after the replay, for a header."""
        branch, target = self._branch, self.source
        status = branch.status if self.status is None else self.status
        about = (self.changes, self.unresolved, branch.origin, branch.origin_sequence, branch.birth, branch.follows)
        return BranchSummary(target.change_set, target.sequence, status, *about)

    def compare(self, here: Callable[[str], Definition], step: int) -> Iterator[None]:
        """Compare the definitions in the target with those in the branch, which `here` returns. Yields after `step`
        ids."""
        for count, (id_, their) in enumerate(self._compared(here), 1):
            self._add(id_, their, here(id_))
            if count % step == 0:
                yield

    def _compared(self, here: Callable[[str], Definition]) -> Iterator[tuple[str, Definition]]:
        """Yield the ids to compare, each with its definition in the target.

        These are: ids that the target changed; ids in conflict, because a conflict may end even if the target changed
        nothing; and ids that the target took from the branch, because the branch may have changed them back since.
        """
        theirs, changes = self._theirs, self._branch.changes
        yield from theirs.definitions.items()
        for id_ in dict.fromkeys([*self._branch.conflicts, *theirs.agreed]):
            if id_ not in theirs.definitions:
                yield id_, changes[id_] if id_ in changes else here(id_)

    def _add(self, id_: str, their: Definition, ours: Definition) -> None:
        branch, strategy, agreed = self._branch, self._strategy, id_ in self._theirs.agreed
        base = self._theirs.agreed[id_] if agreed else branch.changes.get(id_, ours)
        # The apply gave the target the branch's definition, so an older conflict about the id has ended.
        known = None if agreed else branch.conflicts.get(id_)
        left = base if known is None else known.left
        moved = not same_definition(their, base)
        if same_definition(ours, their):
            self._rebase(id_, their, level=True)
        elif same_definition(ours, left) or (strategy is Strategy.THEIRS and (moved or known is not None)):
            self._take(id_, their)
        elif strategy is Strategy.OURS or (agreed and not moved):
            self._rebase(id_, their)
        elif moved:
            in_conflict = not same_definition(their, left)  # if false, the target has the common definition again
            self._rebase(id_, their, in_conflict=in_conflict)
            if in_conflict:
                self.conflicts.append(_update(id_, left))

    def _take(self, id_: str, their: Definition) -> None:
        self.delta.append(_update(id_, their))
        self.changes -= id_ in self._branch.changes
        self.unresolved -= id_ in self._branch.conflicts

    def _rebase(self, id_: str, their: Definition, *, level: bool = False, in_conflict: bool = False) -> None:
        """Keep the definition in the branch, with `their` as its base. `level`: both are the same."""
        changed = id_ in self._branch.changes
        if level and not changed:
            return  # the branch did not change the id, and has the same definition as the target
        self.bases.append(_update(id_, their))
        self.changes += (not level) - changed
        self.unresolved += in_conflict - (id_ in self._branch.conflicts)


def _update(id_: str, definition: Definition) -> Update:
    return Remove(id_) if definition is None else definition

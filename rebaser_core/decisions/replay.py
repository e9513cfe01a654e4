"""Rebases a branch: decides which changes of its target the branch takes over, and which are in conflict.

The commit that results is called a replay. Invariant: a replay overwrites no edit of the branch, unless the strategy of
the request says so. If both sides defined an id differently, the definition of the branch stays, and the conflict is
recorded with the definition that both sides replaced. After the replay, the law of branches
(`rebaser_core.branches.branch`) holds for the new base.
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
    """The changes that the target of a branch has received since `base`, the base of the branch.

    `source` is the target with the log sequence that becomes the new base. `definitions` maps each id that the target
    has defined or removed since the base to its definition in the target.

    If the target has applied the branch since the base, `applied` is the branch and the position up to which it was
    applied; otherwise it is None. `applied_in` and `applied_ms` are the log sequence and the Unix time of the commit
    that applied it, or 0. `agreed` maps each id that the branch had changed at this position to its definition there.
    The apply gave the target the same definitions.
    """

    source: Source
    base: int
    definitions: Mapping[str, Definition]
    applied: Source | None = None
    agreed: Mapping[str, Definition] = field(default_factory=dict)
    applied_in: int = 0
    applied_ms: int = 0

    def fits(self, branch: Branch) -> bool:
        """Return whether these changes can be used for `branch`, which is the case if its base has not moved since they
        were read."""
        return branch.base == self.base


def refuse_rebase(state: ChangeSetState) -> UnprocessableError | None:
    """Return the reason why the change set with `state` cannot be rebased, or None. The code is `closed`,
    `not_a_branch` or `protected`."""
    branch = state.branch
    if branch is not None and branch.status is not BranchStatus.OPEN:
        return UnprocessableError(
            f"this change set is closed ({branch.status}): it cannot be rebased unless it is reopened", code="closed"
        )
    if branch is None or not branch.target:
        return UnprocessableError(
            "this change set is not a branch of another one, so it cannot be rebased", code="not_a_branch"
        )
    if state.protected:
        return UnprocessableError(
            "this change set is protected: it cannot be rebased unless its protection is ended", code="protected"
        )
    return None


def check_moves(branch: Branch, born: int, source: Source) -> None:
    """Raise `UnprocessableError` with code `moved` if the target of `branch` was created after the base of the branch.

    In this case, the branch was created from an earlier change set with the same name as the target. `source` is the
    target. `born` is the log sequence of the `create` commit that created the target, or 0 if there is none.
    """
    if born > branch.base:
        raise UnprocessableError(
            f"{source.change_set} was created again in commit {born}, after the base {branch.base} of this branch: "
            "create a new branch",
            code="moved",
        )


class TargetCommits:
    """Collects the changes of consecutive commits of a target.

    `name` is the branch, and `birth` the log sequence of the commit that created it. The attributes `definitions`,
    `applied`, `applied_in` and `applied_ms` have the same meaning as in `Theirs`; the last three describe the newest of
    these commits that applied the branch. A commit that applied a position before `birth` is ignored, because it
    applied an earlier branch of the same name.
    """

    def __init__(self, name: str, birth: int) -> None:
        self.definitions: dict[str, Definition] = {}
        self.applied: Source | None = None
        self.applied_in = 0
        self.applied_ms = 0
        self._name = name
        self._birth = birth

    def add(self, commit: Commit) -> None:
        """Add the next commit. Its updates are added separately, by `add_updates`."""
        source = commit.source if commit.kind is Kind.REBASE else None
        if source is not None and source.change_set == self._name and source.sequence >= self._birth:
            self.applied, self.applied_in, self.applied_ms = source, commit.sequence, commit.at_ms

    def add_updates(self, updates: Iterable[Update]) -> None:
        """Add updates of the commit that was added last."""
        for update in updates:
            self.definitions[update.id] = definition_of(update)


class Replayed:
    """The content of the `replay` commit that rebases a branch onto the changes `theirs` of its target.

    `delta` contains the definitions that the branch takes over. `bases` and `conflicts` have the same meaning as in
    `commit.Replay`. `changes` and `unresolved` are the numbers of changes and conflicts that the branch has after the
    commit. These attributes are valid once `compare` has run. `status` is APPLIED if the target contains all edits that
    were made in the branch, so that the commit closes the branch; otherwise it is None.
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
        """Return the field `replay` of the commit."""
        return Replay(tuple(self.bases), tuple(self.conflicts), self._strategy)

    def summary(self) -> BranchSummary:
        """Return the summary that the branch has after the replay, for a header of the commit."""
        branch, target = self._branch, self.source
        status = branch.status if self.status is None else self.status
        about = (self.changes, self.unresolved, branch.origin, branch.origin_sequence, branch.birth, branch.follows)
        return BranchSummary(target.change_set, target.sequence, status, *about)

    def compare(self, here: Callable[[str], Definition], step: int) -> Iterator[None]:
        """Compare the definitions in the target with those in the branch, which `here` returns. The generator yields
        after every `step` ids, so that other work can run in between."""
        for count, (id_, their) in enumerate(self._compared(here), 1):
            self._add(id_, their, here(id_))
            if count % step == 0:
                yield

    def _compared(self, here: Callable[[str], Definition]) -> Iterator[tuple[str, Definition]]:
        """Yield the ids to compare, each with its definition in the target.

        They are the ids that the target changed, the ids in conflict, and the ids that the target took from the branch.
        The last two groups are compared even if the target did not change their ids, because an edit of the branch may
        have ended a conflict, and the branch may have edited an id again after the target took it.
        """
        theirs, changes = self._theirs, self._branch.changes
        yield from theirs.definitions.items()
        for id_ in dict.fromkeys([*self._branch.conflicts, *theirs.agreed]):
            if id_ not in theirs.definitions:
                yield id_, changes[id_] if id_ in changes else here(id_)

    def _add(self, id_: str, their: Definition, ours: Definition) -> None:
        branch, strategy, agreed = self._branch, self._strategy, id_ in self._theirs.agreed
        base = self._theirs.agreed[id_] if agreed else branch.changes.get(id_, ours)
        # If the target took the definition from the branch, an older conflict about the id has ended.
        known = None if agreed else branch.conflicts.get(id_)
        common = base if known is None else known.base
        moved = not same_definition(their, base)
        if same_definition(ours, their):
            self._rebase(id_, their, level=True)
        elif same_definition(ours, common) or (strategy is Strategy.THEIRS and (moved or known is not None)):
            self._take(id_, their)
        elif strategy is Strategy.OURS or (agreed and not moved):
            self._rebase(id_, their)
        elif moved:
            in_conflict = not same_definition(their, common)  # false if the target returned to the common definition
            self._rebase(id_, their, in_conflict=in_conflict)
            if in_conflict:
                self.conflicts.append(_update(id_, common))

    def _take(self, id_: str, their: Definition) -> None:
        self.delta.append(_update(id_, their))
        self.changes -= id_ in self._branch.changes
        self.unresolved -= id_ in self._branch.conflicts

    def _rebase(self, id_: str, their: Definition, *, level: bool = False, in_conflict: bool = False) -> None:
        """Keep the definition in the branch, and make `their` its base. `level` says whether the two are equal, and
        `in_conflict` whether the id is in conflict from now on."""
        changed = id_ in self._branch.changes
        if level and not changed:
            return  # the branch did not change the id, so there is nothing to record
        self.bases.append(_update(id_, their))
        self.changes += (not level) - changed
        self.unresolved += in_conflict - (id_ in self._branch.conflicts)


def _update(id_: str, definition: Definition) -> Update:
    return Remove(id_) if definition is None else definition

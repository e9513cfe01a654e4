"""Checks whether a branch can be applied to its target.

Invariant: an apply takes all edits of the branch up to one position. It never overwrites an edit of the target that the
branch does not contain. If both have changed a definition, they are in conflict, and nothing is applied.
"""

from rebaser_core.branches.branch import Apply
from rebaser_core.branches.merge import PatchEntry
from rebaser_core.commit import BranchStatus, BranchSummary, Source
from rebaser_core.errors import UnprocessableError
from rebaser_core.record import record
from rebaser_core.state.change_set import ChangeSetState


@record
class Offer:
    """The changes of a branch that are to be applied to its target.

    `source` is the branch and its position, `base` is the base of the branch (a log sequence of the target), and
    `patch` contains the changes of the branch since the base.
    """

    source: Source
    base: int
    patch: tuple[PatchEntry, ...]


def check_source(target: str, source: Source, now: BranchSummary | None, then: BranchSummary | None) -> None:
    """Check that the branch `source` can be applied to `target`.

    `now` is the branch's newest summary, and `then` is its summary at the position in `source`. If the branch cannot be
    applied, raise `UnprocessableError` with code `closed`, `deleted`, `not_its_target` or `unresolved`.
    """
    name = source.change_set
    if now is not None and now.status is BranchStatus.DELETED:
        raise UnprocessableError(f"{name} is deleted: reopen it before you apply it", code="deleted")
    if then is not None and then.status is BranchStatus.DELETED:
        raise UnprocessableError(
            f"{name} was deleted at position {source.sequence}: choose another position", code="deleted"
        )
    if now is not None and now.status is not BranchStatus.OPEN:
        raise UnprocessableError(
            f"{name} is closed ({now.status}): it cannot be applied unless it is reopened", code="closed"
        )
    if then is None or then.target != target:
        other = f"whose target is {then.target}" if then is not None and then.target else "which has no target"
        raise UnprocessableError(f"{target} is not the target of {name}, {other}", code="not_its_target")
    if then.conflicts:
        raise UnprocessableError(
            f"{name}@{source.sequence} has {then.conflicts} unresolved conflict{'' if then.conflicts == 1 else 's'}:"
            " resolve them in the branch first",
            code="unresolved",
        )


def check_target(
    state: ChangeSetState, apply: Apply, offer: Offer, expect_at: int | None = None
) -> UnprocessableError | None:
    """Return the reason why the target must refuse `offer`, or None if it may apply the branch. `state` is the target's
    state, and `expect_at` the log sequence up to which the sender has seen the target (None: unknown).

    The error code is `moved` if the branch was created from an earlier change set that had the target's name, if the
    target was edited after `expect_at`, or if `apply` is strict and the target was edited after the base. The code is
    `behind` if the target has already applied the branch after the base.
    """
    name, base = offer.source.change_set, offer.base
    birth = 0 if state.branch is None else state.branch.birth
    if birth > base:
        return UnprocessableError(
            f"this target was created after the base {base} of {name}, which branches from an earlier change set of the"
            " same name: create a new branch",
            code="moved",
        )
    taken = state.taken.get(name, 0)
    if taken > base:
        return UnprocessableError(
            f"{name} was already applied in commit {taken}, after its base {base}: rebase it first", code="behind"
        )
    if expect_at is not None and state.edited > expect_at:
        return UnprocessableError(
            f"this change set was edited by commit {state.edited}, after the expected commit {expect_at}: review {name}"
            " again before you apply it",
            code="moved",
        )
    if apply.strict and state.edited > base:
        return UnprocessableError(
            f"this change set was edited by commit {state.edited}, after the base {base} of {name}: rebase it first",
            code="moved",
        )
    return None

"""Checks the decisions on requests to apply a branch, to protect or close a change set, and to delete it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rebaser_core.branches.branch import Apply, Create
from rebaser_core.commit import BranchStatus, Commit, Decision, Kind, Marking, Outcome
from rebaser_core.messages import read_protected, read_source
from rebaser_core.updates import Remove, Update
from tests.simulation.book import Book
from tests.simulation.forks import action_of

if TYPE_CHECKING:
    from tests.simulation.history import Asked, History


def merged(branch: Book, position: int, target: Book, base: int) -> tuple[list[Update], list[str]]:
    """Return the edits, by id, that bring the state of `branch` at `position` into `target`, and the ids in conflict.

    The changes of the branch are its differences from its target at the base.
    """
    theirs, stood, here = branch.as_of[position], target.as_of[base], target.definitions
    edits: list[Update] = []
    conflicts = []
    for id_ in sorted({*theirs, *stood}):
        ours = repr(here.get(id_))
        if repr(theirs.get(id_)) in (repr(stood.get(id_)), ours):
            continue
        if ours != repr(stood.get(id_)):
            conflicts.append(id_)
        edits.append(theirs.get(id_) or Remove(id_))
    return edits, conflicts


def positions(source: "History", apply: Apply, asked: "Asked") -> Iterator[int]:
    """Yield the positions of the branch that the apply may have used."""
    own = sorted(source.times)
    if apply.at is not None:
        yield from [one for one in own if one <= apply.at][-1:]
        return
    older = [one for one in own if source.times[one] <= asked.knows]
    yield from [one for one in own if one >= (older[-1] if older else 0)]


def edited(source: "History", position: int) -> int:
    """Return the commit that last edited the change set at or before the position."""
    return max([source.birth, *(one for one in source.deltas if one <= position)])


def expected_by(asked: "Asked") -> int | None:
    """Return the position of the target that the request expects; None if it expects none."""
    return None if asked.message is None else asked.message.expect_at


def wrong_apply(
    history: "History", source: "History | None", apply: Apply, asked: "Asked", commit: Commit
) -> tuple[str, list[Update]]:
    """Return what is wrong with a commit that applied a branch (empty: nothing), and the edits that it must have
    made."""
    at = commit.source
    if at is None or at.change_set != apply.source or source is None:
        return f"it says it applied {at}, not {apply.source}", []
    target, base = source.target_at(at.sequence)
    if at.keep != apply.keep:
        return f"it keeps the branch open: {at.keep}", []
    if at.sequence not in positions(source, apply, asked) or at.sequence < source.birth:
        return f"it applied {at.sequence}, not {apply.at}", []
    if target != history.key.change_set:
        return f"the target of {apply.source} is {target}", []
    if (source.closed and source.closed_at(asked.knows)) or history.closed:
        return "one of both is closed", []
    if history.taken_at(base=base, name=apply.source):
        return f"{apply.source} was applied after {base} already", []
    if history.birth > base:
        return "it is not what was branched from", []
    if apply.strict and history.last_edit > base:
        return f"it was edited by {history.last_edit}, after {base}", []
    expected = expected_by(asked)
    if expected is not None and max(history.last_edit, history.birth) > expected:
        return f"it was edited by {history.last_edit}, after the expected {expected}", []
    if not apply.allow_stale and source.covers < edited(source, at.sequence):
        return "derived values of the branch are not up to date", []
    if source.disputed_at.get(at.sequence):
        return f"{sorted(source.disputed_at[at.sequence])} are in conflict in {apply.source}", []
    edits, conflicts = merged(source.book, at.sequence, history.book, base)
    if not conflicts:
        theirs, stood = source.book.as_of[at.sequence], history.book.as_of[base]
        changed = {id_ for id_ in {*theirs, *stood} if repr(theirs.get(id_)) != repr(stood.get(id_))}
        source.patches[at.sequence] = changed, {update.id for update in edits}
    return (f"{conflicts} are in conflict" if conflicts else ""), edits


def wrong_apply_refusal(
    history: "History", source: "History | None", apply: Apply, asked: "Asked", decision: Decision
) -> str:
    """Return why a request to apply must not be refused with this decision; empty if the decision is right."""
    if decision.code == "self":
        return "" if apply.source == history.key.change_set else "it is another one"
    if source is None or not source.times:
        return "" if decision.code in ("no_such_change_set", "closed") else "nothing of that name exists"
    places = list(positions(source, apply, asked))
    match decision.code:
        case "conflicts":
            found = any(
                merged(source.book, one, history.book, source.target_at(one)[1])[1]
                for one in places
                if one >= source.birth and source.target_at(one)[0] == history.key.change_set
            )
            return "" if found else "nothing is in conflict"
        case "no_such_change_set":
            return "" if not places or min(source.times.values()) > asked.at else "it exists"
        case "deleted":
            then = [source.status_at(one) for one in places]
            return "" if source.gone or BranchStatus.DELETED in then else "it is not deleted"
        case "closed":
            return "" if source.closed or source.closed_at(asked.at) or history.closed else "both are open"
        case "not_its_target":
            before = any(one < source.birth for one in places)
            right = any(source.target_at(one)[0] != history.key.change_set for one in places)
            return "" if before or right or not source.birth else "it is its target"
        case "unresolved":
            return "" if any(source.disputed_at.get(one) for one in places) else "nothing is in conflict there"
        case "behind":
            late = any(history.taken_at(base=source.target_at(one)[1], name=apply.source) for one in places)
            return "" if late else "it was not applied since its base"
        case "stale":
            return "" if not apply.allow_stale else "its derived values do not matter"
        case "moved":
            bases = [source.target_at(one)[1] for one in places]
            moved = any(history.birth > base or (apply.strict and history.last_edit > base) for base in bases)
            if (expected := expected_by(asked)) is not None:
                told = [dispute.told for dispute in history.disputes.values()]
                moved |= max(history.last_edit, history.birth, *told) > expected
            return "" if moved else "nothing was edited since the base, or the expected position"
        case "purged":
            return "" if source.purged or any(one < source.birth for one in places) else "nothing is purged"
    return f"nobody knows the code {decision.code}"


def wrong_mark(history: "History", marking: Marking, decision: Decision) -> str:
    """Return what is wrong with the decision on a request to protect or close a change set; empty if nothing is."""
    used = history.last_edit or history.birth
    if decision.outcome is Outcome.SUCCESS:
        if history.protected and marking.deletes:
            return "it is protected"
        return "" if used or history.gone else f"what does not exist is marked: {marking}"
    if decision.outcome is Outcome.DEAD or (decision.code == "no_such_change_set" and not used):
        return ""
    if decision.code == "moved" or (decision.code == "protected" and history.protected and marking.deletes):
        return ""
    if decision.code == "purged" and history.deleted is not None and marking.status is BranchStatus.OPEN:
        read_from = history.reads_from[history.deleted.position]
        return "" if history.purged > read_from else f"what it was is read from {read_from}, and is there"
    return f"it is refused as {decision.code}"


def wrong_deletion(history: "History", asked: "Asked", decision: Decision, closed_for: float) -> str:
    """Return what is wrong with the decision on a sweeper's request to delete a closed change set; empty if nothing
    is."""
    at = expected_by(asked)
    if not at:
        return ""
    if decision.outcome is not Outcome.SUCCESS:
        return "" if decision.code != "moved" or history.last > at else "nothing was stored since"
    if history.last > at or history.status not in (BranchStatus.APPLIED, BranchStatus.ABANDONED):
        return f"it is {history.status}, and was changed by {history.last}"
    since = asked.at - history.times[at]
    return "" if since >= closed_for else f"it was closed for {since} s"


def wrong_as_deleted(history: "History", asked: "Asked", decision: Decision) -> str:
    """Return what is wrong with the decision on a request to a deleted change set; empty if nothing is."""
    marking = action_of(asked, Marking)
    back = marking is not None and marking.status is BranchStatus.OPEN
    if back or action_of(asked, Create) is not None:
        return "" if decision.code != "deleted" else "it may be created anew, or brought back"
    return "" if decision.code in ("deleted", "unsupported") else f"it is deleted: {decision.code or 'applied'}"


def protected_wrongly(history: "History", decision: Decision, edits: bool, deletes: bool) -> str:
    """Return a text if an edit of a protected change set was applied, or if a request was refused as `protected`
    without reason; empty otherwise."""
    if history.protected and edits and decision.outcome not in (Outcome.DEAD, Outcome.ERROR):
        return f"{decision.request_id} is applied to a protected change set"
    if decision.code == "protected" and not (history.protected and edits) and not deletes:
        return f"{decision.request_id} is refused as protected"
    return ""


def wrong_apply_headers(history: "History", commit: Commit, headers: dict[str, str]) -> str:
    """Return what is wrong with the headers of a commit; empty if nothing is."""
    applied = replace(commit.source, keep=False) if commit.source and commit.kind is Kind.REBASE else None
    if read_source(headers) != applied:
        return f"it applied {read_source(headers)}"
    return f"protected: {read_protected(headers)}" if read_protected(headers) != history.protected else ""


def wrong_apply_state(history: "History", state: Any, at: int) -> str:
    """Return what is wrong with the applied branches, the protection and the status in a checkpoint; empty if nothing
    is.

    The checkpoint has the state after the commit `at`.
    """
    taken = {name: one for one, name, _, _ in history.takes if one <= at}
    if state.taken != taken:
        return f"it has taken {state.taken}, not {taken}"
    protected = [on for one, on in history.marks if one <= at][-1:] == [True]
    if state.protected != protected:
        return f"protected: {state.protected}"
    status = history.status_at(at)
    told = BranchStatus.OPEN if state.branch is None else state.branch.status
    return f"status: {told}, not {status}" if told is not status else ""

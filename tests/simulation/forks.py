"""Checks `create` commits and deletions, and begins the books of new change sets with those of their parents."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rebaser_core.branches.branch import Changed, Create
from rebaser_core.commit import BranchStatus, Commit, Decision, Outcome
from rebaser_core.messages import decode_tail, read_branch, read_edited, read_row
from tests.simulation.book import Book, as_null
from tests.simulation.rebases import Disputed

if TYPE_CHECKING:
    from tests.simulation.history import Asked, History


A = TypeVar("A")


def action_of(asked: "Asked", kind: type[A]) -> A | None:
    """Return the action of a request if it is of this `kind`."""
    action = None if asked.message is None else asked.message.action
    return action if isinstance(action, kind) else None


def forked(parent: Book, sequence: int) -> Book:
    """Return the book of a change set that was created from `parent` as of log sequence `sequence`."""
    book = Book(
        dict(parent.as_of[sequence]),
        dict(parent.edits[sequence]),
        dict(parent.found[sequence]),
    )
    for name in ("as_of", "found", "edits"):
        older = {at: dict(stood) for at, stood in getattr(parent, name).items() if at <= sequence}
        setattr(book, name, older)
    return book


def first_edit(history: "History") -> int:
    """Return the commit that applied the first request; 0 if none did."""
    return history.birth or min(history.deltas, default=0)


def wrong_refusal(history: "History", parent: "History | None", create: Create, code: str, now: int) -> str:
    """Return why a request to create must not be refused with `code`; empty if it may. `now` is the newest commit."""
    used = (history.last_edit or history.birth) and not history.gone
    until = now if create.at is None else create.at
    exists = parent is not None and 0 < first_edit(parent) <= until
    exists = exists and parent is not None and parent.status_at(until) is not BranchStatus.DELETED
    match code:
        case "exists":
            return "" if used else "nothing was ever applied there"
        case "self":
            return "" if create.parent == history.key.change_set else "its parent is another one"
        case "no_such_change_set":
            # The owner may not have seen what was stored after that.
            return "" if not exists or create.at is None else "its parent was edited before"
        case "not_its_target":
            return "" if create.target not in (None, create.parent) else "its target is its parent"
        case "purged":
            return "" if create.at is not None else "it names no position"
    return f"nobody knows the code {code}"


def wrong_create(
    history: "History", parent: "History | None", asked: "Asked", commit: Commit, blob: Callable[[str], bytes]
) -> str:
    """Return what is wrong with a `create` commit; empty if nothing is."""
    create, origin = action_of(asked, Create), commit.origin
    if create is None:
        return "nobody asked for it"
    if (history.last_edit or history.birth) and not history.gone:
        return "the change set exists"
    if commit.status is not (BranchStatus.CLOSED if create.closed else None):
        return f"its status is {commit.status}"
    if create.parent is None or origin is None:
        return "" if create.parent is None and origin is None else "one of request and commit has no parent"
    if parent is None or origin.change_set != create.parent:
        return f"its parent is {origin.change_set}, not {create.parent}"
    at = origin.sequence
    if at not in parent.lineage or not 0 < first_edit(parent) <= at:
        return f"{at} is no commit of its parent"
    if parent.status_at(at) is BranchStatus.DELETED:
        return f"its parent was deleted at {at}"
    if create.at is not None and at != max(one for one in parent.lineage if one <= create.at):
        return f"it is created from {at}, not from {create.at}"
    if create.at is None and any(one > at and parent.times[one] <= asked.knows for one in parent.times):
        return f"it is created from {at}, and its parent had a newer commit when it was asked for"
    if create.target in (None, create.parent):
        target, base = create.parent, at
    else:
        target, base = parent.target_at(at)
    if origin.follows != create.follows:
        return f"it follows its target: {origin.follows}"
    if (origin.target, origin.base) != (target, base):
        return f"it branches from {origin.target}@{origin.base}, not {target}@{base}"
    after = 0 if commit.checkpoint is None else commit.checkpoint.sequence
    wanted = [one for one in parent.lineage if after < one <= at]
    tail = origin.tail if origin.tail_blob is None else decode_tail(blob(origin.tail_blob.address))
    found = [row.sequence for row in tail]
    if found != wanted:
        return f"it copies the commits {found}, and those behind the checkpoint are {wanted}"
    if any(copied is None or copied.requests for copied in map(read_row, tail)):
        return "it copies what belongs to another queue"
    return ""


def begin(history: "History", parent: "History | None", commit: Commit, sequence: int) -> None:
    """Begin the books of `history` as the commit says. The commit must have passed `wrong_create`."""
    origin = commit.origin
    history.birth = history.last_edit = sequence
    history.covers = 0
    history.statuses = [(sequence, BranchStatus.OPEN if commit.status is None else commit.status)]
    history.book, history.lineage = Book(), []
    history.takes, history.marks, history.named = [], [], [(sequence - 1, commit.at_ms)]
    history.deleted, history.born_ms = None, commit.at_ms
    history.targets, history.own, history.disputes = [], sequence, {}
    history.follows, history.loaded, history.edits_at = False, {}, [sequence]
    if origin is not None and parent is not None:
        history.book = forked(parent.book, origin.sequence)
        history.lineage = [at for at in parent.lineage if at <= origin.sequence]
        history.targets = [(sequence, (origin.target, origin.base))]
        history.follows = origin.follows
        if origin.target != origin.change_set:
            history.disputes = dict(parent.disputed_at.get(origin.sequence, {}))


@dataclass(frozen=True)
class Deleted:
    """The state of a change set before it was deleted, as of log sequence `position`."""

    position: int
    last_edit: int
    covers: int
    takes: list[tuple[int, str, int, bool]]
    disputes: dict[str, Disputed]


def replaces(history: "History", commit: Commit, sequence: int) -> bool:
    """Return whether the commit at `sequence` deletes or restores the change set, and apply that to `history`. The
    commit must have been checked."""
    status = None if commit.marking is None else commit.marking.status
    book, gone = history.book, history.deleted
    if status is BranchStatus.DELETED:
        history.deleted = Deleted(
            commit.previous, history.last_edit, history.covers, history.takes, dict(history.disputes)
        )
        history.last_edit, history.takes = 0, []
        history.disputes = {}
        book.definitions, book.touched, book.computed = {}, {}, {}
        return True
    if status is BranchStatus.OPEN and gone is not None:
        book.definitions, book.touched = dict(book.as_of[gone.position]), dict(book.edits[gone.position])
        book.computed = dict(book.found[gone.position])
        history.last_edit, history.covers, history.takes = gone.last_edit, gone.covers, gone.takes
        history.disputes = gone.disputes
        history.deleted, history.restored = None, sequence
        return True
    return False


def unlawful(history: "History", target: Book, sequence: int, base: int, changes: Mapping[str, Changed]) -> str:
    """Return what is wrong with the changes of a branch as of log sequence `sequence`; empty if nothing is.

    Undoing the changes has to give the definitions of the target at the base.
    """
    here, stood = history.book.as_of[sequence], target.as_of[base]
    undone = dict(here)
    for id_, changed in changes.items():
        old, ours = changed.base, changed.here
        if repr(ours and as_null(ours)) != repr(here.get(id_)):
            return f"{id_} is {here.get(id_)}, not {ours}"
        undone.pop(id_, None)
        if old is not None:
            undone[id_] = as_null(old)  # type: ignore[assignment] # not a removal
    wrong = [id_ for id_ in sorted({*undone, *stood}) if repr(undone.get(id_)) != repr(stood.get(id_))]
    return f"{wrong} are not as in the target at {base}" if wrong else ""


def wrong_headers(history: "History", headers: dict[str, str], sequence: int) -> str:
    """Return what is wrong with the headers of a commit; empty if nothing is."""
    told = read_branch(headers)
    if (told is None) != (not history.statuses):
        return f"the branch is {told}"
    if read_edited(headers, sequence) not in (history.last_edit, sequence):
        return f"it was last edited by {read_edited(headers, sequence)}, not {history.last_edit}"
    if told is None:
        return ""
    if (told.target, told.base, told.status, told.follows) != (*history.target, history.status, history.follows):
        return f"the branch is {told}, not of {history.target}, {history.status}"
    if told.conflicts != len(history.disputes):
        return f"it tells of {told.conflicts} conflicts, not of {sorted(history.disputes)}"
    return ""


def closed_wrongly(history: "History", decision: Decision, updates: bool) -> str:
    """Return a text if an edit of a closed change set was applied, or an edit of an open one refused as `closed`; empty
    otherwise."""
    if history.closed and updates and decision.outcome not in (Outcome.DEAD, Outcome.ERROR):
        return f"{decision.request_id} is applied to a closed change set"
    if decision.code == "closed" and not history.closed and updates:
        return f"{decision.request_id} is refused as closed, and it is open"
    return ""

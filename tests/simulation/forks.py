"""What a `create` commit must be, and what becomes of the books: a change set begins as its parent was."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rebaser_core.branch import Create
from rebaser_core.commit import BranchStatus, Commit, Decision, Outcome
from rebaser_core.messages import decode_tail, read_row
from tests.simulation.book import Book

if TYPE_CHECKING:
    from tests.simulation.checker import Asked, History


def forked(parent: Book, sequence: int) -> Book:
    """The book of a change set that was created from `parent` as of log sequence `sequence`."""
    book = Book(
        dict(parent.as_of[sequence]),
        dict(parent.edits[sequence]),
        dict(parent.found[sequence]),
    )
    for name in ("as_of", "found", "edits"):
        older = {at: dict(stood) for at, stood in getattr(parent, name).items() if at <= sequence}
        setattr(book, name, older)
    return book


def wrong_refusal(history: "History", parent: "History | None", create: Create, code: str, now: int) -> str:
    """Why a request to create may not have been refused with `code`; empty if it may. `now`: the newest commit."""
    used = history.last_edit or history.birth
    newest = 0
    if parent is not None:
        until = now if create.at is None else create.at
        newest = max((at for at in parent.lineage if at <= until), default=0)
    match code:
        case "exists":
            return "" if used else "nothing was ever applied there"
        case "self":
            return "" if create.parent == history.key.change_set else "its parent is another one"
        case "no_such_change_set":
            # What was stored since may have been missed.
            return "" if not newest or create.at is None else f"its parent had commit {newest}"
        case "not_its_target":
            return "" if create.target not in (None, create.parent) else "its target is its parent"
        case "purged":
            return "" if create.at is not None else "it names no position"
    return f"nobody knows the code {code}"


def wrong_create(
    history: "History", parent: "History | None", asked: "Asked", commit: Commit, blob: Callable[[str], bytes]
) -> str:
    """What is wrong with a `create` commit; empty if nothing is."""
    create, origin = None if asked.message is None else asked.message.create, commit.origin
    if create is None:
        return "nobody asked for it"
    if history.last_edit or history.birth:
        return "the change set exists"
    if commit.status is not (BranchStatus.KEPT if create.closed else None):
        return f"its status is {commit.status}"
    if create.parent is None or origin is None:
        return "" if create.parent is None and origin is None else "one of request and commit has no parent"
    if parent is None or origin.change_set != create.parent:
        return f"its parent is {origin.change_set}, not {create.parent}"
    at = origin.sequence
    if at not in parent.lineage or at < parent.birth:
        return f"{at} is no commit of its parent"
    if create.at is not None and at != max(one for one in parent.lineage if one <= create.at):
        return f"it is created from {at}, not from {create.at}"
    if create.at is None and any(one > at and parent.times[one] <= asked.at for one in parent.times):
        return f"it is created from {at}, and its parent had a newer commit when it was asked for"
    if create.target in (None, create.parent):
        target, base = create.parent, at
    else:
        target, base = parent.target
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
    """Let the books of `history` begin as the commit says, which was found right."""
    origin = commit.origin
    history.birth = history.last_edit = sequence
    history.covers = 0
    history.kept = commit.status is BranchStatus.KEPT
    history.book, history.lineage = Book(), []
    if origin is not None and parent is not None:
        history.book = forked(parent.book, origin.sequence)
        history.lineage = [at for at in parent.lineage if at <= origin.sequence]
        history.target = origin.target, origin.base


def closed_wrongly(history: "History", decision: Decision, updates: bool) -> str:
    """Whether an edit of a closed change set was applied, or one of an open set refused as closed; empty if not."""
    if history.kept and updates and decision.outcome not in (Outcome.DEAD, Outcome.ERROR):
        return f"{decision.request_id} is applied to a closed change set"
    if decision.code == "closed" and not history.kept:
        return f"{decision.request_id} is refused as closed, and it is open"
    return ""

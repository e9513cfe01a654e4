"""Defines the reply to a request: the number of updates that were applied, or the reason why nothing was applied."""

from dataclasses import dataclass
from typing import TypeAlias

from rebaser_core.ids import RequestId
from rebaser_core.record import record
from rebaser_core.updates import Update


@record
class Success:
    """The request was successful: `performed` updates were applied in the commit at log sequence `commit`.

    If the request applied a branch, `position` is the branch's log sequence up to which it was applied. If the request
    rebased a branch, `position` is the target's log sequence onto which the branch was rebased, and `conflicts` is the
    number of unresolved conflicts in the branch after the rebase. For other requests, both are 0.
    """

    performed: int
    commit: int
    position: int = 0
    conflicts: int = 0


@record
class Sides:
    """The three definitions of one id that are involved in a conflict.

    `base` is the definition that both sides have replaced, `ours` is the definition in this change set, and `theirs` is
    the definition in the refused edit. A definition is the update that recreates a value, or None if the value does not
    exist.
    """

    base: Update | None
    ours: Update | None
    theirs: Update | None


@record
class Conflict:
    """An edit of the value `id` that conflicts with the change set. `sides` is None if the definitions are unknown or
    are too large for a reply."""

    id: str
    message: str
    sides: Sides | None = None


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The request was refused because of conflicts, and nothing was applied.

    `commit` is the log sequence of the commit that records the refusal and its `message`. Conflicts that have sides are
    stored in a blob. Conflicts without sides are not stored, so `conflicts` is empty if the reply is sent again.
    """

    message: str
    commit: int
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """The request failed, and nothing was applied. `commit` is the log sequence of the commit that records the failure,
    or None if the log does not record it."""

    code: str
    message: str
    commit: int | None = None


Status: TypeAlias = Success | Conflicts | Failure


@record
class EnqueueUpdatesResponse:
    """The reply to a request. `id` is the id of the request, or empty if the request has no readable id."""

    id: RequestId
    workspace_id: str
    change_set_id: str
    status: Status

    def _repr_html_(self) -> str:
        from rebaser_core.notebook import html_table  # noqa: PLC0415 - only notebooks need it

        head = f"request {self.id} to {self.workspace_id}/{self.change_set_id}"
        match self.status:
            case Success(performed=performed, commit=commit, position=position, conflicts=conflicts):
                rows: list[tuple[str, object]] = [("applied updates", performed), ("commit", commit)]
                rows += [("position", position)] if position else []
                rows += [("unresolved conflicts", conflicts)] if conflicts else []
                return html_table(f"{head}: applied", ("", ""), rows, len(rows))
            case Conflicts(message=message, conflicts=found):
                ids = [(conflict.id, conflict.message) for conflict in found]
                return html_table(f"{head}: refused: {message}", ("id", "conflict"), ids, len(ids))
            case Failure(code=code, message=message, commit=commit):
                rows = [("code", code), ("message", message), ("commit", commit)]
                return html_table(f"{head}: failed", ("", ""), rows, len(rows))

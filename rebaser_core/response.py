"""The reply to a request: the number of applied updates, or the reason why nothing was applied."""

from dataclasses import dataclass
from typing import TypeAlias

from rebaser_core.ids import RequestId
from rebaser_core.record import record
from rebaser_core.updates import Update


@record
class Success:
    """`performed` updates were applied in the commit at log sequence `commit`.

    `position`: of an apply, the log sequence of the branch; of a rebase, the log sequence of the target; 0 for other
    requests. `conflicts`: of a rebase, how many unresolved conflicts the branch has afterwards.
    """

    performed: int
    commit: int
    position: int = 0
    conflicts: int = 0


@record
class Sides:
    """The definitions that conflict at one id.

    `base` is the definition that both sides replaced, `ours` the one in this change set, and `theirs` the one in the
    edit. A definition is the update that recreates a value; None if the value does not exist.
    """

    base: Update | None
    ours: Update | None
    theirs: Update | None


@record
class Conflict:
    """An edit that conflicts with this change set. `sides` is None if the definitions are unknown, or too large for a
    reply."""

    id: str
    message: str
    sides: Sides | None = None


@dataclass(frozen=True, slots=True)
class Conflicts:
    """Nothing was applied.

    The log keeps only `message`; a blob keeps the conflicts if they have sides. So `conflicts` of a repeated reply is
    empty if the conflicts had no sides.
    """

    message: str
    commit: int
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """Nothing was applied. `commit` is None if the failure is not in the log."""

    code: str
    message: str
    commit: int | None = None


Status: TypeAlias = Success | Conflicts | Failure


@record
class EnqueueUpdatesResponse:
    """`id` is the id of the request; empty if the request has no readable id."""

    id: RequestId
    workspace_id: str
    change_set_id: str
    status: Status

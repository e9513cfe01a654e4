"""Defines the message that reports the progress of a long update of derived values. It is published to subscribers but
not stored."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from rebaser_core.encoding.envelope import Body, Count, MessageType
from rebaser_core.ids import check_token
from rebaser_core.limits import Limits


@dataclass(frozen=True, slots=True)
class DvuProgress:
    """The progress of a running update of derived values.

    The update has been running on the server `server` for `seconds` seconds. Once it is complete, derived values are up
    to date as of log sequence `covers`. So far, `done` of `total` values have been processed; `total` is None during
    planning.
    """

    workspace_id: str
    change_set_id: str
    server: str
    covers: int
    done: int
    total: int | None
    seconds: float


class ProgressV1(Body):
    workspace_id: str
    change_set_id: str
    server: str
    covers: Count
    done: Count
    total: Count | None = None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _read(body: ProgressV1, _: Limits, __: int) -> DvuProgress:
    return DvuProgress(
        check_token(body.workspace_id, "workspace"),
        check_token(body.change_set_id, "change set"),
        body.server,
        body.covers,
        body.done,
        body.total,
        body.seconds,
    )


def _write(progress: DvuProgress, _: int) -> dict[str, Any]:
    wire = {
        "workspaceId": progress.workspace_id,
        "changeSetId": progress.change_set_id,
        "server": progress.server,
        "covers": progress.covers,
        "done": progress.done,
        "seconds": progress.seconds,
    }
    return wire if progress.total is None else wire | {"total": progress.total}


PROGRESS = MessageType("DvuProgress", DvuProgress, (ProgressV1,), (), _read, _write)

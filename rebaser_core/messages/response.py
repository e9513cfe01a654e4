"""The wire format of the reply to a request."""

from typing import Annotated, Any

from pydantic import FailFast

from rebaser_core.encoding.envelope import Body, Count, MessageType
from rebaser_core.encoding.payload import malformed
from rebaser_core.ids import RequestId
from rebaser_core.limits import Limits
from rebaser_core.response import Conflict, Conflicts, EnqueueUpdatesResponse, Failure, Status, Success


class SuccessV1(Body):
    performed: Count
    commit: Count


class ConflictV1(Body):
    id: str
    message: str


class ConflictsV1(Body):
    message: str
    commit: Count
    conflicts: Annotated[list[ConflictV1], FailFast()]


class ErrorV1(Body):
    code: str
    message: str
    commit: Count | None = None


class StatusV1(Body):
    success: SuccessV1 | None = None
    conflicts: ConflictsV1 | None = None
    error: ErrorV1 | None = None


class ResponseV1(Body):
    id: str
    workspace_id: str
    change_set_id: str
    status: StatusV1


def _read(body: ResponseV1, _: Limits, __: int) -> EnqueueUpdatesResponse:
    return EnqueueUpdatesResponse(RequestId(body.id), body.workspace_id, body.change_set_id, _read_status(body.status))


def _read_status(wire: StatusV1) -> Status:
    success, conflicts, error = wire.success, wire.conflicts, wire.error
    if success is not None and conflicts is None and error is None:
        return Success(success.performed, success.commit)
    if conflicts is not None and success is None and error is None:
        items = tuple(Conflict(item.id, item.message) for item in conflicts.conflicts)
        return Conflicts(conflicts.message, conflicts.commit, items)
    if error is not None and success is None and conflicts is None:
        return Failure(error.code, error.message, error.commit)
    raise malformed("a status is one of success, conflicts and error")


def _quick(raw: dict[str, Any], _: Limits, __: int) -> EnqueueUpdatesResponse | None:
    """A success, as nearly all replies are, or None."""
    status = raw.get("status")
    success = status.get("success") if type(status) is dict and len(status) == 1 else None
    if len(raw) != 4 or type(success) is not dict or len(success) != 2:
        return None
    performed, commit = success.get("performed"), success.get("commit")
    id_, workspace, change_set = raw.get("id"), raw.get("workspaceId"), raw.get("changeSetId")
    if not (type(id_) is str and type(workspace) is str and type(change_set) is str):
        return None
    if not (type(performed) is int and performed >= 0 and type(commit) is int and commit >= 0):
        return None
    return EnqueueUpdatesResponse(RequestId(id_), workspace, change_set, Success(performed, commit))


def _write(response: EnqueueUpdatesResponse, _: int) -> dict[str, Any]:
    return {
        "id": response.id,
        "workspaceId": response.workspace_id,
        "changeSetId": response.change_set_id,
        "status": _write_status(response.status),
    }


def _write_status(status: Status) -> dict[str, Any]:
    if type(status) is Success:
        return {"success": {"performed": status.performed, "commit": status.commit}}
    if type(status) is Conflicts:
        conflicts = [{"id": conflict.id, "message": conflict.message} for conflict in status.conflicts]
        return {"conflicts": {"message": status.message, "commit": status.commit, "conflicts": conflicts}}
    assert type(status) is Failure  # noqa: S101 - the last of the three
    return {"error": {"code": status.code, "message": status.message, "commit": status.commit}}


RESPONSE = MessageType("EnqueueUpdatesResponse", EnqueueUpdatesResponse, (ResponseV1,), (), _read, _write, quick=_quick)

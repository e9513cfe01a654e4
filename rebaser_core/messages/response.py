"""Defines the wire format of the reply to a request, and of the blob that stores the conflicts of a reply."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import FailFast

from rebaser_core.encoding.envelope import CBOR, Body, Count, MessageType, dumps, loads, unwrap, validate
from rebaser_core.encoding.payload import malformed
from rebaser_core.ids import RequestId
from rebaser_core.limits import COMMIT_LIMITS, Limits
from rebaser_core.messages.delta import check_version
from rebaser_core.messages.plain import short_names, write_plain_response
from rebaser_core.response import Conflict, Conflicts, EnqueueUpdatesResponse, Failure, Sides, Status, Success
from rebaser_core.updates import Update, parse_update
from rebaser_core.values import INT64_MAX

_V1 = b"\xa1bv1\xa4"  # the beginning of a payload of version 1


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


class ConflictV2(ConflictV1):
    """The wire model of a conflict in version 2, which adds the three definitions that are involved.

    Each definition is an update, or null if the value does not exist. If the definitions are unknown, all three fields
    are missing.
    """

    base: dict[str, Any] | None = None
    ours: dict[str, Any] | None = None
    theirs: dict[str, Any] | None = None


class ConflictsV2(ConflictsV1):
    conflicts: Annotated[list[ConflictV2], FailFast()]  # type: ignore[assignment] # the type is narrower


class SuccessV2(SuccessV1):
    """The wire model of a success in version 2, which adds two fields for requests about branches.

    `position` is the log sequence up to which a branch was applied, or the target's log sequence onto which a branch
    was rebased. `conflicts` is the number of conflicts in the branch after a rebase.
    """

    position: Count = 0
    conflicts: Count = 0


class StatusV2(StatusV1):
    success: SuccessV2 | None = None
    conflicts: ConflictsV2 | None = None


class ResponseV1(Body):
    id: str
    workspace_id: str
    change_set_id: str
    status: StatusV1


class ResponseV2(ResponseV1):
    status: StatusV2


def upgrade_v1(old: ResponseV1) -> ResponseV2:
    fields = {name: getattr(old, name) for name in ResponseV1.model_fields}
    return ResponseV2.model_construct(**fields)


def _read(body: ResponseV2, limits: Limits, _: int) -> EnqueueUpdatesResponse:
    status = _read_status(body.status, limits)
    return EnqueueUpdatesResponse(RequestId(body.id), body.workspace_id, body.change_set_id, status)


def _read_status(wire: StatusV1, limits: Limits) -> Status:
    success, conflicts, error = wire.success, wire.conflicts, wire.error
    if success is not None and conflicts is None and error is None:
        taken = (success.position, success.conflicts) if isinstance(success, SuccessV2) else ()
        return Success(success.performed, success.commit, *taken)
    if conflicts is not None and success is None and error is None:
        return Conflicts(conflicts.message, conflicts.commit, _read_conflicts(conflicts.conflicts, limits))
    if error is not None and success is None and conflicts is None:
        return Failure(error.code, error.message, error.commit)
    raise malformed("a status must have exactly one of the fields 'success', 'conflicts' and 'error'")


def _read_conflicts(items: Sequence[ConflictV1], limits: Limits) -> tuple[Conflict, ...]:
    return tuple([Conflict(item.id, item.message, _read_sides(item, limits)) for item in items])


_SIDES = {"base", "ours", "theirs"}


def _read_sides(item: ConflictV1, limits: Limits) -> Sides | None:
    if not isinstance(item, ConflictV2) or _SIDES.isdisjoint(item.model_fields_set):
        return None
    if not item.model_fields_set >= _SIDES:
        raise malformed("a conflict must have either all of the fields 'base', 'ours' and 'theirs', or none of them")
    sides = (item.base, item.ours, item.theirs)
    return Sides(*[None if side is None else parse_update(side, limits) for side in sides])


def _quick(raw: dict[str, Any], _: Limits, __: int) -> EnqueueUpdatesResponse | None:
    """Return the reply if it is a plain success, like nearly all replies; otherwise return None."""
    status = raw.get("status")
    success = status.get("success") if type(status) is dict and len(status) == 1 else None
    if len(raw) != 4 or type(success) is not dict or len(success) != 2:
        return None
    performed, commit = success.get("performed"), success.get("commit")
    id_, workspace, change_set = raw.get("id"), raw.get("workspaceId"), raw.get("changeSetId")
    if not (type(id_) is str and type(workspace) is str and type(change_set) is str):
        return None
    if not (type(performed) is type(commit) is int and 0 <= performed <= INT64_MAX and 0 <= commit <= INT64_MAX):
        return None
    return EnqueueUpdatesResponse(RequestId(id_), workspace, change_set, Success(performed, commit))


_UINT = rb"([\x00-\x17]|\x18.|\x19.{2}|\x1a.{4}|\x1b[\x00-\x7f].{7})"  # an integer from 0 to `INT64_MAX` in CBOR
_match_success = re.compile(rb"fstatus\xa1gsuccess\xa2iperformed" + _UINT + b"fcommit" + _UINT, re.DOTALL).fullmatch


def read_plain_success(payload: bytes, id_: str, workspace: str, change_set: str) -> Success | None:
    """Return the status of the reply with these names whose payload in CBOR, of version 1, is `payload`. Return None
    unless the reply is a plain success (see `rebaser_core.messages.plain`), like nearly all replies.

    Decoding the payload without knowing the names takes three times as long.
    """
    try:
        names = short_names(id_, workspace, change_set)
    except (UnicodeEncodeError, IndexError):
        return None
    if not payload.startswith(names, len(_V1)) or not payload.startswith(_V1):
        return None
    found = _match_success(payload, len(_V1) + len(names))
    return None if found is None else Success(_uint(found[1]), _uint(found[2]))


def _uint(item: bytes) -> int:
    return item[0] if len(item) == 1 else int.from_bytes(item[1:], "big")


def _lowest(response: EnqueueUpdatesResponse) -> int:
    status = response.status
    if type(status) is Success:
        return 2 if status.position or status.conflicts else 1
    return 2 if type(status) is Conflicts and any(conflict.sides for conflict in status.conflicts) else 1


def _write(response: EnqueueUpdatesResponse, version: int) -> dict[str, Any]:
    return {
        "id": response.id,
        "workspaceId": response.workspace_id,
        "changeSetId": response.change_set_id,
        "status": _write_status(response.status, version),
    }


def _write_status(status: Status, version: int) -> dict[str, Any]:
    if type(status) is Success:
        success = {"performed": status.performed, "commit": status.commit}
        if version >= 2:
            success |= {"position": status.position} if status.position else {}
            success |= {"conflicts": status.conflicts} if status.conflicts else {}
        return {"success": success}
    if type(status) is Conflicts:
        conflicts = [_write_conflict(conflict, version) for conflict in status.conflicts]
        return {"conflicts": {"message": status.message, "commit": status.commit, "conflicts": conflicts}}
    assert type(status) is Failure  # noqa: S101 - the only remaining type
    return {"error": {"code": status.code, "message": status.message, "commit": status.commit}}


def _write_conflict(conflict: Conflict, version: int) -> dict[str, Any]:
    wire: dict[str, Any] = {"id": conflict.id, "message": conflict.message}
    if version >= 2 and conflict.sides is not None:
        for name in ("base", "ours", "theirs"):
            side: Update | None = getattr(conflict.sides, name)
            wire[name] = None if side is None else side.to_wire()
    return wire


class ResultV1(Body):
    conflicts: Annotated[list[ConflictV2], FailFast()]


def encode_result(conflicts: Iterable[Conflict]) -> bytes:
    """Encode the conflicts of a reply as a blob."""
    return dumps(CBOR, {"v1": {"conflicts": [_write_conflict(conflict, 2) for conflict in conflicts]}})


def decode_result(data: bytes) -> tuple[Conflict, ...]:
    """Decode the conflicts that `encode_result` has encoded as `data`.

    Raise `UnprocessableError` if the blob is invalid, and `UnsupportedVersion` if its version is unknown.
    """
    raw = loads(CBOR, data, COMMIT_LIMITS)
    if type(raw) is not dict or len(raw) != 1:
        raise malformed('the blob must be a map with its version as the only key, as in {"v1": {…}}')
    check_version(next(iter(raw)), 1)
    body = validate(ResultV1, unwrap(raw, 1))
    assert isinstance(body, ResultV1)  # noqa: S101 - `validate` returns a `ResultV1`
    return _read_conflicts(body.conflicts, COMMIT_LIMITS)


RESPONSE = MessageType(
    "EnqueueUpdatesResponse",
    EnqueueUpdatesResponse,
    (ResponseV1, ResponseV2),
    (upgrade_v1,),
    _read,
    _write,
    _lowest,
    _quick,
    write_plain_response,
)

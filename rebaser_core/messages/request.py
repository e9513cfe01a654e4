"""Defines the request to a change set, in all versions of its wire format.

A request of version 1 refers to a blob that contains its updates. From version 2 on, a request can itself contain the
updates. Version 3 adds `recompute`, and patterns as inputs. Version 4 adds `author`, `message` and `expect`, and the
actions `revert`, `create`, `apply`, `rebase` and `mark`.
"""

from typing import Any

from pydantic import Field

from rebaser_core.blobs.address import check_address
from rebaser_core.branches.branch import Action, Apply, Create, Rebase
from rebaser_core.commit import Marking, Reverts, Strategy
from rebaser_core.encoding.envelope import Body, Count, MessageType
from rebaser_core.encoding.payload import malformed
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId, check_request_id, check_token, match_tokens
from rebaser_core.limits import Limits
from rebaser_core.messages.commit_fields.about import check_marking, write_marking
from rebaser_core.messages.commit_fields.origin import AUTO, MANUAL, read_status
from rebaser_core.messages.plain import Written, write_plain_request
from rebaser_core.record import record
from rebaser_core.updates import Recompute, Update, any_match, parse_recompute, parse_updates

MATCHES = 3  # the first version in which inputs may be patterns
MAX_AUTHOR, MAX_MESSAGE = 128, 1024  # the maximum lengths in characters


@record
class EnqueueUpdatesRequest:
    """A request to one change set, which contains either edits or an action.

    The edits are in `updates`, or in the blob `updates_address` (see `encode_updates_blob`). `recompute` specifies
    derived values to compute again after the edits although none of their inputs changed. `from_change_set_id` is the
    change set from which the edits were taken, if any. `author` and `message` say who sends the request and why; both
    are unverified claims of the sender. `expect_at` is the log sequence up to which the sender has seen the change set:
    the request is refused if a later commit defined or removed one of its ids.

    A request with an `action` has no updates and no `recompute`. Of these requests, only reverts, applies and marks may
    have `expect_at`. An apply is refused if its target, the change set of the request, was edited after `expect_at`. A
    mark is refused if any commit follows `expect_at`.
    """

    id: RequestId
    workspace_id: str
    change_set_id: str
    updates: tuple[Update, ...] | None
    updates_address: str | None = None
    from_change_set_id: str | None = None
    recompute: Recompute | None = None
    author: str = ""
    message: str = ""
    expect_at: int | None = None
    action: Action | None = None


class RequestV1(Body):
    id: str
    workspace_id: str
    change_set_id: str
    updates_address: str
    from_change_set_id: str | None = None


class RequestV2(Body):
    id: str
    workspace_id: str
    change_set_id: str
    updates: list[Any] | None = None
    updates_address: str | None = None
    from_change_set_id: str | None = None


class RequestV3(RequestV2):
    recompute: dict[str, Any] | None = None


class ExpectV4(Body):
    at: Count


class RevertV4(Body):
    first: Count
    last: Count
    request: str | None = None
    of: str | None = None


class CreateV4(Body):
    parent: str | None = Field(None, alias="from")
    at: Count | None = None
    target: str | None = None
    closed: bool = False
    follow: str = AUTO


class ApplyV4(Body):
    source: str = Field(alias="from")
    at: Count | None = None
    strict: bool = False
    allow_stale: bool = False
    keep: bool = False


class RebaseV4(Body):
    upto: Count | None = None
    onto: str | None = None
    strategy: str = Strategy.RECORD.value
    settles: Count | None = None


class MarkV4(Body):
    """The wire model of a mark. Exactly one of the two fields is given."""

    protected: bool | None = None
    status: str | None = None


class RequestV4(RequestV3):
    """The wire model of version 4. At most one of `revert`, `create`, `apply`, `rebase` and `mark` is given."""

    author: str = ""
    message: str = ""
    expect: ExpectV4 | None = None
    revert: RevertV4 | None = None
    create: CreateV4 | None = None
    apply: ApplyV4 | None = None
    rebase: RebaseV4 | None = None
    mark: MarkV4 | None = None


def upgrade_v1(old: RequestV1) -> RequestV2:
    return RequestV2.model_construct(**{name: getattr(old, name) for name in RequestV1.model_fields})


def upgrade_v2(old: RequestV2) -> RequestV3:
    return RequestV3.model_construct(**{name: getattr(old, name) for name in RequestV2.model_fields})


def upgrade_v3(old: RequestV3) -> RequestV4:
    return RequestV4.model_construct(**{name: getattr(old, name) for name in RequestV3.model_fields})


def _read(body: RequestV4, limits: Limits, version: int) -> EnqueueUpdatesRequest:
    asked = (body.revert, body.create, body.apply, body.rebase, body.mark)
    actions: list[Body] = [one for one in asked if one is not None]
    if actions:
        if len(actions) > 1:
            raise malformed(
                "a request may have only one of the fields 'revert', 'create', 'apply', 'rebase' and 'mark'"
            )
        if body.expect is not None and type(actions[0]) in (CreateV4, RebaseV4):
            raise malformed("a request to create or rebase a change set must not have the field 'expect'")
        if (body.updates, body.updates_address, body.from_change_set_id, body.recompute) != (None,) * 4:
            raise malformed(
                "a request with an action must not have the fields 'updates', 'fromChangeSetId' or 'recompute'"
            )
    elif (body.updates is None) == (body.updates_address is None):
        raise malformed("a request must have either the field 'updates' or the field 'updatesAddress'")
    return EnqueueUpdatesRequest(
        check_request_id(body.id),
        check_token(body.workspace_id, "workspace"),
        check_token(body.change_set_id, "change set"),
        None if body.updates is None else _read_updates(body.updates, limits, version),
        None if body.updates_address is None else check_address(body.updates_address),
        None if body.from_change_set_id is None else check_token(body.from_change_set_id, "change set"),
        None if body.recompute is None else parse_recompute(body.recompute, limits),
        _text(body.author, "author", MAX_AUTHOR),
        _text(body.message, "message", MAX_MESSAGE),
        None if body.expect is None else body.expect.at,
        _read_action(actions[0]) if actions else None,
    )


def _read_action(body: Body) -> Action:
    if isinstance(body, RevertV4):
        return _read_revert(body)
    if isinstance(body, CreateV4):
        return _read_create(body)
    if isinstance(body, ApplyV4):
        return Apply(check_token(body.source, "change set"), body.at, body.strict, body.allow_stale, body.keep)
    if isinstance(body, RebaseV4):
        return _read_rebase(body)
    assert isinstance(body, MarkV4)  # noqa: S101 - the only remaining type
    return check_marking(body.protected, None if body.status is None else read_status(body.status))


_STRATEGIES = {str(strategy): strategy for strategy in Strategy}


def _text(text: str, what: str, longest: int) -> str:
    if len(text) > longest:
        raise malformed(f"the field {what!r} has {len(text)} characters; at most {longest} are allowed")
    return text


def _read_revert(body: RevertV4) -> Reverts:
    request = None if body.request is None else check_request_id(body.request)
    of = None if body.of is None else check_token(body.of, "change set")
    return _check_revert(Reverts(body.first, body.last, request, of))


def _read_create(body: CreateV4) -> Create:
    if body.follow not in (AUTO, MANUAL):
        raise malformed(f"the field 'follow' must be {AUTO!r} or {MANUAL!r}, not {body.follow[:40]!r}")
    create = Create(body.parent, body.at, body.target, body.closed, body.follow == AUTO)
    for name in (create.parent, create.target):
        if name is not None:
            check_token(name, "change set")
    return check_create(create)


def _read_rebase(body: RebaseV4) -> Rebase:
    strategy = _STRATEGIES.get(body.strategy)
    if strategy is None:
        raise malformed(f"the strategy must be one of {', '.join(_STRATEGIES)}, not {body.strategy[:40]!r}")
    onto = None if body.onto is None else check_token(body.onto, "change set")
    return _check_rebase(Rebase(body.upto, onto, strategy, body.settles))


def _check_rebase(rebase: Rebase) -> Rebase:
    plain = rebase.upto is not None and rebase.onto is None and rebase.strategy is Strategy.RECORD
    if rebase.settles is not None and not plain:
        raise malformed("a rebase request with the field 'settles' must have 'upto', but neither 'onto' nor 'strategy'")
    return rebase


def check_create(create: Create) -> Create:
    """Return `create` unchanged. Raise `UnprocessableError` if it has a position or a target but no parent."""
    if create.parent is None and (create.at is not None or create.target is not None):
        raise malformed("a request to create a change set without a parent must have neither a position nor a target")
    return create


def _check_revert(reverts: Reverts) -> Reverts:
    if not 0 < reverts.first <= reverts.last:
        raise malformed(
            f"the first commit to revert must be at least 1 and at most the last commit, {reverts.last}; "
            f"it is {reverts.first}"
        )
    if reverts.request is not None and reverts.first != reverts.last:
        raise malformed(
            "to revert a single request, give the commit of this request as both the first and the last commit"
        )
    return reverts


def _read_updates(raw: object, limits: Limits, version: int) -> tuple[Update, ...]:
    return parse_updates(raw, limits if version >= MATCHES else limits.without_matches)


def _quick(raw: dict[str, Any], limits: Limits, version: int) -> EnqueueUpdatesRequest | None:
    """Return the request if it contains only updates, like nearly all requests; otherwise return None.

    The request is validated by the same rules as in `_read`.
    """
    updates = raw.get("updates")
    if (
        version < 2
        or len(raw) != 4
        or type(updates) is not list
        or not ("id" in raw and "workspaceId" in raw and "changeSetId" in raw)
    ):
        return None
    id_, workspace, change_set = raw["id"], raw["workspaceId"], raw["changeSetId"]
    if not (type(id_) is str and type(workspace) is str and type(change_set) is str):
        return None
    if match_tokens(f"{id_} {workspace} {change_set}") is None:  # one match takes half the time of three
        return None
    return EnqueueUpdatesRequest(RequestId(id_), workspace, change_set, _read_updates(updates, limits, version))


def _lowest(request: EnqueueUpdatesRequest) -> int:
    if _is_v4(request):
        return 4
    return 2 if request.recompute is None and not any_match(request.updates or ()) else 3


def _is_v4(request: EnqueueUpdatesRequest) -> bool:
    return bool(request.author or request.message) or request.expect_at is not None or request.action is not None


def _write(request: EnqueueUpdatesRequest, version: int) -> dict[str, Any]:
    wire: dict[str, Any] = {
        "id": request.id,
        "workspaceId": request.workspace_id,
        "changeSetId": request.change_set_id,
    }
    if version < 4 and _is_v4(request):
        raise UnprocessableError(
            f"a request of version {version} cannot have an author, a message, `expect_at` or an action: use version 4",
            code="invalid_request",
        )
    if request.action is not None:
        return wire | _write_v4(request)
    if (request.updates is None) == (request.updates_address is None):
        raise UnprocessableError("a request must have either updates or updates_address", code="invalid_request")
    if request.updates_address is not None:
        wire["updatesAddress"] = request.updates_address
    elif version >= 2:
        if version < MATCHES and any_match(request.updates or ()):
            raise UnprocessableError(
                f"a request of version {version} cannot have patterns as inputs: use version {MATCHES}",
                code="invalid_request",
            )
        wire["updates"] = [update.to_wire() for update in request.updates or ()]
    else:
        raise UnprocessableError(
            "a request of version 1 cannot contain updates: store them in a blob and give its address",
            code="invalid_request",
        )
    if request.from_change_set_id is not None:
        wire["fromChangeSetId"] = request.from_change_set_id
    if request.recompute is not None:
        if version < 3:
            raise UnprocessableError(
                f"a request of version {version} cannot have the field 'recompute': use version 3",
                code="invalid_request",
            )
        wire["recompute"] = request.recompute.to_wire()
    return wire | _write_v4(request) if version >= 4 else wire


def _write_plain(request: EnqueueUpdatesRequest) -> Written:
    if request.updates is None or request.updates_address is not None or request.from_change_set_id is not None:
        return None
    if request.recompute is not None or _is_v4(request):
        return None
    return write_plain_request(request.id, request.workspace_id, request.change_set_id, request.updates)


def _write_v4(request: EnqueueUpdatesRequest) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    if request.author:
        wire["author"] = _text(request.author, "author", MAX_AUTHOR)
    if request.message:
        wire["message"] = _text(request.message, "message", MAX_MESSAGE)
    if request.expect_at is not None:
        wire["expect"] = {"at": request.expect_at}
    return wire if request.action is None else wire | _write_action(request.action)


def _write_action(action: Action) -> dict[str, Any]:
    if isinstance(action, Reverts):
        _check_revert(action)
        wire: dict[str, Any] = {"first": action.first, "last": action.last}
        wire |= {} if action.of is None else {"of": action.of}
        return {"revert": wire if action.request is None else wire | {"request": action.request}}
    if isinstance(action, Create):
        return {"create": _write_create(check_create(action))}
    if isinstance(action, Marking):
        return {"mark": write_marking(check_marking(action.protected, action.status))}
    if isinstance(action, Rebase):
        return {"rebase": _write_rebase(_check_rebase(action))}
    wire = {"from": action.source}
    if action.at is not None:
        wire["at"] = action.at
    wire |= {"strict": True} if action.strict else {}
    wire |= {"allowStale": True} if action.allow_stale else {}
    return {"apply": wire | {"keep": True} if action.keep else wire}


def _write_rebase(rebase: Rebase) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    if rebase.upto is not None:
        wire["upto"] = rebase.upto
    if rebase.onto is not None:
        wire["onto"] = rebase.onto
    if rebase.strategy is not Strategy.RECORD:
        wire["strategy"] = rebase.strategy.value
    return wire if rebase.settles is None else wire | {"settles": rebase.settles}


def _write_create(create: Create) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    if create.parent is not None:
        wire["from"] = create.parent
    if create.at is not None:
        wire["at"] = create.at
    if create.target is not None:
        wire["target"] = create.target
    wire |= {} if create.follows else {"follow": MANUAL}
    return wire | {"closed": True} if create.closed else wire


REQUEST = MessageType(
    "EnqueueUpdatesRequest",
    EnqueueUpdatesRequest,
    (RequestV1, RequestV2, RequestV3, RequestV4),
    (upgrade_v1, upgrade_v2, upgrade_v3),
    _read,
    _write,
    _lowest,
    _quick,
    _write_plain,
)

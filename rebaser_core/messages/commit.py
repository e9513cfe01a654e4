"""Defines the wire format of commits.

Invariant: `decode_commit` returns a commit equal to the one that `encode_commit` encoded. For an unknown kind, outcome
or version, it raises `UnsupportedVersion`, because a reader must not fold a commit that it does not understand.
"""

from typing import Any

from pydantic import Field

from rebaser_core.commit import PULL_ATTEMPT, Applied, BlobRef, Commit, Delta, Kind
from rebaser_core.encoding.envelope import MESSAGE_TYPE, Body, Count, Headers, MessageType
from rebaser_core.encoding.payload import malformed
from rebaser_core.errors import UnprocessableError, UnsupportedVersion
from rebaser_core.limits import Limits
from rebaser_core.messages.commit_fields.about import (
    MarkV3,
    RevertsV3,
    SourceV3,
    read_authors,
    read_marking,
    read_reverts,
    read_source,
    write_about,
)
from rebaser_core.messages.commit_fields.attempt import AttemptV1, PullAttemptV3, read_attempt, write_attempt
from rebaser_core.messages.commit_fields.checkpoint import (
    CheckpointV1,
    CheckpointV3,
    quick_checkpoint,
    read_checkpoint,
)
from rebaser_core.messages.commit_fields.collection import CollectionV3, read_collection, write_collection
from rebaser_core.messages.commit_fields.decision import read_decision, write_decision
from rebaser_core.messages.commit_fields.origin import (
    OriginV3,
    read_blob,
    read_carried,
    read_origin,
    read_status,
    write_blob,
    write_create,
)
from rebaser_core.messages.commit_fields.replay import read_replay, read_settled, write_replay, write_settled
from rebaser_core.messages.delta import read_delta, write_delta
from rebaser_core.messages.plain import write_plain_commit
from rebaser_core.updates import Update, any_match, parse_recompute
from rebaser_core.values import INT64_MAX

MATCHES = 2  # the first version in which inputs may be patterns
BEFORE = "before"  # the field with the replaced definitions
HISTORY = 3  # the first version that records replaced definitions, authors and reverts


class AppliedV1(Body):
    stream: str
    sequence: Count


class CommitV1(Body):
    """The wire model of version 1. Each item of `requests` is a list of sequence, request id, outcome, performed, code,
    message, redrive and attempts. Empty fields at the end of the list are omitted."""

    id: str
    previous: Count
    kind: str
    at_ms: Count
    owner: str
    applied: AppliedV1 | None = None
    covers: Count | None = None
    requests: list[Any] = Field(default_factory=list)
    delta: dict[str, Any] | None = None
    checkpoint: CheckpointV1 | None = None
    attempt: AttemptV1 | None = None
    forget_before_ms: Count = 0
    debt: Count = 0


class CommitV2(CommitV1):
    """The wire model of version 2, which adds `recompute`, and patterns as inputs."""

    recompute: list[Any] = Field(default_factory=list)


class CommitV3(CommitV2):
    """The wire model of version 3, which adds the fields for history and branches.

    Only `rebase` and `replay` commits have `before`, which has the same form as `delta`. If `before` is missing, no id
    of the delta existed before. If it is null, the previous definitions are unknown. `authors` contains a list of
    author and message for each of `requests`. Only `create` commits have `origin` and `carried`, only `mark` commits
    `mark`, only `gc` commits `gc`, and only `create` and `replay` commits `status`. `from` is the branch that was
    applied or the target that was replayed, together with its log sequence. `settled` contains ids. Only `replay`
    commits have `bases` and `conflicts`, which have the same form as `delta`; if `bases` is the address of a blob, that
    blob contains both fields. A missing `strategy` stands for `record`. `pull` is an attempt at a pull.
    """

    checkpoint: CheckpointV3 | None = None

    before: dict[str, Any] | None = Field(default_factory=dict)
    authors: list[Any] = Field(default_factory=list)
    reverts: RevertsV3 | None = None
    begin: Count = 0
    origin: OriginV3 | None = None
    status: str | None = None
    carried: list[Any] = Field(default_factory=list)
    source: SourceV3 | None = Field(None, alias="from")
    mark: MarkV3 | None = None
    settled: list[Any] = Field(default_factory=list)
    bases: dict[str, Any] | None = None
    conflicts: dict[str, Any] | None = None
    strategy: str | None = None
    gc: CollectionV3 | None = None
    pull: PullAttemptV3 | None = None


def upgrade_v1(old: CommitV1) -> CommitV2:
    return CommitV2.model_construct(recompute=[], **{name: getattr(old, name) for name in CommitV1.model_fields})


def upgrade_v2(old: CommitV2) -> CommitV3:
    fields = {name: getattr(old, name) for name in CommitV2.model_fields}
    if old.checkpoint is not None:
        ref = old.checkpoint
        fields["checkpoint"] = CheckpointV3.model_construct(address=ref.address, sequence=ref.sequence, size=ref.size)
    return CommitV3.model_construct(before=None, **fields)


_KINDS = {str(kind): kind for kind in Kind}
_QUICK = _KINDS.keys() - {Kind.MARK.value, Kind.REPLAY.value, Kind.GC.value}  # the excluded kinds have special fields
_OF_UPDATES = (Kind.REBASE, Kind.REPLAY)  # the kinds that contain updates, and the definitions replaced by them


def _read(body: CommitV3, limits: Limits, version: int) -> Commit:
    kind = _KINDS.get(body.kind)
    if kind is None:
        raise UnsupportedVersion(f"the commit has the unknown kind {body.kind[:40]!r}: use a newer release of Rebaser")
    delta, blob = _read_delta(kind, body.delta, limits, version)
    before, before_blob = _read_before(kind, body.before, limits, version)
    applied, checkpoint, reverts = body.applied, body.checkpoint, body.reverts
    return Commit(
        body.id,
        body.previous,
        kind,
        body.at_ms,
        body.owner,
        Applied(applied.stream, applied.sequence) if applied else None,
        body.covers,
        tuple([read_decision(row) for row in body.requests]),
        delta,
        blob,
        read_checkpoint(checkpoint) if checkpoint else None,
        read_attempt(body.attempt, body.pull),
        body.forget_before_ms,
        tuple([parse_recompute(raw, limits) for raw in body.recompute]),
        body.debt,
        before=before,
        before_blob=before_blob,
        authors=read_authors(body.authors, len(body.requests)),
        reverts=read_reverts(reverts) if reverts else None,
        begin=body.begin,
        source=read_source(kind, body.source),
        marking=read_marking(kind, body.mark, changed=body.delta is not None),
        settled=read_settled(kind, body.settled, limits),
        replay=read_replay(kind, body.bases, body.conflicts, body.strategy, limits),
        collection=read_collection(kind, body.gc, changed=body.delta is not None),
        **_read_create(kind, body),
    )


def _read_create(kind: Kind, body: CommitV3) -> dict[str, Any]:
    """Return the arguments of `Commit` that only `create` commits have, and `status`, which `replay` commits may also
    have."""
    if kind is not Kind.CREATE:
        if body.origin is not None or body.carried or (body.status is not None and kind is not Kind.REPLAY):
            raise malformed(
                f"a {kind} commit has a field ('origin', 'carried' or 'status') that only other kinds may have"
            )
        return {} if body.status is None else {"status": read_status(body.status)}
    if body.delta is not None or body.begin:
        raise malformed("a create commit must have neither the field 'delta' nor the field 'begin'")
    return {
        "origin": None if body.origin is None else read_origin(body.origin),
        "status": None if body.status is None else read_status(body.status),
        "carried": tuple([read_carried(row) for row in body.carried]),
    }


# Nearly all commits decide requests or contain computed values, and have only these fields.
USUAL = {"id", "previous", "kind", "atMs", "owner", "applied", "covers", "requests", "delta", "forgetBeforeMs", "debt"}
USUAL |= {"checkpoint"}
USUAL_HISTORY = USUAL | {"before", "authors"}


def _quick(raw: dict[str, Any], limits: Limits, version: int) -> Commit | None:
    """Return the commit if `raw` has only the usual fields; otherwise return None."""
    get = raw.get
    id_, kind, owner, applied = get("id"), get("kind"), get("owner"), get("applied")
    previous, at_ms, forget, debt = get("previous"), get("atMs"), get("forgetBeforeMs", 0), get("debt", 0)
    usual = USUAL if version < HISTORY else USUAL_HISTORY
    if not (raw.keys() <= usual and type(id_) is type(kind) is type(owner) is str and kind in _QUICK):
        return None
    if not type(previous) is type(at_ms) is type(forget) is type(debt) is int:
        return None
    if min(previous, at_ms, forget, debt) < 0 or max(previous, at_ms, forget, debt) > INT64_MAX:
        return None
    covers, requests, changes = get("covers"), get("requests", []), get("delta")
    if (covers is not None and not (type(covers) is int and 0 <= covers <= INT64_MAX)) or type(requests) is not list:
        return None
    if changes is not None and type(changes) is not dict:
        return None
    reached = None
    if applied is not None:
        if type(applied) is not dict or len(applied) != 2:
            return None
        stream, sequence = applied.get("stream"), applied.get("sequence")
        if not (type(stream) is str and type(sequence) is int and 0 <= sequence <= INT64_MAX):
            return None
        reached = Applied(stream, sequence)
    named, checkpoint = get("checkpoint"), None
    if named is not None:
        checkpoint = quick_checkpoint(named)
        if checkpoint is None:
            return None
    stood, authors = get("before", {}), get("authors", [])
    if (stood is not None and type(stood) is not dict) or type(authors) is not list:
        return None
    delta, blob = _read_delta(_KINDS[kind], changes, limits, version)
    before, before_blob = _read_before(_KINDS[kind], stood, limits, version)
    decisions = tuple([read_decision(row) for row in requests])
    return Commit(
        id_,
        previous,
        _KINDS[kind],
        at_ms,
        owner,
        reached,
        covers,
        decisions,
        delta,
        blob,
        checkpoint,
        forget_before_ms=forget,
        debt=debt,
        before=before,
        before_blob=before_blob,
        authors=read_authors(authors, len(decisions)),
    )


def _read_delta(kind: Kind, raw: dict[str, Any] | None, limits: Limits, version: int) -> tuple[Delta, BlobRef | None]:
    if raw is None:
        return (), None
    if "address" in raw:
        return (), read_blob(raw)
    return read_delta(kind, raw, limits if version >= MATCHES else limits.without_matches), None


def _read_before(
    kind: Kind, raw: dict[str, Any] | None, limits: Limits, version: int
) -> tuple[tuple[Update, ...] | None, BlobRef | None]:
    if kind not in _OF_UPDATES:
        if raw:
            raise malformed(f"a {kind} commit must not have the field 'before', because it replaces no definitions")
        return None, None
    if raw is None or version < HISTORY:
        return None, None
    before, blob = _read_delta(kind, raw or None, limits, version)
    return before, blob  # type: ignore[return-value] # these commits have updates


def _lowest(commit: Commit) -> int:
    if _has_history(commit):
        return HISTORY
    return 2 if commit.recompute or _has_match(commit) else 1


_OF_HISTORY = (Kind.CREATE, Kind.MARK, Kind.REPLAY, Kind.GC)


def _has_history(commit: Commit) -> bool:
    if commit.before is not None or commit.authors or commit.reverts is not None or commit.source is not None:
        return True
    if commit.attempt is not None and commit.attempt.sequence == PULL_ATTEMPT:
        return True
    in_branch = commit.checkpoint is not None and commit.checkpoint.changes is not None
    return in_branch or commit.begin > 0 or bool(commit.settled) or commit.kind in _OF_HISTORY


def _has_match(commit: Commit) -> bool:
    """Return whether the inline delta of `commit` has a pattern as an input. A `dvu` commit is not searched, because it
    contains no definitions."""
    return commit.kind is not Kind.DVU and commit.delta_blob is None and any_match(commit.delta)


def _write(commit: Commit, version: int) -> dict[str, Any]:
    wire: dict[str, Any] = {
        "id": commit.id,
        "previous": commit.previous,
        "kind": commit.kind.value,
        "atMs": commit.at_ms,
        "owner": commit.owner,
    }
    if commit.applied is not None:
        wire["applied"] = {"stream": commit.applied.stream, "sequence": commit.applied.sequence}
    if commit.covers is not None:
        wire["covers"] = commit.covers
    if commit.requests:
        wire["requests"] = [write_decision(decision) for decision in commit.requests]
    if commit.delta_blob is not None or commit.delta:
        wire["delta"] = _write_delta(commit, version)
    if commit.checkpoint is not None:
        ref = commit.checkpoint
        wire["checkpoint"] = {"address": ref.address, "sequence": ref.sequence, "size": ref.size}
        if ref.changes is not None:
            wire["checkpoint"]["changes"] = write_blob(ref.changes)
    if commit.attempt is not None:
        wire |= write_attempt(commit.attempt)
    wire |= {"forgetBeforeMs": commit.forget_before_ms} if commit.forget_before_ms else {}
    wire |= {"debt": commit.debt} if commit.debt else {}
    if commit.recompute:
        if version < 2:
            raise UnprocessableError(
                "a commit of version 1 cannot have the field 'recompute': use version 2", code="invalid_commit"
            )
        wire["recompute"] = [recompute.to_wire() for recompute in commit.recompute]
    if version >= HISTORY:
        _add_history(commit, wire)
    elif _has_history(commit):
        raise UnprocessableError(
            f"a commit of version {version} cannot have the fields for history: use version {HISTORY}",
            code="invalid_commit",
        )
    return wire


def _add_history(commit: Commit, wire: dict[str, Any]) -> None:
    if commit.kind in _OF_UPDATES:
        if commit.before_blob is not None:
            wire["before"] = write_blob(commit.before_blob)
        elif commit.before is None:
            wire["before"] = None
        elif commit.before:
            wire["before"] = write_delta(commit.before)
    if commit.begin:
        wire["begin"] = commit.begin
    wire |= write_about(commit) | write_settled(commit) | write_collection(commit.collection)
    if commit.replay is not None:
        wire |= write_replay(commit.replay, commit.status)
    if commit.kind is Kind.CREATE:
        wire |= write_create(commit)


def _write_delta(commit: Commit, version: int) -> dict[str, Any]:
    if commit.delta_blob is not None:  # `delta` is then empty, or equals the content of the blob
        return write_blob(commit.delta_blob)
    if version < MATCHES and _has_match(commit):
        raise UnprocessableError(
            f"a commit of version {version} cannot have patterns as inputs: use version {MATCHES}",
            code="invalid_commit",
        )
    return write_delta(commit.delta)


COMMIT = MessageType(
    "Commit",
    Commit,
    (CommitV1, CommitV2, CommitV3),
    (upgrade_v1, upgrade_v2),
    _read,
    _write,
    _lowest,
    _quick,
    write_plain_commit,
)


def check_is_commit(headers: Headers | None) -> None:
    """Raise `UnprocessableError` with code `foreign` if a message is not a commit according to its headers."""
    name = (headers or {}).get(MESSAGE_TYPE)
    if name != COMMIT.name:
        what = "without a type" if name is None else f"of the type {name[:80]!r}"
        raise UnprocessableError(f"the log contains a message {what}, which is not a commit", code="foreign")

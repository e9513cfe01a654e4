"""Commits on the wire.

Invariant: what `encode_commit` writes, `decode_commit` gives back equal, and a word it does not know (kind, outcome,
version) is `UnsupportedVersion`, never a guess: a reader must not fold what it does not understand.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from rebaser_core.address import check_address
from rebaser_core.commit import (
    Applied,
    Attempt,
    BlobRef,
    CheckpointRef,
    Commit,
    Decision,
    Delta,
    Kind,
    Outcome,
)
from rebaser_core.content import SIZE
from rebaser_core.envelope import (
    APPLIED,
    DEBT,
    DIGESTS,
    MESSAGE_TYPE,
    UNKNOWN,
    Body,
    Headers,
    MessageType,
)
from rebaser_core.errors import UnprocessableError, UnsupportedVersion
from rebaser_core.ids import RequestId
from rebaser_core.limits import Limits
from rebaser_core.messages.delta import read_delta, write_delta
from rebaser_core.payload import malformed
from rebaser_core.updates import any_match, parse_recompute

MATCHES = 2  # the version from which on inputs may be matches

Count: TypeAlias = Annotated[int, Field(ge=0)]


class AppliedV1(Body):
    stream: str
    sequence: Count


class CheckpointV1(Body):
    address: str
    sequence: Count
    size: Count


class AttemptV1(Body):
    sequence: Count
    count: Count
    first_ms: Count
    deaths: Count = 0


class CommitV1(Body):
    """`requests` are compact rows: sequence, request id, outcome, performed, code, message, redrive, attempts.

    Empty ends are left out.
    """

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
    """May ask to recompute; inputs may be matches."""

    recompute: list[Any] = Field(default_factory=list)


def upgrade_v1(old: CommitV1) -> CommitV2:
    return CommitV2.model_construct(recompute=[], **{name: getattr(old, name) for name in CommitV1.model_fields})


_KINDS = {str(kind): kind for kind in Kind}
_OUTCOMES = {str(outcome): outcome for outcome in Outcome}


def _read(body: CommitV2, limits: Limits, version: int) -> Commit:
    kind = _KINDS.get(body.kind)
    if kind is None:
        raise UnsupportedVersion(f"a commit of kind {body.kind[:40]!r}")
    delta, blob = _read_changes(kind, body.delta, limits, version)
    applied, checkpoint, attempt = body.applied, body.checkpoint, body.attempt
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
        CheckpointRef(check_address(checkpoint.address), checkpoint.sequence, checkpoint.size) if checkpoint else None,
        Attempt(attempt.sequence, attempt.count, attempt.first_ms, attempt.deaths) if attempt else None,
        body.forget_before_ms,
        tuple([parse_recompute(one, limits) for one in body.recompute]),
        body.debt,
    )


# What nearly all commits say: that of requests and of updates of derived values.
USUAL = {"id", "previous", "kind", "atMs", "owner", "applied", "covers", "requests", "delta", "forgetBeforeMs", "debt"}


def _quick(raw: dict[str, Any], limits: Limits, version: int) -> Commit | None:
    """A commit that says no more than the usual."""
    get = raw.get
    id_, kind, owner, applied = get("id"), get("kind"), get("owner"), get("applied")
    previous, at_ms, forget, debt = get("previous"), get("atMs"), get("forgetBeforeMs", 0), get("debt", 0)
    if not (raw.keys() <= USUAL and type(id_) is type(kind) is type(owner) is str and kind in _KINDS):
        return None
    if not (
        type(previous) is type(at_ms) is type(forget) is type(debt) is int and min(previous, at_ms, forget, debt) >= 0
    ):
        return None
    covers, requests, changes = get("covers"), get("requests", []), get("delta")
    if (covers is not None and not (type(covers) is int and covers >= 0)) or type(requests) is not list:
        return None
    if changes is not None and type(changes) is not dict:
        return None
    reached = None
    if applied is not None:
        if type(applied) is not dict or len(applied) != 2:
            return None
        stream, sequence = applied.get("stream"), applied.get("sequence")
        if not (type(stream) is str and type(sequence) is int and sequence >= 0):
            return None
        reached = Applied(stream, sequence)
    delta, blob = _read_changes(_KINDS[kind], changes, limits, version)
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
        forget_before_ms=forget,
        debt=debt,
    )


def _read_changes(kind: Kind, raw: dict[str, Any] | None, limits: Limits, version: int) -> tuple[Delta, BlobRef | None]:
    if raw is None:
        return (), None
    if "address" in raw:
        return (), _read_blob(raw)
    return read_delta(kind, raw, limits if version >= MATCHES else limits.without_matches), None


def _read_blob(raw: dict[str, Any]) -> BlobRef:
    size = raw.get("size")
    if len(raw) != 2 or type(size) is not int or size < 0:
        raise malformed("a delta elsewhere is an address and a size")
    return BlobRef(check_address(raw["address"]), size)


def read_decision(row: object) -> Decision:
    """The decision in a row of `requests`; raises `UnsupportedVersion` for an outcome it does not know."""
    if type(row) is not list or not 3 <= len(row) <= len(_EMPTY):
        raise malformed(f"a decided request is a row of 3 to {len(_EMPTY)}")
    if len(row) == 4:  # the usual case: updates were performed, and there is nothing to say about it
        sequence, request_id, outcome, performed = row
        code, message, redrive, attempts = "", "", 0, 0
    else:
        sequence, request_id, outcome, performed, code, message, redrive, attempts = row + _EMPTY[len(row) :]
        if not (type(redrive) is type(attempts) is int and redrive >= 0 and attempts >= 0):
            raise malformed("a sequence or count is not a natural number")
    if not (type(sequence) is type(performed) is int and sequence >= 0 and performed >= 0):
        raise malformed("a sequence or count is not a natural number")
    if not type(request_id) is type(outcome) is type(code) is type(message) is str:
        raise malformed("an id, outcome, code or message is not text")
    known = _OUTCOMES.get(outcome)
    if known is None:
        raise UnsupportedVersion(f"an outcome {outcome[:40]!r}")
    return Decision(sequence, RequestId(request_id), known, performed, code, message, redrive, attempts)


_EMPTY: list[Any] = [None, None, None, 0, "", "", 0, 0]


def write_decision(decision: Decision) -> list[Any]:
    row: list[Any] = [decision.sequence, decision.request_id, decision.outcome.value]
    if decision.redrive or decision.attempts:
        row += (decision.performed, decision.code, decision.message, decision.redrive, decision.attempts)
    elif decision.message or decision.code:
        row += (decision.performed, decision.code, decision.message)
    elif decision.performed:
        row.append(decision.performed)
    return row


def _lowest(commit: Commit) -> int:
    return 2 if commit.recompute or _has_match(commit) else 1


def _has_match(commit: Commit) -> bool:
    return commit.kind is not Kind.DVU and any_match(commit.delta)  # what a DVU found may be much


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
    if commit.attempt is not None:
        wire["attempt"] = _write_attempt(commit.attempt)
    if commit.forget_before_ms:
        wire["forgetBeforeMs"] = commit.forget_before_ms
    if commit.debt:
        wire["debt"] = commit.debt
    if commit.recompute:
        if version < 2:
            raise UnprocessableError("version 1 of a commit cannot ask to recompute", code="invalid_commit")
        wire["recompute"] = [one.to_wire() for one in commit.recompute]
    return wire


def _write_attempt(tried: Attempt) -> dict[str, int]:
    wire = {"sequence": tried.sequence, "count": tried.count, "firstMs": tried.first_ms}
    return wire | {"deaths": tried.deaths} if tried.deaths else wire


def _write_delta(commit: Commit, version: int) -> dict[str, Any]:
    if commit.delta_blob is not None:  # the delta, if it is here too, is only its loaded copy
        return {"address": commit.delta_blob.address, "size": commit.delta_blob.size}
    if version < MATCHES and _has_match(commit):
        raise UnprocessableError("version 1 of a commit has no matches", code="invalid_commit")
    return write_delta(commit.delta)


COMMIT = MessageType("Commit", Commit, (CommitV1, CommitV2), (upgrade_v1,), _read, _write, _lowest, _quick)


def sweep_headers(commit: Commit) -> dict[str, str]:
    """`X-Applied` (`<stream>:<sequence>`, or empty) and `X-Debt`, so that the sweeper reads headers only. Where there
    are any, `X-Unknown-Functions`, and `X-Digests` of the requests: older readers would refuse a body that has them."""
    applied = commit.applied
    headers = {
        APPLIED: f"{applied.stream}:{applied.sequence}" if applied else "",
        DEBT: str(commit.debt),
    }
    if commit.unknown:
        headers[UNKNOWN] = json.dumps(commit.unknown)
    if commit.requests and (digests := write_digests(commit.requests)):
        headers[DIGESTS] = digests
    return headers


def write_digests(decisions: Sequence[Decision]) -> str:
    """Those of `decisions` as text; empty if there are none."""
    if not any(one.digest for one in decisions):
        return ""
    return b64encode(b"".join([one.digest or _NO_DIGEST for one in decisions])).decode()


def add_digests(decisions: Sequence[Decision], text: str | None) -> None:
    """Put what `write_digests` wrote into decisions that were just read; a text that does not fit says nothing."""
    if not text:
        return
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return
    if len(data) == SIZE * len(decisions):
        for at, one in enumerate(decisions):
            digest = data[at * SIZE : (at + 1) * SIZE]
            if digest != _NO_DIGEST:
                object.__setattr__(one, "digest", digest)  # nobody else has it yet, and a copy costs ten times as much


_NO_DIGEST = bytes(SIZE)


def read_unknown(headers: Headers | None) -> tuple[str, ...]:
    """The functions that the writer of a commit had not got; none if the header is damaged, which only saves time."""
    text = (headers or {}).get(UNKNOWN)
    if not text:
        return ()
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple([name for name in names if type(name) is str]) if type(names) is list else ()


def read_sweep_headers(headers: Headers | None) -> tuple[Applied | None, int]:
    """`(applied, debt)` from the headers of a commit; raises `UnprocessableError` if they are not there or damaged."""
    headers = headers or {}
    applied, debt = headers.get(APPLIED), headers.get(DEBT)
    if applied is None or debt is None:
        raise malformed("no sweep headers")
    if not applied:
        return None, _natural(debt)
    stream, _, sequence = applied.rpartition(":")  # the stream's word may hold colons
    return Applied(stream, _natural(sequence)), _natural(debt)


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise malformed(f"{text[:40]!r} is not a natural number")
    return int(text)


def check_is_commit(headers: Headers | None) -> None:
    """Raises `UnprocessableError` with code `foreign` for a message that does not claim to be a commit."""
    name = (headers or {}).get(MESSAGE_TYPE)
    if name != COMMIT.name:
        raise UnprocessableError(f"a message of type {str(name)[:80]!r} on the log", code="foreign")

"""Whether a reader finds in a message the commit that it was made of, for less than reading it costs.

Invariant: True only where `decode_commit` gives an equal commit and `read_sweep_headers` its own; False says nothing.
It runs for every commit before it is stored, while the caches of the processor are cold: it compares what stands in
the message with the commit, builds nothing, and calls as little as it can.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from rebaser_core.commit import Commit, Decision, Delta, Kind, Outcome
from rebaser_core.encoding.envelope import APPLIED, CBOR, CONTENT_TYPE, DEBT, MESSAGE_TYPE, MESSAGE_VERSION, Headers
from rebaser_core.encoding.payload import read_unchecked
from rebaser_core.limits import COMMIT_LIMITS
from rebaser_core.messages.commit import COMMIT, USUAL
from rebaser_core.updates import Set
from rebaser_core.values import INT64_MAX, INT64_MIN, check_json

_CBOR, _NAME = str(CBOR), COMMIT.name


def surely_reads_back(commit: Commit, headers: Headers, payload: bytes) -> bool:
    """Whether `headers` and `payload`, CBOR of version 1, surely read back as `commit`: one that
    decides requests and sets values, its delta inline.

    Raises `UnprocessableError` where what stands there cannot be read.
    """
    if commit.kind is not Kind.REBASE or commit.delta_blob is not None or commit.checkpoint is not None:
        return False
    if commit.attempt is not None or commit.recompute:
        return False
    says = headers.get
    if says(CONTENT_TYPE) != _CBOR or says(MESSAGE_TYPE) != _NAME or says(MESSAGE_VERSION) != "1":
        return False
    source = BytesIO(payload)
    raw: Any = read_unchecked(source, COMMIT_LIMITS)
    if source.tell() != len(payload) or type(raw) is not dict or len(raw) != 1:
        return False
    body = raw.get("v1")
    return (
        type(body) is dict
        and body.keys() <= USUAL
        and _same_fields(body, commit, headers)
        and _same_decisions(body.get("requests", []), commit.requests)
        and _same_updates(body.get("delta"), commit.delta)
    )


def _same_fields(body: dict[str, Any], commit: Commit, headers: Headers) -> bool:
    """All but requests and delta; also that `headers` repeat place and debt."""
    get = body.get
    id_, kind, owner, applied, covers = get("id"), get("kind"), get("owner"), get("applied"), get("covers")
    previous, at_ms, forget, debt = get("previous"), get("atMs"), get("forgetBeforeMs", 0), get("debt", 0)
    if not (type(id_) is type(kind) is type(owner) is str and kind == "rebase"):
        return False
    if id_ != commit.id or owner != commit.owner or previous != commit.previous or at_ms != commit.at_ms:
        return False
    if forget != commit.forget_before_ms or debt != commit.debt or covers != commit.covers:
        return False
    place = ""
    reached: Any = 0
    if applied is not None:
        meant = commit.applied
        if meant is None or type(applied) is not dict or len(applied) != 2:
            return False
        stream, reached = applied.get("stream"), applied.get("sequence")
        if type(stream) is not str or stream != meant.stream or reached != meant.sequence:
            return False
        place = f"{stream}:{reached}"
    elif commit.applied is not None:
        return False
    if covers is None:
        covers = 0
    if not type(previous) is type(at_ms) is type(forget) is type(debt) is type(covers) is type(reached) is int:
        return False
    most = INT64_MAX
    if not (0 <= previous <= most and 0 <= at_ms <= most and 0 <= forget <= most):
        return False
    if not (0 <= debt <= most and 0 <= covers <= most and 0 <= reached <= most):
        return False
    return headers.get(APPLIED) == place and headers.get(DEBT) == str(debt)


def _same_decisions(rows: Any, decisions: Sequence[Decision]) -> bool:
    """Of successes about which there is nothing to say but how many updates were performed."""
    if type(rows) is not list or len(rows) != len(decisions):
        return False
    success, bits = Outcome.SUCCESS, 0
    try:
        for (sequence, request_id, outcome, performed), one in zip(rows, decisions):  # noqa: B905 - as many of both
            if not (type(sequence) is type(performed) is int and type(request_id) is str):  # so it is a list
                return False
            if sequence != one.sequence or request_id != one.request_id or performed != one.performed:
                return False
            if outcome != "success" or one.outcome is not success:
                return False
            if one.code or one.message or one.redrive or one.attempts:
                return False
            bits |= sequence | performed
    except (TypeError, ValueError):  # not a row of four
        return False
    return 0 <= bits <= INT64_MAX  # so are all of them


def _same_updates(found: Any, updates: Delta) -> bool:
    if found is None or not updates:
        return found is None and not updates
    if type(found) is not dict or len(found) != 1:
        return False
    items = found.get("updates")
    if type(items) is not list or len(items) != len(updates) or type(updates) is not tuple:
        return False
    longest, low, high = COMMIT_LIMITS.max_id_length, INT64_MIN, INT64_MAX
    try:
        for item, one in zip(items, updates):  # noqa: B905 - as many of both
            id_, value = item["id"], item["value"]
            if type(one) is not Set or item["op"] != "set" or len(item) != 3:
                return False
            if not (type(id_) is str and id_ == one.id and 0 < len(id_) <= longest and id_.isprintable()):
                return False
            if not (type(value) is int and low <= value <= high):
                value = check_json(value, COMMIT_LIMITS)
            if value != one.value:
                return False
    except (KeyError, TypeError):  # not a map of these three
        return False
    return True

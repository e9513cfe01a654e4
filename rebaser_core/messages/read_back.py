"""Whether a reader finds in a payload the commit that it was made of, for less than reading it costs.

Invariant: True only where `decode_commit` gives an equal commit; False says nothing. It runs for every commit before it
is stored, so it compares what stands in the payload with the commit, and builds nothing.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from rebaser_core.commit import Applied, Commit, Decision, Delta, Kind
from rebaser_core.encoding.payload import read_unchecked
from rebaser_core.limits import COMMIT_LIMITS
from rebaser_core.messages.commit import USUAL
from rebaser_core.updates import Set
from rebaser_core.values import INT64_MAX, check_json


def surely_reads_back(commit: Commit, payload: bytes) -> bool:
    """Whether `payload`, CBOR of version 1, surely reads back as `commit`: one that
    decides requests and sets values, its delta inline.

    Raises `UnprocessableError` where what stands there cannot be read.
    """
    more = (commit.delta_blob, commit.checkpoint, commit.attempt)
    if commit.kind is not Kind.REBASE or more != (None, None, None) or commit.recompute:
        return False
    source = BytesIO(payload)
    raw: Any = read_unchecked(source, COMMIT_LIMITS)
    if source.tell() != len(payload) or type(raw) is not dict or len(raw) != 1:
        return False
    body = raw.get("v1")
    if type(body) is not dict or not body.keys() <= USUAL:
        return False
    get = body.get
    return (
        _same_text(get("id"), commit.id)
        and _same_text(get("kind"), commit.kind)
        and _same_text(get("owner"), commit.owner)
        and _same_number(get("previous"), commit.previous)
        and _same_number(get("atMs"), commit.at_ms)
        and _same_number(get("forgetBeforeMs", 0), commit.forget_before_ms)
        and _same_number(get("debt", 0), commit.debt)
        and (get("covers") is None if commit.covers is None else _same_number(get("covers"), commit.covers))
        and _same_place(get("applied"), commit.applied)
        and _same_decisions(get("requests"), commit.requests)
        and _same_updates(get("delta"), commit.delta)
    )


def _same_text(found: object, meant: str) -> bool:
    return type(found) is str and found == meant


def _same_number(found: object, meant: int | None) -> bool:
    return type(found) is int and found == meant and 0 <= found <= INT64_MAX


def _same_place(found: Any, meant: Applied | None) -> bool:
    if meant is None or type(found) is not dict or len(found) != 2:
        return found is meant
    return _same_text(found.get("stream"), meant.stream) and _same_number(found.get("sequence"), meant.sequence)


def _same_decisions(rows: Any, decisions: Sequence[Decision]) -> bool:
    """Of decisions about which there is nothing to say but how many updates were performed."""
    if type(rows) is not list or len(rows) != len(decisions):
        return rows is None and not decisions
    for row, one in zip(rows, decisions, strict=True):
        if type(row) is not list or len(row) != 4 or one.code or one.message or one.redrive or one.attempts:
            return False
        sequence, request_id, outcome, performed = row
        if not (type(sequence) is type(performed) is int and type(request_id) is type(outcome) is str):
            return False
        if sequence != one.sequence or request_id != one.request_id or performed != one.performed:
            return False
        if outcome != one.outcome or not (0 <= sequence <= INT64_MAX and 0 <= performed <= INT64_MAX):
            return False
    return True


def _same_updates(found: Any, updates: Delta) -> bool:
    if found is None or not updates:
        return found is None and not updates
    if type(found) is not dict or len(found) != 1:
        return False
    items = found.get("updates")
    if type(items) is not list or len(items) != len(updates) or type(updates) is not tuple:
        return False
    most = COMMIT_LIMITS.max_id_length
    for item, one in zip(items, updates, strict=True):
        if type(one) is not Set or type(item) is not dict or len(item) != 3 or item.get("op") != "set":
            return False
        id_ = item.get("id")
        if not (type(id_) is str and id_ == one.id and 0 < len(id_) <= most and id_.isprintable()):
            return False
        if "value" not in item or check_json(item["value"], COMMIT_LIMITS) != one.value:
            return False
    return True

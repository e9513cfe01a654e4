"""Checks that an encoded commit decodes to the same commit, without the cost of decoding it.

Invariant: the check returns true only if `decode_commit` would return an equal commit and `read_sweep_headers` would
return the commit's `applied` and `debt`. If the check returns false, the commit has to be decoded to find out. The
check runs before each commit is stored, so it must be fast: it compares the fields of the message with those of the
commit, creates no objects, and calls few functions. Most lists have one item. For those, `zip` and `enumerate` take
longer than the comparisons, so the loops below count instead.
"""

from collections.abc import Sequence
from typing import Any

from rebaser_core.blobs.address import is_address
from rebaser_core.commit import Authorship, CheckpointRef, Commit, Decision, Delta, Outcome
from rebaser_core.encoding.envelope import APPLIED, CBOR, CONTENT_TYPE, DEBT, MESSAGE_TYPE, MESSAGE_VERSION, Headers
from rebaser_core.encoding.payload import read_first
from rebaser_core.limits import COMMIT_LIMITS
from rebaser_core.messages.commit import COMMIT
from rebaser_core.messages.plain import is_plain
from rebaser_core.updates import Set
from rebaser_core.values import INT64_MAX, INT64_MIN, check_json

_CBOR, _NAME = str(CBOR), COMMIT.name
_SUCCESS = Outcome.SUCCESS  # a lookup of an enum member takes 0.1 µs in Python 3.11


def surely_reads_back(commit: Commit, headers: Headers, payload: bytes) -> bool:
    """Return whether `headers` and `payload` are certain to decode to `commit`.

    Only the most common commits are checked: commits of version 1 or 3 in CBOR that decide requests, whose updates and
    replaced definitions are all of the type `Set`, that refer to no blobs, and that do not belong to a branch. For any
    other commit, return false. Raise `UnprocessableError` if `payload` is not CBOR.
    """
    if not is_plain(commit):
        return False
    header = headers.get
    before = commit.before
    version, tag = ("1", "v1") if before is None else ("3", "v3")
    if header(CONTENT_TYPE) != _CBOR or header(MESSAGE_TYPE) != _NAME or header(MESSAGE_VERSION) != version:
        return False
    raw: Any
    raw, end = read_first(payload, COMMIT_LIMITS)
    if end != len(payload) or type(raw) is not dict or len(raw) != 1:
        return False
    body = raw.get(tag)
    return (
        type(body) is dict
        # Each comparison takes its fields out of `body`. A field that is left is unusual.
        and _same_fields(body, commit, headers)
        and _same_checkpoint(body.pop("checkpoint", None), commit.checkpoint)
        and _same_decisions(body.pop("requests", []), commit.requests)
        and _same_updates(body.pop("delta", None), commit.delta)
        and (_same_updates(body.pop("before", None), before) if before else before is None or before == ())
        and _same_authors([] if before is None else body.pop("authors", []), commit.authors)
        and (not commit.authors or len(commit.authors) == len(commit.requests))
        and not body
    )


def _same_fields(body: dict[str, Any], commit: Commit, headers: Headers) -> bool:
    """Return whether the numbers and names in `body` equal those of `commit`, and whether the headers contain the same
    `applied` and `debt`. Take these fields out of `body`."""
    pop = body.pop
    id_, kind, owner, previous = pop("id", None), pop("kind", None), pop("owner", None), pop("previous", None)
    at_ms, applied, covers = pop("atMs", None), pop("applied", None), pop("covers", None)
    forget, debt = pop("forgetBeforeMs", 0), pop("debt", 0)
    if not (type(id_) is type(kind) is type(owner) is str and kind == "rebase"):
        return False
    if id_ != commit.id or owner != commit.owner or previous != commit.previous or at_ms != commit.at_ms:
        return False
    if forget != commit.forget_before_ms or debt != commit.debt or covers != commit.covers:
        return False
    applied_header = ""
    reached: Any = 0
    if applied is not None:
        expected = commit.applied
        if expected is None or type(applied) is not dict or len(applied) != 2:
            return False
        stream, reached = applied.get("stream"), applied.get("sequence")
        if type(stream) is not str or stream != expected.stream or reached != expected.sequence:
            return False
        applied_header = f"{stream}:{reached}"
    elif commit.applied is not None:
        return False
    if covers is None:
        covers = 0
    if not type(previous) is type(at_ms) is type(forget) is type(debt) is type(covers) is type(reached) is int:
        return False
    if not 0 <= previous | at_ms | forget | debt | covers | reached <= INT64_MAX:  # true only if it is for each of them
        return False
    return headers.get(APPLIED) == applied_header and headers.get(DEBT) == str(debt)


def _same_checkpoint(raw: Any, checkpoint: CheckpointRef | None) -> bool:
    """Return whether `raw` is the wire form of `checkpoint`, or both are None. Return false for the checkpoint of a
    branch."""
    if raw is None or checkpoint is None:
        return raw is None and checkpoint is None
    if type(raw) is not dict or len(raw) != 3 or checkpoint.changes is not None:
        return False
    address, sequence, size = raw.get("address"), raw.get("sequence"), raw.get("size")
    return (
        type(sequence) is type(size) is int
        and type(address) is str
        and sequence == checkpoint.sequence
        and size == checkpoint.size
        and 0 <= sequence <= INT64_MAX
        and 0 <= size <= INT64_MAX
        and address == checkpoint.address
        and is_address(address)
    )


def _same_decisions(rows: Any, decisions: Sequence[Decision]) -> bool:
    """Return whether `rows` are the wire form of `decisions`. Return false if any decision is not a plain success."""
    if type(rows) is not list or len(rows) != len(decisions):
        return False
    at = bits = 0
    try:
        for sequence, request_id, outcome, performed in rows:
            decision = decisions[at]
            at += 1
            # Unpacking a map or a text may also succeed; this check then fails.
            if not (type(sequence) is type(performed) is int and type(request_id) is str):
                return False
            if sequence != decision.sequence or request_id != decision.request_id or performed != decision.performed:
                return False
            if outcome != "success" or decision.outcome is not _SUCCESS:
                return False
            if decision.code or decision.message or decision.redrive or decision.attempts:
                return False
            if decision.position != 0 or decision.unresolved != 0 or decision.result is not None:
                return False
            bits |= sequence | performed
    except (TypeError, ValueError):  # a row is not a list of four items
        return False
    return 0 <= bits <= INT64_MAX  # this is true only if each of the numbers is in this range


def _same_authors(rows: Any, authors: tuple[Authorship, ...]) -> bool:
    if type(rows) is not list or type(authors) is not tuple or len(rows) != len(authors):
        return False
    at = 0
    for row in rows:
        one = authors[at]
        at += 1  # noqa: SIM113 - see above
        if not (type(row) is list and len(row) == 2 and type(row[0]) is type(row[1]) is str):
            return False
        if row[0] != one.author or row[1] != one.message:
            return False
    return True


def _same_updates(delta: Any, updates: Delta) -> bool:
    """Return whether `delta` is the wire form of `updates`. Return false if any update is not a `Set`."""
    if delta is None or not updates:
        return delta is None and not updates
    if type(delta) is not dict or len(delta) != 1:
        return False
    items = delta.get("updates")
    if type(items) is not list or len(items) != len(updates) or type(updates) is not tuple:
        return False
    longest, low, high = COMMIT_LIMITS.max_id_length, INT64_MIN, INT64_MAX
    at = 0
    try:
        for item in items:
            update = updates[at]
            at += 1
            id_, value = item["id"], item["value"]
            if type(update) is not Set or item["op"] != "set" or len(item) != 3:
                return False
            if not (type(id_) is str and id_ == update.id and 0 < len(id_) <= longest and id_.isprintable()):
                return False
            if not (type(value) is int and low <= value <= high):
                value = check_json(value, COMMIT_LIMITS)
            if value != update.value:
                return False
    except (KeyError, TypeError):  # an item is not a map with the keys op, id and value
        return False
    return True

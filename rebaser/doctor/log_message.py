"""Classifies the messages of a log, and extracts the readable parts of damaged messages. This module does no I/O.

Invariant: `classify_message` accepts any bytes and headers and never raises. The fields that are extracted from a
damaged commit are shown to people, who may have to repeat lost edits by hand. Only one of these fields, `applied`, is
ever used in a repaired state.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from io import BytesIO
from typing import Any

from rebaser_core.commit import Applied, Commit, Decision, Kind
from rebaser_core.encoding.envelope import APPLIED, CONTENT_TYPE, DEBT, MESSAGE_TYPE, MESSAGE_VERSION
from rebaser_core.encoding.payload import JSON, LIST, MAP, ContentType, loads, read_head, read_item
from rebaser_core.errors import RebaserError, UnprocessableError, UnsupportedVersion
from rebaser_core.limits import COMMIT_LIMITS
from rebaser_core.messages import decode_commit, read_sweep_headers
from rebaser_core.messages.commit import COMMIT
from rebaser_core.messages.commit_fields.decision import read_decision

MAX_LISTED = 10_000  # maximum number of requests, and of ids, that are kept for one damaged commit


class Classification(Enum):
    """The kinds of messages in a log."""

    COMMIT = "commit"
    FOREIGN = "foreign"  # a message that does not claim to be a commit; readers skip it
    DAMAGED = "damaged"
    NEWER = "newer"  # a message that only a newer version of Rebaser may be able to read


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """The readable parts of a commit. Fields that cannot be read are None or empty.

    `applied_known` is true if `applied` could be read, even if its value is None. `changes` is the number of values
    that the commit changed, and `ids` are their ids, `MAX_LISTED` at most. `checkpoint` is the address of the
    checkpoint that the commit refers to.
    """

    kind: Kind | None = None
    at_ms: int | None = None
    owner: str = ""
    previous: int | None = None
    checkpoint: str = ""
    applied_known: bool = False
    applied: Applied | None = None
    decisions: tuple[Decision, ...] = ()
    changes: int | None = None
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A message of a log. `time_ns` is the time at which it was stored (Unix ns).

    `commit` is the decoded commit without its delta; `decode_full` adds the delta. `commit` is None if the message is
    not a readable commit. `reason` is the reason why the message is not readable, or the problem with its headers.
    `decode_headers` are headers with which the payload can be decoded. `unlabelled` is true if the payload is a commit
    but the headers do not say so; readers skip such a message.
    """

    sequence: int
    time_ns: int
    headers: Mapping[str, str]
    data: bytes
    classification: Classification
    reason: str = ""
    commit: Commit | None = None
    decode_headers: Mapping[str, str] | None = None
    unlabelled: bool = False

    def decode_full(self) -> Commit:
        """Return the commit with its delta, unless the delta is stored in a blob."""
        return decode_commit(self.decode_headers, self.data, sequence=self.sequence)

    def summary(self) -> CommitSummary:
        """Return the readable parts of the message. `applied` comes from the headers if they can be read."""
        summary = _summarize_damaged(self.data)
        try:
            applied, _ = read_sweep_headers({DEBT: "0", **self.headers})
        except UnprocessableError:
            return summary
        return replace(summary, applied_known=True, applied=applied)


def classify_message(sequence: int, time_ns: int, headers: Mapping[str, str], data: bytes) -> LogMessage:
    """Return a log message with these contents, classified, and decoded as far as it can be read."""
    message = LogMessage(sequence, time_ns, headers, data, Classification.COMMIT, decode_headers=headers)
    try:
        return replace(message, commit=_without_delta(decode_commit(headers, data)))
    except UnsupportedVersion as error:
        return replace(message, classification=Classification.NEWER, reason=error.message)
    except UnprocessableError as error:
        reason, claims_commit = error.message, error.code != "foreign"
    decoded = _decode_by_payload(data)
    if decoded is not None:
        decode_headers, commit = decoded
        return replace(
            message,
            reason=reason,
            commit=_without_delta(commit),
            decode_headers=decode_headers,
            unlabelled=not claims_commit,
        )
    if claims_commit or APPLIED in headers or DEBT in headers:  # only commits carry these headers
        return replace(message, classification=Classification.DAMAGED, reason=reason)
    return replace(message, classification=Classification.FOREIGN, reason=reason)


def summarize_commit(commit: Commit) -> CommitSummary:
    """Return the summary of a decoded commit."""
    ids = tuple(item.id for item, _ in zip(commit.delta, range(MAX_LISTED), strict=False))
    changes = None if commit.delta_blob is not None and not commit.delta else len(commit.delta)
    return CommitSummary(
        kind=commit.kind,
        at_ms=commit.at_ms,
        owner=commit.owner,
        previous=commit.previous,
        checkpoint=commit.checkpoint.address if commit.checkpoint else "",
        applied_known=True,
        applied=commit.applied,
        decisions=commit.requests,
        changes=changes,
        ids=ids,
    )


def _without_delta(commit: Commit) -> Commit:
    return replace(commit, delta=())


def _decode_by_payload(data: bytes) -> tuple[dict[str, str], Commit] | None:
    """Decode a commit from its payload alone. Return the headers that it should have, and the commit; None if the
    payload is not a commit."""
    for content_type in ContentType:
        for version in range(1, COMMIT.current + 1):
            headers = {CONTENT_TYPE: content_type.value, MESSAGE_TYPE: COMMIT.name, MESSAGE_VERSION: str(version)}
            try:
                return headers, decode_commit(headers, data)
            except RebaserError:
                continue
    return None


# -- damaged payloads --------------------------------------------------------------------------------------------------


def _summarize_damaged(data: bytes) -> CommitSummary:
    fields = _json_fields(data) if data[:1] == b"{" else _cbor_fields(data)
    kind, owner, checkpoint = (fields.get(name) for name in ("kind", "owner", "checkpoint"))
    address = checkpoint.get("address") if type(checkpoint) is dict else None
    delta = fields.get("delta")
    items = next(iter(delta.values()), None) if type(delta) is dict and "address" not in delta else None
    ids = [item.get("id") for item in items[:MAX_LISTED] if type(item) is dict] if type(items) is list else []
    applied = _applied(fields.get("applied"))
    return CommitSummary(
        kind=next((known for known in Kind if known.value == kind), None),
        at_ms=_count(fields.get("atMs")),
        owner=owner if type(owner) is str else "",
        previous=_count(fields.get("previous")),
        checkpoint=address if type(address) is str else "",
        applied_known=applied is not None,
        applied=applied,
        decisions=_decisions(fields.get("requests")),
        changes=len(items) if type(items) is list else None,
        ids=tuple(id_ for id_ in ids if type(id_) is str and id_),
    )


def _count(raw: object) -> int | None:
    return raw if type(raw) is int and raw >= 0 else None


def _applied(raw: object) -> Applied | None:
    stream, sequence = (raw.get("stream"), _count(raw.get("sequence"))) if type(raw) is dict else (None, None)
    return Applied(stream, sequence) if type(stream) is str and sequence is not None else None


def _decisions(rows: object) -> tuple[Decision, ...]:
    decisions = []
    for row in rows[:MAX_LISTED] if type(rows) is list else ():
        try:
            decisions.append(read_decision(row))
        except RebaserError:
            continue
    return tuple(decisions)


def _json_fields(data: bytes) -> dict[str, Any]:
    try:
        raw = loads(JSON, data, COMMIT_LIMITS)
    except UnprocessableError:
        return {}
    body = next(iter(raw.values()), None) if type(raw) is dict else None
    return body if type(body) is dict else {}


def _cbor_fields(data: bytes) -> dict[str, Any]:
    """Return the fields of a commit in CBOR, up to the first one that cannot be decoded."""
    source = BytesIO(data)
    fields: dict[str, Any] = {}
    with suppress(UnprocessableError):
        read_head(source, MAP)
        read_item(source, COMMIT_LIMITS)
        for _ in range(read_head(source, MAP)):
            name = str(read_item(source, COMMIT_LIMITS))
            position = source.tell()
            try:
                fields[name] = read_item(source, COMMIT_LIMITS)
            except UnprocessableError:
                if name in ("delta", "requests"):
                    source.seek(position)
                    fields[name] = _cbor_list(source) if name == "requests" else _cbor_delta(source)
                break
    return fields


def _cbor_delta(source: BytesIO) -> dict[str, Any]:
    read_head(source, MAP)
    return {str(read_item(source, COMMIT_LIMITS)): _cbor_list(source)}


def _cbor_list(source: BytesIO) -> list[Any]:
    items: list[Any] = []
    with suppress(UnprocessableError):
        count = min(read_head(source, LIST), MAX_LISTED)
        while len(items) < count:
            items.append(read_item(source, COMMIT_LIMITS))
    return items

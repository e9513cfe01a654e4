"""What a message on a log says, damaged or not. Pure.

Invariant: whatever bytes and headers come in, `read_entry` gives an entry. What it can tell of a damaged commit is for
people, who may need it to mend by hand what was lost; but for `applied` nothing of it comes into a state.
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
from rebaser_core.messages.commit import COMMIT, read_decision

LISTED = 10_000  # requests, or ids, that are kept of one damaged commit


class Reading(Enum):
    """What a message on a log is."""

    COMMIT = "commit"
    FOREIGN = "foreign"  # it does not claim to be a commit: readers skip it
    DAMAGED = "damaged"
    NEWER = "newer"  # a newer program may read it


@dataclass(frozen=True, slots=True)
class Told:
    """What can be read of a commit; None, or empty, what cannot.

    `says_applied`: whether `applied` was read, which may be None. `changes`: how many values it touched, `ids` which.
    `checkpoint`: the address of the one that it names.
    """

    kind: Kind | None = None
    at_ms: int | None = None
    owner: str = ""
    previous: int | None = None
    checkpoint: str = ""
    says_applied: bool = False
    applied: Applied | None = None
    decisions: tuple[Decision, ...] = ()
    changes: int | None = None
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A message on a log, stored at `time_ns` (Unix).

    `commit`: what it says if it is one, without its delta; `full` reads that. `reason`: why it is none, or what its
    headers lack. `nameless`: a commit by what it holds alone, which readers skip.
    """

    sequence: int
    time_ns: int
    headers: Mapping[str, str]
    data: bytes
    reading: Reading
    reason: str = ""
    commit: Commit | None = None
    read_as: Mapping[str, str] | None = None  # headers with which it is read
    nameless: bool = False

    def full(self) -> Commit:
        """The commit with its delta, unless that stands in a blob."""
        return replace(decode_commit(self.read_as, self.data), sequence=self.sequence)

    def told(self) -> Told:
        """What can be read of it."""
        told = _glimpse(self.data)
        try:
            applied, _ = read_sweep_headers({DEBT: "0", **self.headers})
        except UnprocessableError:
            return told
        return replace(told, says_applied=True, applied=applied)


def read_entry(sequence: int, time_ns: int, headers: Mapping[str, str], data: bytes) -> Entry:
    """The entry that a message is."""
    entry = Entry(sequence, time_ns, headers, data, Reading.COMMIT, read_as=headers)
    try:
        return replace(entry, commit=_light(decode_commit(headers, data)))
    except UnsupportedVersion as error:
        return replace(entry, reading=Reading.NEWER, reason=error.message)
    except UnprocessableError as error:
        reason, claims = error.message, error.code != "foreign"
    mended = _by_payload(data)
    if mended is not None:
        read_as, commit = mended
        return replace(entry, reason=reason, commit=_light(commit), read_as=read_as, nameless=not claims)
    if claims or APPLIED in headers or DEBT in headers:  # who else would put these there?
        return replace(entry, reading=Reading.DAMAGED, reason=reason)
    return replace(entry, reading=Reading.FOREIGN, reason=reason)


def told_of(commit: Commit) -> Told:
    """The same for a commit that was read."""
    ids = tuple(item.id for item, _ in zip(commit.delta, range(LISTED), strict=False))
    changes = None if commit.delta_blob is not None and not commit.delta else len(commit.delta)
    return Told(
        kind=commit.kind,
        at_ms=commit.at_ms,
        owner=commit.owner,
        previous=commit.previous,
        checkpoint=commit.checkpoint.address if commit.checkpoint else "",
        says_applied=True,
        applied=commit.applied,
        decisions=commit.requests,
        changes=changes,
        ids=ids,
    )


def _light(commit: Commit) -> Commit:
    return replace(commit, delta=())


def _by_payload(data: bytes) -> tuple[dict[str, str], Commit] | None:
    """A commit whose payload is whole, and the headers that it should have."""
    for content_type in ContentType:
        for version in range(1, COMMIT.current + 1):
            headers = {CONTENT_TYPE: content_type.value, MESSAGE_TYPE: COMMIT.name, MESSAGE_VERSION: str(version)}
            try:
                return headers, decode_commit(headers, data)
            except RebaserError:
                continue
    return None


# -- damaged payloads --------------------------------------------------------------------------------------------------


def _glimpse(data: bytes) -> Told:
    fields = _json_fields(data) if data[:1] == b"{" else _cbor_fields(data)
    kind, owner, checkpoint = (fields.get(name) for name in ("kind", "owner", "checkpoint"))
    address = checkpoint.get("address") if type(checkpoint) is dict else None
    delta = fields.get("delta")
    items = next(iter(delta.values()), None) if type(delta) is dict and "address" not in delta else None
    found = [item.get("id") for item in items[:LISTED] if type(item) is dict] if type(items) is list else []
    applied = _applied(fields.get("applied"))
    return Told(
        kind=next((one for one in Kind if one.value == kind), None),
        at_ms=_count(fields.get("atMs")),
        owner=owner if type(owner) is str else "",
        previous=_count(fields.get("previous")),
        checkpoint=address if type(address) is str else "",
        says_applied=applied is not None,
        applied=applied,
        decisions=_decisions(fields.get("requests")),
        changes=len(items) if type(items) is list else None,
        ids=tuple(id_ for id_ in found if type(id_) is str and id_),
    )


def _count(raw: object) -> int | None:
    return raw if type(raw) is int and raw >= 0 else None


def _applied(raw: object) -> Applied | None:
    stream, sequence = (raw.get("stream"), _count(raw.get("sequence"))) if type(raw) is dict else (None, None)
    return Applied(stream, sequence) if type(stream) is str and sequence is not None else None


def _decisions(rows: object) -> tuple[Decision, ...]:
    found = []
    for row in rows[:LISTED] if type(rows) is list else ():
        try:
            found.append(read_decision(row))
        except RebaserError:
            continue
    return tuple(found)


def _json_fields(data: bytes) -> dict[str, Any]:
    try:
        raw = loads(JSON, data, COMMIT_LIMITS)
    except UnprocessableError:
        return {}
    body = next(iter(raw.values()), None) if type(raw) is dict else None
    return body if type(body) is dict else {}


def _cbor_fields(data: bytes) -> dict[str, Any]:
    """The fields of a commit up to the first that cannot be read."""
    source = BytesIO(data)
    fields: dict[str, Any] = {}
    with suppress(UnprocessableError):
        read_head(source, MAP)
        read_item(source, COMMIT_LIMITS)
        for _ in range(read_head(source, MAP)):
            name = str(read_item(source, COMMIT_LIMITS))
            at = source.tell()
            try:
                fields[name] = read_item(source, COMMIT_LIMITS)
            except UnprocessableError:
                if name in ("delta", "requests"):
                    source.seek(at)
                    fields[name] = _cbor_list(source) if name == "requests" else _cbor_delta(source)
                break
    return fields


def _cbor_delta(source: BytesIO) -> dict[str, Any]:
    read_head(source, MAP)
    return {str(read_item(source, COMMIT_LIMITS)): _cbor_list(source)}


def _cbor_list(source: BytesIO) -> list[Any]:
    items: list[Any] = []
    with suppress(UnprocessableError):
        left = min(read_head(source, LIST), LISTED)
        while len(items) < left:
            items.append(read_item(source, COMMIT_LIMITS))
    return items

"""Defines the wire format of three fields of `create` commits: the origin, the status, and the earlier outcomes."""

from base64 import b64decode, b64encode
from typing import Any

from pydantic import Field

from rebaser_core.blobs.address import check_address
from rebaser_core.commit import BlobRef, BranchStatus, CarriedOutcome, Commit, Origin, TailRow
from rebaser_core.encoding.envelope import Body, Count
from rebaser_core.encoding.payload import malformed
from rebaser_core.errors import UnsupportedVersion
from rebaser_core.ids import check_token
from rebaser_core.messages.commit_fields.decision import read_decision, write_decision
from rebaser_core.messages.content_digest import SIZE
from rebaser_core.values import INT64_MAX

AUTO, MANUAL = "auto", "manual"  # with `auto`, a branch takes over edits of its target automatically


class OriginV3(Body):
    """The wire model of the origin of a change set.

    `commits` contains the messages copied from the parent's log, as rows of sequence, version and wire map, or the
    address and the size of the blob that contains these rows. `follow` is `auto` or `manual`.
    """

    change_set: str
    sequence: Count
    target: str
    base: Count
    commits: list[Any] | dict[str, Any] = Field(default_factory=list)
    follow: str = MANUAL


def read_follow(text: str) -> bool:
    """Return whether a branch follows its target; `text` is the field `follow`. Raise `UnsupportedVersion` if its
    content is unknown."""
    if text not in (AUTO, MANUAL):
        raise UnsupportedVersion(
            f"the field 'follow' has the unknown content {text[:40]!r}: use a newer release of Rebaser"
        )
    return text == AUTO


_STATUSES = {str(status): status for status in BranchStatus}


def read_status(text: str) -> BranchStatus:
    status = _STATUSES.get(text)
    if status is None:
        raise UnsupportedVersion(f"a change set has the unknown status {text[:40]!r}: use a newer release of Rebaser")
    return status


def read_origin(body: OriginV3) -> Origin:
    blob = read_blob(body.commits) if isinstance(body.commits, dict) else None
    return Origin(
        check_token(body.change_set, "change set"),
        body.sequence,
        check_token(body.target, "change set"),
        body.base,
        () if isinstance(body.commits, dict) else read_tail(body.commits),
        blob,
        read_follow(body.follow),
    )


def read_tail(rows: list[Any]) -> tuple[TailRow, ...]:
    """Return the copied messages in `rows`, without decoding their wire maps. Raise `UnprocessableError` if a row is
    invalid."""
    return tuple([_read_row(row) for row in rows])


def _read_row(row: object) -> TailRow:
    if type(row) is not list or len(row) not in (1, 3) or type(row[0]) is not int or row[0] < 1:
        raise malformed("a copied message must be a list of a sequence, or of a sequence, a version and a map")
    if len(row) == 1:
        return TailRow(row[0])
    if type(row[1]) is not int or row[1] < 1 or type(row[2]) is not dict:
        raise malformed("the version of a copied commit must be a positive number, and its content must be a map")
    return TailRow(row[0], row[1], row[2])


def write_tail(rows: tuple[TailRow, ...]) -> list[Any]:
    return [[row.sequence] if row.body is None else [row.sequence, row.version, row.body] for row in rows]


def read_carried(row: object) -> CarriedOutcome:
    if type(row) is not list or len(row) not in (3, 4):
        raise malformed("a carried outcome must be a list of commit, time and decision, and optionally a digest")
    commit, at_ms = row[:2]
    if not (type(commit) is type(at_ms) is int and commit >= 0 and at_ms >= 0):
        raise malformed("the commit or the time of a carried outcome is not a natural number")
    decision = read_decision(row[2])
    if len(row) == 4:
        object.__setattr__(decision, "digest", _digest(row[3]))
    return CarriedOutcome(decision, commit, at_ms)


def _digest(text: object) -> bytes:
    try:
        digest = b64decode(text, validate=True) if type(text) is str else b""
    except ValueError:
        digest = b""
    if len(digest) != SIZE:
        raise malformed(f"the digest of a carried outcome is not the Base64 text of {SIZE} bytes")
    return digest


def _write_carried(outcome: CarriedOutcome) -> list[Any]:
    digest = outcome.decision.digest
    row = [outcome.commit, outcome.at_ms, write_decision(outcome.decision)]
    return [*row, b64encode(digest).decode()] if digest else row


def write_create(commit: Commit) -> dict[str, Any]:
    """Return the fields of the wire map of `commit` that only `create` commits have."""
    wire: dict[str, Any] = {}
    origin = commit.origin
    if origin is not None:
        copied = write_tail(origin.tail) if origin.tail_blob is None else write_blob(origin.tail_blob)
        wire["origin"] = {
            "changeSet": origin.change_set,
            "sequence": origin.sequence,
            "target": origin.target,
            "base": origin.base,
            **({"commits": copied} if copied else {}),
            **({"follow": AUTO} if origin.follows else {}),
        }
    if commit.status is not None:
        wire["status"] = commit.status.value
    if commit.carried:
        wire["carried"] = [_write_carried(outcome) for outcome in commit.carried]
    return wire


def read_blob(raw: dict[str, Any]) -> BlobRef:
    size = raw.get("size")
    if len(raw) != 2 or type(size) is not int or not 0 <= size <= INT64_MAX:
        raise malformed("a reference to a blob must be a map with the keys 'address' and 'size'")
    return BlobRef(check_address(raw.get("address")), size)


def write_blob(blob: BlobRef) -> dict[str, Any]:
    return {"address": blob.address, "size": blob.size}

"""Writes the payloads of plain messages faster than cbor2 does. Nearly all messages are plain.

A plain request has only edits of the type `Set`, a plain reply reports a success, and a plain commit decides requests
that were successful and have only edits of the type `Set`, and belongs to no branch.

Invariant: the bytes are those that `dumps` returns for the wire map that the `write` of the message's type returns. For
a message that is not plain, each function returns None; the message is then written with these two functions.
"""

from collections.abc import Sequence

from rebaser_core.commit import Commit, Decision, Kind, Outcome
from rebaser_core.encoding.cbor_writer import item, list_head, map_head, often, text, uint
from rebaser_core.response import EnqueueUpdatesResponse, Success
from rebaser_core.updates import Set, Update

_REBASE, _OK = Kind.REBASE, Outcome.SUCCESS  # a lookup of an enum member takes 0.1 µs in Python 3.11
Written = tuple[int, bytes] | None  # the version of a payload, and the payload

_V1, _V2, _V3 = (b"\xa1\x62v%d" % version for version in (1, 2, 3))
_SUCCESS = (
    _V1 + b"\xa4\x62id%b\x6bworkspaceId%b\x6bchangeSetId%b\x66status\xa1\x67success\xa2\x69performed%b\x66commit%b"
)


def write_plain_request(id_: str, workspace: str, change_set: str, updates: Sequence[Update]) -> Written:
    """Return the version and the payload of a request that has only these fields."""
    rows = _sets(updates)
    if rows is None:
        return None
    try:
        names = text(id_), text(workspace), text(change_set)
    except UnicodeEncodeError:
        return None
    return 2, _V2 + b"\xa4\x62id%b\x6bworkspaceId%b\x6bchangeSetId%b\x67updates%b" % (*names, rows)


def write_plain_response(response: EnqueueUpdatesResponse) -> Written:
    """Return the version and the payload of a plain reply."""
    status = response.status
    if type(status) is not Success or status.position or status.conflicts:
        return None
    names = response.id, response.workspace_id, response.change_set_id
    try:
        return write_plain_success(*names, status.performed, status.commit)
    except (UnicodeEncodeError, OverflowError):
        return None


def write_plain_success(id_: str, workspace: str, change_set: str, performed: int, commit: int) -> tuple[int, bytes]:
    """Return the version and the payload of a reply that has only these fields."""
    return 1, _SUCCESS % (text(id_), text(workspace), text(change_set), uint(performed), uint(commit))


def is_plain(commit: Commit) -> bool:
    """Return whether `commit` has none of the fields that only unusual commits have. Its decisions and its edits may
    still be unusual."""
    if commit.kind is not _REBASE or commit.delta_blob is not None or commit.before_blob is not None:
        return False
    if commit.attempt is not None or commit.recompute or commit.reverts is not None or commit.source is not None:
        return False
    if commit.origin is not None or commit.status is not None or commit.branch is not None or commit.carried != ():
        return False
    if commit.begin != 0 or commit.edited is not None or commit.blobs or commit.settled != () or commit.protected:
        return False
    return commit.replay is None and commit.marking is None and commit.collection is None


def write_plain_commit(commit: Commit) -> Written:
    """Return the version and the payload of a plain commit."""
    if not is_plain(commit) or commit.applied is None or (commit.authors and commit.before is None):
        return None
    try:
        decisions, delta, before = _decisions(commit.requests), _sets(commit.delta), _sets(commit.before or ())
        if not decisions or delta is None or before is None:
            return None
        parts = [
            b"\x62id%b\x68previous%b\x64kind\x66rebase" % (text(commit.id), uint(commit.previous)),
            b"\x64atMs%b\x65owner%b" % (uint(commit.at_ms), often(commit.owner)),
            b"\x67applied\xa2\x66stream%b\x68sequence%b"
            % (often(commit.applied.stream), uint(commit.applied.sequence)),
        ]
        fields = 7  # with `requests`
        if commit.covers is not None:
            parts.append(b"\x66covers" + uint(commit.covers))
            fields += 1
        parts += (b"\x68requests", decisions)
        if commit.delta:
            parts += (b"\x65delta\xa1\x67updates", delta)
            fields += 1
        if (ref := commit.checkpoint) is not None:
            if ref.changes is not None:
                return None
            numbers = text(ref.address), uint(ref.sequence), uint(ref.size)
            parts.append(b"\x6acheckpoint\xa3\x67address%b\x68sequence%b\x64size%b" % numbers)
            fields += 1
        if commit.forget_before_ms:
            parts.append(b"\x6eforgetBeforeMs" + uint(commit.forget_before_ms))
            fields += 1
        if commit.debt:
            parts.append(b"\x64debt" + uint(commit.debt))
            fields += 1
        if commit.before:
            parts += (b"\x66before\xa1\x67updates", before)
            fields += 1
        if commit.authors:
            rows = [b"\x82%b%b" % (text(one.author), text(one.message)) for one in commit.authors]
            parts += (b"\x67authors", list_head(len(rows)), *rows)
            fields += 1
    except (UnicodeEncodeError, OverflowError):
        return None
    version, tag = (1, _V1) if commit.before is None else (3, _V3)
    return version, b"".join([tag, map_head(fields), *parts])


def _decisions(decisions: Sequence[Decision]) -> bytes | None:
    """Write the rows of `decisions`. Return None if any of them is not a success without details."""
    rows = [list_head(len(decisions))]
    for one in decisions:
        if one.outcome is not _OK or not one.performed or one.code or one.message or one.redrive:
            return None
        if one.attempts or one.position or one.unresolved or one.result is not None:
            return None
        rows.append(b"\x84%b%b\x67success%b" % (uint(one.sequence), text(one.request_id), uint(one.performed)))
    return b"".join(rows) if decisions else None


def _sets(updates: Sequence[object]) -> bytes | None:
    """Write the list of `updates`. Return None if any of them is not a `Set`, or cannot be written here."""
    if type(updates) is not tuple:
        return None
    rows = [list_head(len(updates))]
    try:
        for one in updates:
            if type(one) is not Set:
                return None
            rows.append(b"\xa3\x62op\x63set\x62id%b\x65value%b" % (text(one.id), item(one.value)))
    except (UnicodeEncodeError, OverflowError):
        return None
    return b"".join(rows)

"""Writes the payloads of plain messages faster than cbor2 does. Nearly all messages are plain.

A plain request has only edits of the type `Set`, a plain reply reports a success, and a plain commit decides requests
that were successful and have only edits of the type `Set`, and belongs to no branch.

Invariant: the bytes are those that `dumps` returns for the wire map that the `write` of the message's type returns. For
a message that is not plain, each function returns None; the message is then written with these two functions.
"""

from collections.abc import Sequence

from rebaser_core.commit import Commit, Decision, Kind, Outcome
from rebaser_core.encoding.cbor_writer import item, list_head, map_head, often, text, uint
from rebaser_core.encoding.payload import TEXT, head
from rebaser_core.response import EnqueueUpdatesResponse, Success
from rebaser_core.updates import Set, Update

_REBASE, _OK = Kind.REBASE, Outcome.SUCCESS  # a lookup of an enum member takes 0.1 µs in Python 3.11
SUCCESS_VERSION = 1  # the version of plain replies
Written = tuple[int, bytes] | None  # the version of a payload, and the payload

_V1, _V2, _V3 = (b"\xa1\x62v%d" % version for version in (1, 2, 3))
_REQUEST = _V2 + b"\xa4"
_SHORT_TEXTS = [head(TEXT, size).decode() for size in range(128)]
_SUCCESS = (
    _V1 + b"\xa4\x62id%b\x6bworkspaceId%b\x6bchangeSetId%b\x66status\xa1\x67success\xa2\x69performed%b\x66commit%b"
)


def short_names(id_: str, workspace: str, change_set: str) -> bytes:
    """Return the first three fields of a request or a reply. Raise `UnicodeEncodeError` or `IndexError` unless the
    names are ASCII text of fewer than 128 characters, like all names that Rebaser accepts."""
    heads = _SHORT_TEXTS
    # The heads of short texts are ASCII text, too. Encoding each name on its own would take twice as long.
    return (
        f"\x62id{heads[len(id_)]}{id_}\x6bworkspaceId{heads[len(workspace)]}{workspace}"
        f"\x6bchangeSetId{heads[len(change_set)]}{change_set}"
    ).encode("ascii")


def write_plain_request(id_: str, workspace: str, change_set: str, updates: Sequence[Update]) -> Written:
    """Return the version and the payload of a request that has only these fields."""
    try:
        parts = [_REQUEST, short_names(id_, workspace, change_set), b"\x67updates"]
        return (2, b"".join(parts)) if _add_sets(parts, updates) else None
    except (UnicodeEncodeError, OverflowError, IndexError):
        return None


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
    return SUCCESS_VERSION, _SUCCESS % (text(id_), text(workspace), text(change_set), uint(performed), uint(commit))


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


def write_plain_commit(commit: Commit) -> Written:  # noqa: C901, PLR0912 - a flat list of optional fields
    """Return the version and the payload of a plain commit."""
    if not is_plain(commit) or commit.applied is None or (commit.authors and commit.before is None):
        return None
    version, tag = (1, _V1) if commit.before is None else (3, _V3)
    fields = 7  # with `requests`
    try:
        parts = [
            tag, b"", b"\x62id", text(commit.id), b"\x68previous", uint(commit.previous),
            b"\x64kind\x66rebase\x64atMs", uint(commit.at_ms), b"\x65owner", often(commit.owner),
            b"\x67applied\xa2\x66stream", often(commit.applied.stream), b"\x68sequence", uint(commit.applied.sequence),
        ]  # fmt: skip
        if commit.covers is not None:
            parts += (b"\x66covers", uint(commit.covers))
            fields += 1
        parts.append(b"\x68requests")
        if not _add_decisions(parts, commit.requests):
            return None
        if commit.delta:
            parts.append(b"\x65delta\xa1\x67updates")
            if not _add_sets(parts, commit.delta):
                return None
            fields += 1
        if (ref := commit.checkpoint) is not None:
            if ref.changes is not None:
                return None
            parts += (b"\x6acheckpoint\xa3\x67address", text(ref.address))
            parts += (b"\x68sequence", uint(ref.sequence), b"\x64size", uint(ref.size))
            fields += 1
        if commit.forget_before_ms:
            parts += (b"\x6eforgetBeforeMs", uint(commit.forget_before_ms))
            fields += 1
        if commit.debt:
            parts += (b"\x64debt", uint(commit.debt))
            fields += 1
        if commit.before:
            parts.append(b"\x66before\xa1\x67updates")
            if not _add_sets(parts, commit.before):
                return None
            fields += 1
        if commit.authors:
            parts += (b"\x67authors", list_head(len(commit.authors)))
            parts += [part for one in commit.authors for part in (b"\x82", text(one.author), text(one.message))]
            fields += 1
    except (UnicodeEncodeError, OverflowError):
        return None
    parts[1] = map_head(fields)
    return version, b"".join(parts)


def _add_decisions(parts: list[bytes], decisions: Sequence[Decision]) -> bool:
    """Add the list of `decisions`. Return false if it is empty, or if any of them is not a success without details."""
    parts.append(list_head(len(decisions)))
    for one in decisions:
        if one.outcome is not _OK or not one.performed or one.code or one.message or one.redrive:
            return False
        if one.attempts or one.position or one.unresolved or one.result is not None:
            return False
        parts += (b"\x84", uint(one.sequence), text(one.request_id), b"\x67success", uint(one.performed))
    return bool(decisions)


def _add_sets(parts: list[bytes], updates: Sequence[object]) -> bool:
    """Add the list of `updates`. Return false if any of them is not a `Set`."""
    if type(updates) is not tuple:
        return False
    parts.append(list_head(len(updates)))
    for one in updates:
        if type(one) is not Set:
            return False
        parts += (b"\xa3\x62op\x63set\x62id", text(one.id), b"\x65value", item(one.value))
    return True

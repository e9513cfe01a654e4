"""Encodes and decodes all versions of Rebaser's messages (requests, replies, commits and progress) and the blobs of
large messages.

Clients and servers call the functions below, which return only messages of the current version. A new version therefore
needs only a body, an upgrade from the previous version, and golden files (`tests/wire`). This package imports
`encoding`, `state` and root modules of `rebaser_core`.
"""

from dataclasses import replace

from rebaser_core.commit import Commit, Kind
from rebaser_core.encoding.envelope import CBOR, COVERS, DIGESTS, ContentType, Headers, MessageRegistry, Peeked
from rebaser_core.encoding.payload import malformed
from rebaser_core.limits import COMMIT_LIMITS, Limits
from rebaser_core.messages.commit import BEFORE, COMMIT, check_is_commit
from rebaser_core.messages.commit_fields.decision import add_digests
from rebaser_core.messages.commit_fields.replay import decode_replay, encode_replay
from rebaser_core.messages.delta import (
    EncodedUpdates,
    check_delta,
    decode_delta,
    decode_updates_blob,
    encode_delta,
    encode_updates_blob,
)
from rebaser_core.messages.headers.branches import (
    branch_headers,
    decode_addresses,
    encode_addresses,
    is_deleted,
    read_blobs,
    read_branch,
    read_edited,
    read_protected,
    read_source,
    read_status_after,
)
from rebaser_core.messages.headers.summary import read_summary, write_summary
from rebaser_core.messages.headers.sweep import (
    covers_header,
    read_covers,
    read_sweep_headers,
    read_unknown,
    sweep_headers,
)
from rebaser_core.messages.headers.traces import TRACEPARENT
from rebaser_core.messages.plain import SUCCESS_VERSION
from rebaser_core.messages.progress import PROGRESS, DvuProgress
from rebaser_core.messages.read_back import surely_reads_back
from rebaser_core.messages.request import REQUEST, EnqueueUpdatesRequest
from rebaser_core.messages.response import RESPONSE, decode_result, encode_result
from rebaser_core.messages.tail import (
    check_tail,
    copy_row,
    decode_changes,
    decode_tail,
    encode_changes,
    encode_tail,
    join_tails,
    read_row,
)
from rebaser_core.response import Conflict, Conflicts, EnqueueUpdatesResponse, Failure, Status, Success

__all__ = [
    "REGISTRY",
    "Conflict",
    "Conflicts",
    "ContentType",
    "DvuProgress",
    "EncodedUpdates",
    "EnqueueUpdatesRequest",
    "EnqueueUpdatesResponse",
    "Failure",
    "Peeked",
    "Status",
    "Success",
    "check_commit",
    "check_delta",
    "check_tail",
    "copy_row",
    "covers_header",
    "decode",
    "decode_addresses",
    "decode_changes",
    "decode_commit",
    "decode_delta",
    "decode_replay",
    "decode_result",
    "decode_tail",
    "decode_updates_blob",
    "encode",
    "encode_addresses",
    "encode_changes",
    "encode_commit",
    "encode_delta",
    "encode_replay",
    "encode_result",
    "encode_tail",
    "encode_updates_blob",
    "is_deleted",
    "join_tails",
    "peek",
    "read_blobs",
    "read_branch",
    "read_covers",
    "read_edited",
    "read_protected",
    "read_row",
    "read_source",
    "read_status_after",
    "read_summary",
    "read_sweep_headers",
    "read_unknown",
    "success_headers",
    "write_summary",
]

REGISTRY = MessageRegistry((REQUEST, RESPONSE, COMMIT, PROGRESS))

peek = REGISTRY.peek
decode = REGISTRY.decode
encode = REGISTRY.encode


def encode_commit(commit: Commit, content_type: ContentType = CBOR) -> tuple[dict[str, str], bytes]:
    """Return the headers and the payload of the message for `commit`, including the headers for the sweeper and for
    overviews."""
    headers, payload = REGISTRY.encode(commit, content_type)
    headers.update(sweep_headers(commit))
    if commit.edited is not None or commit.branch is not None or commit.blobs or commit.source or commit.protected:
        headers.update(branch_headers(commit))
    return headers, payload


def success_headers() -> dict[str, str]:
    """Return the headers that `encode` returns for a plain reply; see `rebaser_core.messages.plain`."""
    return REGISTRY.headers(RESPONSE.name, SUCCESS_VERSION)


def check_commit(commit: Commit, headers: Headers, payload: bytes) -> None:
    """Raise `UnprocessableError` or `UnsupportedVersion` if `headers` and `payload` do not decode to `commit`.

    The content of blobs is not checked.
    """
    if COVERS in headers and headers[COVERS] != covers_header(commit).get(COVERS):
        raise malformed("the headers of the encoded commit do not match its fields")
    if surely_reads_back(commit, headers, payload):
        return
    expected = commit if commit.delta_blob is None else replace(commit, delta=())
    if commit.before_blob is not None:
        expected = replace(expected, before=())
    if commit.replay is not None and commit.replay.blob is not None:
        expected = replace(expected, replay=replace(commit.replay, bases=(), conflicts=()))
    if commit.origin is not None:
        if commit.origin.tail_blob is not None:
            expected = replace(expected, origin=replace(commit.origin, tail=()))
        else:
            after = 0 if commit.checkpoint is None else commit.checkpoint.sequence
            check_tail(commit.origin.tail, after, commit.origin.sequence)
    if decode_commit(headers, payload) != expected:
        raise malformed("the message does not decode to the commit that was encoded")
    if read_sweep_headers(headers) != (commit.applied, commit.debt):
        raise malformed("the headers of the encoded commit do not match its fields")
    edited = -1 if commit.edited is None else commit.edited
    applies = commit.source is not None and commit.kind is Kind.REBASE
    source = replace(commit.source, keep=False) if commit.source is not None and applies else None
    told = read_edited(headers, -1), read_branch(headers), read_blobs(headers), read_source(headers)
    if (*told, read_protected(headers)) != (edited, commit.branch, commit.blobs, source, commit.protected):
        raise malformed("the headers of the encoded commit do not match its fields")


def decode_commit(
    headers: Headers | None,
    payload: bytes,
    limits: Limits = COMMIT_LIMITS,
    *,
    sequence: int = 0,
    history: bool = True,
) -> Commit:
    """Return the commit in a message. `sequence` is its log sequence, or 0 if unknown. If `history` is false, the
    definitions that the commit replaced are neither read nor checked, and are missing from the result. This saves time
    for a caller that only folds the commit.


    Raise `UnprocessableError` with code `foreign` if the message is not a commit according to its headers, and with
    another code if the commit is damaged. Raise `UnsupportedVersion` if this program does not know the version, the
    kind or an outcome.
    """
    check_is_commit(headers)
    commit = REGISTRY.decode(headers, payload, limits, Commit, skip=None if history else BEFORE)
    add_digests(commit.requests, (headers or {}).get(DIGESTS))
    # The commit may be changed because no other code has it yet. A copy would take a fifth of the time of decoding.
    object.__setattr__(commit, "sequence", sequence)
    object.__setattr__(commit, "unknown", read_unknown(headers))
    object.__setattr__(commit, "size", len(payload))
    if headers and (traceparent := headers.get(TRACEPARENT)):
        object.__setattr__(commit, "traceparent", traceparent)
    return commit

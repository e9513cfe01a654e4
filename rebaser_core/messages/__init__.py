"""Every message Rebaser knows, with its versions, and how to read and write it.

To add a version: a new body, an upgrade from the one before, and golden files (`tests/wire`). Nothing else changes,
because only current messages leave this package.
"""

from dataclasses import replace

from rebaser_core.commit import Commit
from rebaser_core.encoding.envelope import CBOR, DIGESTS, ContentType, Headers, MessageRegistry, Peeked
from rebaser_core.encoding.payload import malformed
from rebaser_core.limits import COMMIT_LIMITS, Limits
from rebaser_core.messages.commit import COMMIT, check_is_commit
from rebaser_core.messages.decision import add_digests
from rebaser_core.messages.delta import (
    check_delta,
    decode_delta,
    decode_updates_blob,
    encode_delta,
    encode_updates_blob,
)
from rebaser_core.messages.progress import PROGRESS, DvuProgress
from rebaser_core.messages.read_back import surely_reads_back
from rebaser_core.messages.request import REQUEST, EnqueueUpdatesRequest
from rebaser_core.messages.response import (
    RESPONSE,
    Conflict,
    Conflicts,
    EnqueueUpdatesResponse,
    Failure,
    Status,
    Success,
)
from rebaser_core.messages.sweep_headers import read_sweep_headers, read_unknown, sweep_headers

__all__ = [
    "REGISTRY",
    "Conflict",
    "Conflicts",
    "ContentType",
    "DvuProgress",
    "EnqueueUpdatesRequest",
    "EnqueueUpdatesResponse",
    "Failure",
    "Peeked",
    "Status",
    "Success",
    "check_commit",
    "check_delta",
    "decode",
    "decode_commit",
    "decode_delta",
    "decode_updates_blob",
    "encode",
    "encode_commit",
    "encode_delta",
    "encode_updates_blob",
    "peek",
    "read_sweep_headers",
    "read_unknown",
]

REGISTRY = MessageRegistry((REQUEST, RESPONSE, COMMIT, PROGRESS))

peek = REGISTRY.peek
decode = REGISTRY.decode
encode = REGISTRY.encode


def encode_commit(commit: Commit, content_type: ContentType = CBOR) -> tuple[dict[str, str], bytes]:
    """`(headers, payload)` of a log entry, the headers for the sweeper among them."""
    headers, payload = REGISTRY.encode(commit, content_type)
    headers.update(sweep_headers(commit))
    return headers, payload


def check_commit(commit: Commit, headers: Headers, payload: bytes) -> None:
    """That a reader of `headers` and `payload` finds `commit`, a delta in a blob aside.

    Raises `UnprocessableError` or `UnsupportedVersion` otherwise.
    """
    if surely_reads_back(commit, headers, payload):
        return
    meant = commit if commit.delta_blob is None else replace(commit, delta=())
    if decode_commit(headers, payload) != meant:
        raise malformed("it reads back as another commit")
    if read_sweep_headers(headers) != (commit.applied, commit.debt):
        raise malformed("its headers read back as others")


def decode_commit(headers: Headers | None, payload: bytes, limits: Limits = COMMIT_LIMITS) -> Commit:
    """The commit in a log entry.

    Raises `UnprocessableError` with code `foreign` for a message that does not claim to be a commit, with another code
    for a damaged one; `UnsupportedVersion` for a version, kind or outcome this program does not know.
    """
    check_is_commit(headers)
    commit = REGISTRY.decode(headers, payload, limits, Commit)
    add_digests(commit.requests, (headers or {}).get(DIGESTS))
    unknown = read_unknown(headers)
    return replace(commit, unknown=unknown) if unknown else commit

"""Builds replies to requests from the recorded decisions, and checks the inboxes to which the replies are sent.

The conflicts of a reply are stored in a blob, so that a reply that is sent again also contains them.

Invariant: a reply inbox, which the client chooses, is used only if it is a single literal subject under the reply
prefix. Otherwise, a client could make the server write to the log, the tasks or the JetStream API.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import anyio
import structlog

from rebaser_client.blobs import BlobStore
from rebaser_client.nats.header_lines import encode_headers
from rebaser_core.commit import BlobRef, Decision, Outcome
from rebaser_core.encoding.envelope import CBOR, CONTENT_TYPE, MESSAGE_ID, content_type_of
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey, RequestId, is_sequence_id
from rebaser_core.messages import (
    Conflicts,
    EnqueueUpdatesResponse,
    Failure,
    Success,
    decode_result,
    encode,
    encode_result,
    success_headers,
)
from rebaser_core.messages.dead_letter import reported_id
from rebaser_core.messages.plain import write_plain_success

MAX_INBOX = 256  # maximum number of characters of an inbox
MAX_RESULT = 1024 * 1024  # maximum bytes of a conflicts blob, which holds up to 100 conflicts and 64 KiB of definitions
RESULT_TIMEOUT = 2.0  # maximum seconds for reading a conflicts blob

# A subject without wildcards: tokens of printable ASCII characters other than space, separated by dots.
_PART = r"(?![*>](?:\.|\Z))[!-\-/-~]+"
_LITERAL = re.compile(rf"{_PART}(?:\.{_PART})*")

_SUCCESS, _CBOR = Outcome.SUCCESS, str(CBOR)  # a lookup of an enum member takes 0.1 µs in Python 3.11
_BEFORE_ID, _AFTER_ID = encode_headers(success_headers() | {MESSAGE_ID: "*"}).split(b"*")
log = structlog.get_logger(__name__)


def inbox_allowed(inbox: str, prefix: str) -> bool:
    """Return whether `inbox` is a literal subject under `prefix`."""
    return inbox.startswith(prefix + ".") and len(inbox) <= MAX_INBOX and _LITERAL.fullmatch(inbox) is not None


def plain_reply(
    request_headers: Mapping[str, str], key: ChangeSetKey, decision: Decision, commit: int
) -> tuple[bytes, bytes] | None:
    """Return what `reply` returns, but with encoded headers, for a successful request in CBOR with an id, which nearly
    all requests are. Return None for any other request."""
    id_ = decision.request_id
    if decision.outcome is not _SUCCESS or decision.position or decision.unresolved or is_sequence_id(id_):
        return None
    if request_headers.get(CONTENT_TYPE) != _CBOR:
        return None
    _, payload = write_plain_success(id_, key.workspace, key.change_set, decision.performed, commit)
    return _BEFORE_ID + id_.encode() + _AFTER_ID, payload


def reply(
    request_headers: Mapping[str, str] | None, key: ChangeSetKey, decision: Decision, commit: int
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the payload of the reply to a request, in the content type of the request and with its
    id."""
    content = response(request_headers, key, decision, commit)
    headers, payload = encode(content, content_type_of(request_headers))
    if content.id:
        headers[MESSAGE_ID] = content.id
    return headers, payload


def response(
    request_headers: Mapping[str, str] | None, key: ChangeSetKey, decision: Decision, commit: int
) -> EnqueueUpdatesResponse:
    """Return the content of the reply to a request that was decided by the commit at log sequence `commit`."""
    status: Success | Conflicts | Failure
    if decision.outcome is _SUCCESS:
        status = Success(decision.performed, commit, decision.position, decision.unresolved)
    elif decision.outcome is Outcome.CONFLICTS:
        status = Conflicts(decision.message, commit, decision.conflicts)
    else:
        status = Failure(decision.code, decision.message, commit)
    request_id = reported_id(decision.request_id, request_headers, key) or RequestId("")
    return EnqueueUpdatesResponse(request_id, key.workspace, key.change_set, status)


async def with_result_stored(blobs: BlobStore, decision: Decision) -> Decision:
    """Store the conflicts of a reply in a blob. Return `decision` with the address of that blob.

    Raise `TransientError` if the blob cannot be stored.
    """
    data = encode_result(decision.conflicts)
    return replace(decision, result=BlobRef(await blobs.put(data), len(data)))


async def with_result_read(blobs: BlobStore, decision: Decision) -> Decision:
    """Return `decision` with the conflicts from its blob, or without conflicts if the blob cannot be read."""
    if decision.result is None or decision.conflicts:
        return decision
    try:
        with anyio.fail_after(RESULT_TIMEOUT):
            data = await blobs.get(decision.result.address, max_bytes=MAX_RESULT)
        return replace(decision, conflicts=decode_result(data))
    except (RebaserError, TimeoutError) as error:
        log.warning("conflicts_not_repeated", id=decision.request_id, reason=str(error))
        return decision

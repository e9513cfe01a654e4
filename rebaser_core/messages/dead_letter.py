"""Writes and reads the headers of dead letters, which are copies of requests that could not be processed.

The headers say why the request could not be processed.

Invariant: no header of a request can be mistaken for a header that Rebaser adds, and NATS interprets no header of a
copy. To ensure this, a header of the request whose name is used by Rebaser or NATS gets the prefix `X-Original-`. It
loses the prefix when the request is sent again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rebaser_core.commit import Decision
from rebaser_core.encoding.envelope import CONTENT_TYPE, MESSAGE_ID, REDRIVE, REPLY_INBOX
from rebaser_core.encoding.payload import ContentType, loads
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId, check_request_id, is_sequence_id

MAX_HEADERS = 64
MAX_HEADER_VALUE = 1024  # the maximum length in characters
HEADER_ROOM = 64 * 1024  # the number of bytes in a message that are reserved for its headers

_REASON_CODE = "X-Reason-Code"
_REASON = "X-Reason"
_REQUEST_ID = "X-Request-Id"
_SEQUENCE = "X-Original-Sequence"
_SUBJECT = "X-Original-Subject"
_SERVER = "X-Server"
_DEAD_AT = "X-Dead-At-Ms"
_ATTEMPTS = "X-Attempts"
PAYLOAD_ADDRESS = "X-Payload-Address"

_ORIGINAL = "X-Original-"
_OURS = {
    name.lower()
    for name in (_REASON_CODE, _REASON, _REQUEST_ID, _SERVER, _DEAD_AT, _ATTEMPTS, PAYLOAD_ADDRESS, REDRIVE)
}
_HEADER_NAME = re.compile(r"[!-9;-~]{1,128}")
_REDRIVE = re.compile(r"[1-9][0-9]{0,5}")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as its headers describe it.

    `sequence` is the dead letter's sequence in its stream, and `request_sequence` is the request's sequence in the
    request stream. `request_id` is `@<request_sequence>` if neither the readable part of the request nor its header
    `Nats-Msg-Id` contains an id. `code` and `reason` say why the request could not be processed. `attempts` is how
    often it was attempted, and `redrive` is how often it had been sent again from the dead letters. `server` is the
    server that wrote the dead letter, and `dead_at_ms` is the Unix time at which it did so. `size` is the size of this
    message's payload (bytes). A payload that is too large for the message is in the blob `payload_address`. `headers`
    are the headers of the request.
    """

    sequence: int
    key: ChangeSetKey
    request_id: RequestId
    code: str
    reason: str
    attempts: int
    redrive: int
    server: str
    dead_at_ms: int
    request_sequence: int
    size: int
    payload_address: str | None
    headers: dict[str, str]


def read_redrive(headers: Mapping[str, str] | None) -> int:
    """Return how often a request was sent again from the dead letters, according to its headers. Return 0 if the header
    is missing or is not a valid count."""
    text = (headers or {}).get(REDRIVE)
    return int(text) if text and _REDRIVE.fullmatch(text) else 0


def read_dead_at(headers: Mapping[str, str] | None) -> int:
    """Return the Unix time (ms) at which a request that was sent again had been moved to the dead letters. Return 0 if
    its headers contain no valid time."""
    return _count((headers or {}).get(_DEAD_AT))


def claimed_id(headers: Mapping[str, str] | None, key: ChangeSetKey) -> RequestId | None:
    """Return the request id that the header `Nats-Msg-Id` contains, or None if it contains no valid id.

    This id is used if the payload of a request cannot or must not be read. The header contains either the id alone or,
    if Rebaser's own client wrote it, the key of the change set followed by the id.
    """
    id_ = (headers or {}).get(MESSAGE_ID, "").removeprefix(f"{key}.").partition("#")[0]
    try:
        return check_request_id(id_)
    except UnprocessableError:
        return None


def reported_id(request_id: RequestId, headers: Mapping[str, str] | None, key: ChangeSetKey) -> RequestId | None:
    """Return the id for the reply to a request that the log records as `request_id`, or None if the sender gave no id.

    The two ids differ if the request is unreadable. The log records such a request under its sequence instead of the id
    in its headers, so that it cannot be mistaken for a readable request with this id.
    """
    return claimed_id(headers, key) if is_sequence_id(request_id) else request_id


def dead_headers(
    original: Mapping[str, str] | None,
    decision: Decision,
    *,
    key: ChangeSetKey,
    subject: str,
    server: str,
    at_ms: int,
) -> dict[str, str]:
    """Return the headers of the dead letter for a request with the outcome `dead`.

    `original` are the headers of the request, `subject` is its subject, `server` the name of the server that writes the
    dead letter, and `at_ms` the current Unix time.
    """
    headers: dict[str, str] = {}
    for name, value in list((original or {}).items())[:MAX_HEADERS]:
        if _HEADER_NAME.fullmatch(name):
            lower = name.lower()
            renamed = lower.startswith(("nats-", _ORIGINAL.lower())) or lower in _OURS
            headers[_ORIGINAL + name if renamed else name] = clean(value)
    headers |= {
        _REASON_CODE: clean(decision.code),
        _REASON: clean(decision.message),
        _REQUEST_ID: clean(reported_id(decision.request_id, original, key) or decision.request_id),
        _SEQUENCE: str(decision.sequence),
        _SUBJECT: clean(subject),
        _SERVER: clean(server),
        _DEAD_AT: str(at_ms),
        _ATTEMPTS: str(max(decision.attempts, 1)),
        MESSAGE_ID: f"{key}.{clean(decision.request_id)}@{decision.sequence}",
    }
    if decision.redrive:
        headers[REDRIVE] = str(decision.redrive)
    return headers


def read_letter(sequence: int, key: ChangeSetKey, headers: Mapping[str, str], size: int) -> DeadLetter:
    """Return the dead letter in a message from the dead-letter stream.

    `sequence` is the message's sequence, and `size` is the size of its payload (bytes). Fields that the headers lack
    are empty or 0.
    """
    own = {
        name.removeprefix(_ORIGINAL): value
        for name, value in headers.items()
        if name not in (_SEQUENCE, _SUBJECT) and name.lower() not in _OURS and not name.lower().startswith("nats-")
    }
    return DeadLetter(
        sequence,
        key,
        RequestId(headers.get(_REQUEST_ID, "")),
        headers.get(_REASON_CODE, ""),
        headers.get(_REASON, ""),
        _count(headers.get(_ATTEMPTS)),
        read_redrive(headers),
        headers.get(_SERVER, ""),
        _count(headers.get(_DEAD_AT)),
        _count(headers.get(_SEQUENCE)),
        size,
        headers.get(PAYLOAD_ADDRESS),
        own,
    )


def readable_request(letter: DeadLetter, payload: bytes) -> object | None:
    """Return the decoded payload of the request, as JSON types, or None if it cannot be decoded."""
    try:
        return loads(ContentType.of(letter.headers.get(CONTENT_TYPE, "")), payload)
    except UnprocessableError:
        return None


def redriven_headers(letter: DeadLetter) -> dict[str, str]:
    """Return the headers with which to send the request of `letter` again.

    These are the original headers without those that NATS interprets, and without the sender's reply inbox, because the
    sender has already received a reply.
    """
    number = letter.redrive + 1
    headers = {
        name: value
        for name, value in letter.headers.items()
        if not name.lower().startswith("nats-") and name.lower() not in (REPLY_INBOX.lower(), REDRIVE.lower())
    }
    # The suffix makes the message id unique. Another dead letter may have the same request id and, if the request
    # stream was created again, even the same request sequence.
    suffix = f"#{number}@{letter.sequence}"
    dead_at = {_DEAD_AT: str(letter.dead_at_ms)}
    return headers | dead_at | {REDRIVE: str(number), MESSAGE_ID: f"{letter.key}.{letter.request_id}{suffix}"}


def clean(text: str) -> str:
    """Convert `text` to a header value: at most `MAX_HEADER_VALUE` characters of printable ASCII, with each other
    character replaced by `?`."""
    return "".join(char if " " <= char <= "~" else "?" for char in text[:MAX_HEADER_VALUE]).strip()


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 19 else 0

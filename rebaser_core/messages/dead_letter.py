"""Dead letters: copies of requests that could not be processed, with the reason in their headers.

Invariant: no header of a request can be mistaken for a header that Rebaser adds, and no header of a copy means anything
to NATS. Headers of the request with such names get the prefix `X-Original-`, and lose it when the request is redriven.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rebaser_core.commit import Decision
from rebaser_core.encoding.envelope import MESSAGE_ID, REDRIVE, REPLY_INBOX
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId, check_request_id, is_sequence_id

MAX_HEADERS = 64
MAX_HEADER_VALUE = 1024  # characters
HEADER_ROOM = 64 * 1024  # bytes of a message that are reserved for its headers

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

    `sequence` is the sequence of the dead letter in its stream. `request_sequence` is the sequence of the request in
    the request stream. `request_id`: `@<request_sequence>` if neither the readable part of the request nor its
    `Nats-Msg-Id` gave an id. `attempts` tells how often the request was tried. `redrive` tells how often it had been
    redriven. `dead_at_ms`: Unix time. `size`: bytes of the payload in this message; a larger payload is in a blob
    (`payload_address`). `headers` are the headers of the request.
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
    """Return how often a request was redriven, according to its header; 0 if the header is missing or is not
    a count."""
    text = (headers or {}).get(REDRIVE, "")
    return int(text) if _REDRIVE.fullmatch(text) else 0


def read_dead_at(headers: Mapping[str, str] | None) -> int:
    """Return the Unix time (ms) at which a redriven request died; 0 if its sender did not give a time."""
    return _count((headers or {}).get(_DEAD_AT))


def claimed_id(headers: Mapping[str, str] | None, key: ChangeSetKey) -> RequestId | None:
    """Return the request id in the `Nats-Msg-Id` of a request whose payload cannot or must not be read; None if there
    is none.

    The header holds the id itself, or the id after the key of the change set, as Rebaser's own clients write it.
    """
    id_ = (headers or {}).get(MESSAGE_ID, "").removeprefix(f"{key}.").partition("#")[0]
    try:
        return check_request_id(id_)
    except UnprocessableError:
        return None


def reported_id(request_id: RequestId, headers: Mapping[str, str] | None, key: ChangeSetKey) -> RequestId | None:
    """Return the id that replies give for a request recorded as `request_id`; None if its sender gave none.

    An unreadable request is recorded under another id than the one it claims, so that it cannot be mistaken for the
    request that has that id.
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
    """Return the headers of the dead letter of a request that was decided `dead`."""
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
    """Read a message of the dead letter stream; fields that its headers do not give are empty or 0."""
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


def redriven_headers(letter: DeadLetter) -> dict[str, str]:
    """Return the headers with which to send the request of `letter` again.

    These are the headers of the request, except headers that mean something to NATS, and except the inbox of the
    caller, which got its reply long ago.
    """
    number = letter.redrive + 1
    headers = {
        name: value
        for name, value in letter.headers.items()
        if not name.lower().startswith("nats-") and name.lower() not in (REPLY_INBOX.lower(), REDRIVE.lower())
    }
    # Another dead letter may have the same request id and, if the request stream was recreated, also the same sequence.
    suffix = f"#{number}@{letter.sequence}"
    dead_at = {_DEAD_AT: str(letter.dead_at_ms)}
    return headers | dead_at | {REDRIVE: str(number), MESSAGE_ID: f"{letter.key}.{letter.request_id}{suffix}"}


def clean(text: str) -> str:
    """Return `text` as a header value: printable ASCII of at most `MAX_HEADER_VALUE` characters."""
    return "".join(char if " " <= char <= "~" else "?" for char in text[:MAX_HEADER_VALUE]).strip()


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 19 else 0

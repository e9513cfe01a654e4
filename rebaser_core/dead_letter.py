"""A dead letter: the copy of a request that could not be processed, with the reason in its headers.

Invariant: nothing a request carries can pass for something we say about it, and nothing in a copy has a meaning to
NATS: headers of the original with such names get `X-Original-` in front, and lose it on the way back.
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
HEADER_ROOM = 64 * 1024  # bytes of a message that are left to its headers

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
    """What the headers of a dead letter say.

    `sequence` is that of the dead letter in its stream, `request_sequence` the one the request had; `request_id` is
    `@<request_sequence>` where the request gave none, neither in what could be read nor as its `Nats-Msg-Id`;
    `attempts`: how often it was tried; `redrive`: how often it had come back from the dead letters; `dead_at_ms`: Unix
    time. `size` (bytes) is that of the payload, unless it stands in a blob (`payload_address`); `headers` are the
    request's own.
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
    """How often a request says that it came back from the dead letters; 0 for anything but a count."""
    text = (headers or {}).get(REDRIVE, "")
    return int(text) if _REDRIVE.fullmatch(text) else 0


def claimed_id(headers: Mapping[str, str] | None, key: ChangeSetKey) -> RequestId | None:
    """The request id in the `Nats-Msg-Id` of a request whose payload must or can not be read; None if there is none.

    It is the id itself, or stands behind the change set's key, as ours do.
    """
    id_ = (headers or {}).get(MESSAGE_ID, "").removeprefix(f"{key}.").partition("#")[0]
    try:
        return check_request_id(id_)
    except UnprocessableError:
        return None


def told_id(request_id: RequestId, headers: Mapping[str, str] | None, key: ChangeSetKey) -> RequestId | None:
    """The id to call a request by, recorded as `request_id`, to those who sent it; None if they gave none.

    It may differ from the recorded one: what could not be read must not pass for the request that has this id.
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
    """Headers of the copy of a request that was decided `dead`."""
    headers: dict[str, str] = {}
    for name, value in list((original or {}).items())[:MAX_HEADERS]:
        if _HEADER_NAME.fullmatch(name):
            low = name.lower()
            renamed = low.startswith(("nats-", _ORIGINAL.lower())) or low in _OURS
            headers[_ORIGINAL + name if renamed else name] = clean(value)
    headers |= {
        _REASON_CODE: clean(decision.code),
        _REASON: clean(decision.message),
        _REQUEST_ID: clean(told_id(decision.request_id, original, key) or decision.request_id),
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
    """The dead letter in a message of their stream; what its headers do not say is empty or 0."""
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
    """Headers that send the request of `letter` again: its own, without those that mean something to NATS, and without
    the inbox of a caller who had an answer long ago."""
    number = letter.redrive + 1
    kept = {
        name: value
        for name, value in letter.headers.items()
        if not name.lower().startswith("nats-") and name.lower() not in (REPLY_INBOX.lower(), REDRIVE.lower())
    }
    # From other dead letters with the same request id, which may have had its sequence, too: in a stream that is gone.
    told_apart = f"#{number}@{letter.sequence}"
    return kept | {REDRIVE: str(number), MESSAGE_ID: f"{letter.key}.{letter.request_id}{told_apart}"}


def clean(text: str) -> str:
    """`text` as a header value can carry it: printable ASCII, bounded."""
    return "".join(char if " " <= char <= "~" else "?" for char in text[:MAX_HEADER_VALUE]).strip()


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 19 else 0

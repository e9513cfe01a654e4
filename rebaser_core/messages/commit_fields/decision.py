"""Defines the wire format of decisions, which are stored as rows in commits and checkpoints, and of the digests of
requests.

Invariant: `read_decision` returns a decision equal to the one that `write_decision` wrote.
"""

from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any

from rebaser_core.blobs.address import check_address
from rebaser_core.commit import BlobRef, Decision, Outcome
from rebaser_core.encoding.payload import malformed
from rebaser_core.errors import UnsupportedVersion
from rebaser_core.ids import RequestId
from rebaser_core.messages.content_digest import SIZE
from rebaser_core.values import INT64_MAX

_OUTCOMES = {str(outcome): outcome for outcome in Outcome}
_EMPTY: list[Any] = [None, None, None, 0, "", "", 0, 0, 0, 0, None]  # defaults of the fields that a short row lacks
_NONE: list[Any] = [0, 0, 0, 0, None]  # the last five of these defaults
_NO_DIGEST = bytes(SIZE)
_SUCCESS = str(Outcome.SUCCESS)


def read_decision(row: object) -> Decision:
    """Return the decision in a row of `requests`. Raise `UnprocessableError` if the row is invalid, and
    `UnsupportedVersion` if its outcome is unknown."""
    if type(row) is not list or not 3 <= len(row) <= len(_EMPTY):
        raise malformed(f"a decided request must be a row of 3 to {len(_EMPTY)} fields")
    if len(row) == 4:  # the usual case: a row without code, message and later fields
        sequence, request_id, outcome, performed = row
        code, message, rest = "", "", _NONE
    else:
        sequence, request_id, outcome, performed, code, message, *rest = row + _EMPTY[len(row) :]
        if not all(type(count) is int and 0 <= count <= INT64_MAX for count in rest[:-1]):
            raise malformed("a sequence or count of a decided request is not a natural number")
    if not (type(sequence) is type(performed) is int and 0 <= sequence <= INT64_MAX and 0 <= performed <= INT64_MAX):
        raise malformed("a sequence or count of a decided request is not a natural number")
    if not type(request_id) is type(outcome) is type(code) is type(message) is str:
        raise malformed("the id, outcome, code or message of a decided request is not text")
    known_outcome = _OUTCOMES.get(outcome)
    if known_outcome is None:
        raise UnsupportedVersion(f"a request has the unknown outcome {outcome[:40]!r}: use a newer release of Rebaser")
    redrive, attempts, position, unresolved, result = rest
    return Decision(
        *(sequence, RequestId(request_id), known_outcome, performed, code, message, redrive, attempts),
        position=position,
        unresolved=unresolved,
        result=None if result is None else _read_result(result),
    )


def _read_result(raw: object) -> BlobRef:
    if type(raw) is not list or len(raw) != 2 or type(raw[1]) is not int or not 0 <= raw[1] <= INT64_MAX:
        raise malformed("the result of a decided request must be a list of the address and the size of a blob")
    return BlobRef(check_address(raw[0]), raw[1])


def write_decision(decision: Decision) -> list[Any]:
    """Return the row for `decision`. Empty fields at the end of the row are omitted."""
    row: list[Any] = [decision.sequence, decision.request_id, decision.outcome.value]
    if decision.position or decision.unresolved or decision.result is not None:
        row += (decision.performed, decision.code, decision.message, decision.redrive, decision.attempts)
        row += (decision.position, decision.unresolved)
        row += () if decision.result is None else ([decision.result.address, decision.result.size],)
    elif decision.redrive or decision.attempts:
        row += (decision.performed, decision.code, decision.message, decision.redrive, decision.attempts)
    elif decision.message or decision.code:
        row += (decision.performed, decision.code, decision.message)
    elif decision.performed:
        row.append(decision.performed)
    return row


def write_success(sequence: int, request_id: RequestId, performed: int) -> list[Any]:
    """Return what `write_decision` returns for a request that was applied and whose decision has no other fields."""
    return [sequence, request_id, _SUCCESS, performed] if performed else [sequence, request_id, _SUCCESS]


def write_digests(digests: Sequence[bytes]) -> str:
    """Return the digests of requests as Base64 text. An empty digest is unknown; the text is empty if all are."""
    if len(digests) == 1:
        return b2a_base64(digests[0], newline=False).decode()
    if not any(digests):
        return ""
    return b2a_base64(b"".join([digest or _NO_DIGEST for digest in digests]), newline=False).decode()


def add_digests(decisions: Sequence[Decision], text: str | None) -> None:
    """Set the digests of `decisions`, which were just read, from `text`, which `write_digests` returned.

    If `text` is not valid for these decisions, it is ignored.
    """
    if not text:
        return
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return
    if len(data) == SIZE * len(decisions):
        for position, decision in enumerate(decisions):
            digest = data[position * SIZE : (position + 1) * SIZE]
            if digest != _NO_DIGEST:
                # The decision may be changed because no other code has it yet. A copy would take ten times as long.
                object.__setattr__(decision, "digest", digest)

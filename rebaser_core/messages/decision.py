"""Decided requests on the wire: rows of a commit or of a checkpoint, and the digests of their content.

Invariant: what `write_decision` writes, `read_decision` gives back equal; an unknown outcome is `UnsupportedVersion`.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from rebaser_core.commit import Decision, Outcome
from rebaser_core.content_digest import SIZE
from rebaser_core.encoding.payload import malformed
from rebaser_core.errors import UnsupportedVersion
from rebaser_core.ids import RequestId

_OUTCOMES = {str(outcome): outcome for outcome in Outcome}
_EMPTY: list[Any] = [None, None, None, 0, "", "", 0, 0]  # what a row that ends early leaves out
_NO_DIGEST = bytes(SIZE)


def read_decision(row: object) -> Decision:
    """The decision in a row of `requests`; raises `UnsupportedVersion` for an outcome it does not know."""
    if type(row) is not list or not 3 <= len(row) <= len(_EMPTY):
        raise malformed(f"a decided request is a row of 3 to {len(_EMPTY)}")
    if len(row) == 4:  # the usual case: updates were performed, and there is nothing to say about it
        sequence, request_id, outcome, performed = row
        code, message, redrive, attempts = "", "", 0, 0
    else:
        sequence, request_id, outcome, performed, code, message, redrive, attempts = row + _EMPTY[len(row) :]
        if not (type(redrive) is type(attempts) is int and redrive >= 0 and attempts >= 0):
            raise malformed("a sequence or count is not a natural number")
    if not (type(sequence) is type(performed) is int and sequence >= 0 and performed >= 0):
        raise malformed("a sequence or count is not a natural number")
    if not type(request_id) is type(outcome) is type(code) is type(message) is str:
        raise malformed("an id, outcome, code or message is not text")
    known = _OUTCOMES.get(outcome)
    if known is None:
        raise UnsupportedVersion(f"an outcome {outcome[:40]!r}")
    return Decision(sequence, RequestId(request_id), known, performed, code, message, redrive, attempts)


def write_decision(decision: Decision) -> list[Any]:
    row: list[Any] = [decision.sequence, decision.request_id, decision.outcome.value]
    if decision.redrive or decision.attempts:
        row += (decision.performed, decision.code, decision.message, decision.redrive, decision.attempts)
    elif decision.message or decision.code:
        row += (decision.performed, decision.code, decision.message)
    elif decision.performed:
        row.append(decision.performed)
    return row


def write_digests(decisions: Sequence[Decision]) -> str:
    """Those of `decisions` as text; empty if there are none."""
    if not any(one.digest for one in decisions):
        return ""
    return b64encode(b"".join([one.digest or _NO_DIGEST for one in decisions])).decode()


def add_digests(decisions: Sequence[Decision], text: str | None) -> None:
    """Put what `write_digests` wrote into decisions that were just read; a text that does not fit says nothing."""
    if not text:
        return
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return
    if len(data) == SIZE * len(decisions):
        for at, one in enumerate(decisions):
            digest = data[at * SIZE : (at + 1) * SIZE]
            if digest != _NO_DIGEST:
                object.__setattr__(one, "digest", digest)  # nobody else has it yet, and a copy costs ten times as much

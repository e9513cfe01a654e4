"""Answers to requests: built from what the log recorded, sent only where a reply may go.

Invariant: a reply inbox is a subject that somebody else chose. It is used only if it is one literal subject under the
configured inbox prefix; anything else would let a caller write to the log, the tasks or the JetStream API.
"""

from collections.abc import Mapping

from rebaser_core.commit import Decision, Outcome
from rebaser_core.dead_letter import told_id
from rebaser_core.encoding.envelope import MESSAGE_ID, content_type_of
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import Conflict, Conflicts, EnqueueUpdatesResponse, Failure, Success, encode

MAX_INBOX = 256  # characters


def inbox_allowed(inbox: str, prefix: str) -> bool:
    """Whether `inbox` is a literal subject under `prefix`."""
    if not inbox.startswith(prefix + ".") or len(inbox) > MAX_INBOX or not inbox.isascii() or not inbox.isprintable():
        return False
    return all(token and token not in ("*", ">") and " " not in token for token in inbox.split("."))


def reply(
    asked: Mapping[str, str] | None, key: ChangeSetKey, decision: Decision, commit: int
) -> tuple[dict[str, str], bytes]:
    """`(headers, payload)` of the answer to a request with the headers `asked`: in its content type, under its id."""
    said = response(asked, key, decision, commit)
    headers, payload = encode(said, content_type_of(asked))
    if said.id:
        headers[MESSAGE_ID] = said.id
    return headers, payload


def response(
    asked: Mapping[str, str] | None, key: ChangeSetKey, decision: Decision, commit: int
) -> EnqueueUpdatesResponse:
    """The answer to a request with the headers `asked`, which was decided by the commit at log sequence `commit`."""
    status: Success | Conflicts | Failure
    if decision.outcome is Outcome.SUCCESS:
        status = Success(decision.performed, commit)
    elif decision.outcome is Outcome.CONFLICTS:
        found = tuple(Conflict(id_, "is not here any more") for id_ in decision.gone)
        status = Conflicts(decision.message, commit, found)
    else:
        status = Failure(decision.code, decision.message, commit)
    request_id = told_id(decision.request_id, asked, key) or RequestId("")
    return EnqueueUpdatesResponse(request_id, key.workspace, key.change_set, status)

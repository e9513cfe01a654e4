"""Answers to requests: built from what the log recorded, sent only where a reply may go.

Invariant: a reply inbox is a subject that somebody else chose. It is used only if it is one literal subject under the
configured inbox prefix; anything else would let a caller write to the log, the tasks or the JetStream API.
"""

from rebaser_core.commit import Decision, Outcome
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import Conflict, Conflicts, EnqueueUpdatesResponse, Failure, Success

MAX_INBOX = 256  # characters


def inbox_allowed(inbox: str, prefix: str) -> bool:
    """Whether `inbox` is a literal subject under `prefix`."""
    if not inbox.startswith(prefix + ".") or len(inbox) > MAX_INBOX or not inbox.isascii() or not inbox.isprintable():
        return False
    return all(token and token not in ("*", ">") and " " not in token for token in inbox.split("."))


def response(key: ChangeSetKey, decision: Decision, commit: int) -> EnqueueUpdatesResponse:
    """The answer to a request that was decided by the commit at log sequence `commit`."""
    status: Success | Conflicts | Failure
    if decision.outcome is Outcome.SUCCESS:
        status = Success(decision.performed, commit)
    elif decision.outcome is Outcome.CONFLICTS:
        found = tuple(Conflict(id_, "is not here any more") for id_ in decision.gone)
        status = Conflicts(decision.message, commit, found)
    else:
        status = Failure(decision.code, decision.message, commit)
    request_id = "" if decision.request_id.startswith("@") else decision.request_id
    return EnqueueUpdatesResponse(request_id, key.workspace, key.change_set, status)

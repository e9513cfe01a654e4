"""Builds answers to requests from the recorded decisions, and checks the inboxes to which they are sent.

Invariant: the client chooses its reply inbox. It is used only if it is one literal subject under the configured inbox
prefix; otherwise a client could make the server write to the log, the tasks or the JetStream API.
"""

from collections.abc import Mapping

from rebaser_core.commit import Decision, Outcome
from rebaser_core.dead_letter import reported_id
from rebaser_core.encoding.envelope import MESSAGE_ID, content_type_of
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import Conflicts, EnqueueUpdatesResponse, Failure, Success, encode

MAX_INBOX = 256  # characters


def inbox_allowed(inbox: str, prefix: str) -> bool:
    """Whether `inbox` is a literal subject under `prefix`."""
    if not inbox.startswith(prefix + ".") or len(inbox) > MAX_INBOX or not inbox.isascii() or not inbox.isprintable():
        return False
    return all(token and token not in ("*", ">") and " " not in token for token in inbox.split("."))


def reply(
    request_headers: Mapping[str, str] | None, key: ChangeSetKey, decision: Decision, commit: int
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the payload of the reply to a request, in its content type and with its id."""
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
    if decision.outcome is Outcome.SUCCESS:
        status = Success(decision.performed, commit)
    elif decision.outcome is Outcome.CONFLICTS:
        status = Conflicts(decision.message, commit, decision.conflicts)
    else:
        status = Failure(decision.code, decision.message, commit)
    request_id = reported_id(decision.request_id, request_headers, key) or RequestId("")
    return EnqueueUpdatesResponse(request_id, key.workspace, key.change_set, status)

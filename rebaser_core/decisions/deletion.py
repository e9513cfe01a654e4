"""What deleted change sets refuse.

Invariant: a deleted change set accepts a request to create it anew and one to bring it back, and nothing else.
"""

from rebaser_core.branches.branch import Create
from rebaser_core.commit import Marking
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.errors import UnprocessableError


def refuse_deleted(request: QueuedRequest) -> UnprocessableError | None:
    """Why a deleted change set refuses `request`, whatever values it had; None if it accepts the request."""
    if isinstance(request.action, Create) or request.restored is not None:
        return None
    if isinstance(request.action, Marking) and request.refusal is not None:
        return None  # `request.refusal` says why the change set cannot be brought back
    return UnprocessableError(
        "this change set is deleted: create it anew, or reopen it to bring it back", code="deleted"
    )

"""Determines which requests a deleted change set refuses, and which outcomes remain recorded if it is created again.

Invariant: a deleted change set accepts only a request to create it again or to restore it.
"""

from collections.abc import Iterator
from itertools import chain

from rebaser_core.branches.branch import Create
from rebaser_core.commit import Marking
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.errors import UnprocessableError
from rebaser_core.state.change_set import REDRIVE_MEMORY_MS, ChangeSetState, RecordedOutcome


def refuse_deleted(request: QueuedRequest) -> UnprocessableError | None:
    """Return the reason why a deleted change set refuses `request`, or None if it accepts the request."""
    if isinstance(request.action, Create) or request.restored is not None:
        return None
    if isinstance(request.action, Marking) and request.refusal is not None:
        return None  # the caller reports `request.refusal`, the reason why the change set cannot be restored
    return UnprocessableError("this change set is deleted: create it again, or reopen it", code="deleted")


def remembered_outcomes(state: ChangeSetState, before_ms: int) -> Iterator[RecordedOutcome]:
    """Yield the outcomes in `state` that remain recorded after a commit whose `forget_before_ms` is `before_ms`."""
    return chain(state.outcomes.since(before_ms), state.redriven.since(before_ms - REDRIVE_MEMORY_MS))

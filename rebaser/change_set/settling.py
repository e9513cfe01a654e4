"""Sends an applied branch a request to take over the commit that applied it. The branch then continues from that
commit, or is closed.

Invariant: the request is stored before the apply is answered, and again for each message that repeats the apply. All
these copies have the same id, so the request is decided once.
"""

import structlog

from rebaser.runtime.context import Context
from rebaser_client.errors import NotAllowed
from rebaser_client.jetstream import ApiError
from rebaser_client.jetstream.errors import is_full
from rebaser_client.requests.task_publisher import publish_request
from rebaser_core.branches.branch import Rebase
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest

log = structlog.get_logger(__name__)


def settle_id(commit: int) -> RequestId:
    """Return the id of the request that makes a branch take over the commit that applied the branch, at log sequence
    `commit`."""
    return RequestId(f"settle-{commit}")


async def request_settling(context: Context, branch: ChangeSetKey, applied: int, commit: int) -> None:
    """Store a request that makes `branch` take over the commit that applied it.

    `applied` is the log sequence of the branch up to which the branch was applied. `commit` is the log sequence of the
    target's commit that applied it.

    Raises `TransientError` if the request cannot be stored now. If the stream is full, or the server's NATS user may
    not send requests, the refusal is only logged, because the next rebase of the branch has the same effect.
    """
    request_id = settle_id(commit)
    action = Rebase(upto=commit, settles=applied)
    request = EnqueueUpdatesRequest(request_id, branch.workspace, branch.change_set, None, action=action)
    try:
        await publish_request(context.js, context.subjects, request)
    except (ApiError, NotAllowed) as error:
        if isinstance(error, ApiError) and not is_full(error):
            raise
        log.warning(
            "settle_refused",
            workspace=branch.workspace,
            change_set=branch.change_set,
            commit=commit,
            reason=error.message,
        )

"""Asks a branch that was applied to its target to take over the commit with which the target applied it. The branch
then continues from that commit, or is closed.

Invariant: the request to the branch is stored before the request to apply is answered. It is stored again each time the
request to apply is repeated. All copies have the same id, so only one of them is decided.
"""

import structlog

from rebaser.runtime.context import Context
from rebaser_client.jetstream import ApiError
from rebaser_client.jetstream.errors import is_full
from rebaser_client.nats.errors import NotAllowed
from rebaser_client.requests.task_publisher import store_request
from rebaser_core.branches.branch import Rebase
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest

log = structlog.get_logger(__name__)


def settle_id(commit: int) -> RequestId:
    """Return the id of the request that makes a branch take over the target's commit at log sequence `commit`."""
    return RequestId(f"settle-{commit}")


async def request_settling(
    context: Context, branch: ChangeSetKey, applied: int, commit: int, trace: dict[str, str] | None = None
) -> None:
    """Store a request that makes `branch` take over the commit that applied it.

    `applied` is the sequence in the branch's log up to which the branch was applied. `commit` is the sequence, in the
    target's log, of the commit that applied it. `trace` are headers with which the request continues a trace.

    Raise `TransientError` if the request cannot be stored now. If the stream is full, or the server's NATS user may
    not send requests, the refusal is only logged, because the next rebase of the branch has the same effect.
    """
    request_id = settle_id(commit)
    action = Rebase(upto=commit, settles=applied)
    request = EnqueueUpdatesRequest(request_id, branch.workspace, branch.change_set, None, action=action)
    try:
        await store_request(context.js, context.subjects, request, trace)
        # The request to apply does not wait for the task. If NATS does not store the task, the sweeper publishes it.
        context.connection.post(context.subjects.task(branch))
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

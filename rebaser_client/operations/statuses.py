"""The operations of the client that close, delete and reopen change sets."""

from typing import Literal, Unpack

from rebaser_client.operations.applies import ApplyOperations
from rebaser_client.operations.reverts import RevertOptions
from rebaser_core.commit import BranchStatus, Marking
from rebaser_core.messages import EnqueueUpdatesResponse


class StatusOperations(ApplyOperations):
    """The operations that change the status of change sets. `RebaserClient` inherits them."""

    async def close_change_set(
        self,
        workspace: str,
        change_set: str,
        status: Literal["abandoned", "applied"] = "abandoned",
        **options: Unpack[RevertOptions],
    ) -> EnqueueUpdatesResponse:
        """Close the change set, and wait for the server's answer.

        Until the change set is reopened, servers reject edits, reverts, recomputes and applies with code `closed`. Its
        values can still be read, and other change sets can be created from it. `status` is the reason why the change
        set is closed. If it is closed already, it gets the new status, so check `branch` first if the status of an
        applied branch must not be lost.

        Raise the errors of `enqueue_updates_with_reply`; `RequestRejected` has the code `no_such_change_set`.
        """
        return await self._mark(workspace, change_set, Marking(status=BranchStatus(status)), **options)

    async def reopen_change_set(
        self, workspace: str, change_set: str, **options: Unpack[RevertOptions]
    ) -> EnqueueUpdatesResponse:
        """Reopen a closed change set, or restore a deleted one, and wait for the server's answer.

        Raise the errors of `close_change_set`. `RequestRejected` has the code `purged` if the state before the
        deletion is no longer in the history.
        """
        return await self._mark(workspace, change_set, Marking(status=BranchStatus.OPEN), **options)

    async def delete_change_set(
        self, workspace: str, change_set: str, **options: Unpack[RevertOptions]
    ) -> EnqueueUpdatesResponse:
        """Delete the change set, and wait for the server's answer.

        A deleted change set has no values, and servers reject its requests with code `deleted`. Change sets that were
        created from it keep their values. As long as its history is retained, `reopen_change_set` restores the change
        set, and its earlier states can be read. A new change set of the same name can be created.

        Raise the errors of `enqueue_updates_with_reply`; `RequestRejected` has the code `no_such_change_set`,
        `protected`, or `deleted` if it is deleted already.
        """
        return await self._mark(workspace, change_set, Marking(status=BranchStatus.DELETED), **options)

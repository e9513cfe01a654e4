"""The operations of the client that bring a branch into its target: apply, and the protection of change sets."""

import time
from typing import Unpack

import anyio

from rebaser_client.branches import BranchOperations
from rebaser_client.errors import RequestTimeout
from rebaser_client.log.positions import At
from rebaser_client.requests.sender import translate_missing_stream
from rebaser_client.reverts import RevertOptions
from rebaser_core.branch import Apply
from rebaser_core.commit import Marking
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesResponse, read_branch, read_edited


class ApplyOperations(BranchOperations):
    """The operations that apply branches, and protect change sets. `RebaserClient` inherits them."""

    async def apply(
        self,
        workspace: str,
        branch: str,
        *,
        to: str | None = None,
        at: At | None = None,
        strict: bool = False,
        allow_stale: bool = False,
        **options: Unpack[RevertOptions],
    ) -> EnqueueUpdatesResponse:
        """Apply the changes of a branch to its target, and wait. Either all changes are applied, or nothing is.

        The target takes what the branch was at one position. It is never overwritten unseen: a value that was edited
        on both sides, to different definitions, is a conflict. Derived values are not taken; the target computes them.

        - `to`: the target. By default, the one that the branch has.
        - `at`: the position of the branch, a log sequence or a time with its time zone; None is now.
        - `strict`: only if the target was not edited after the base of the branch, so that it becomes exactly what
          the branch shows.
        - `allow_stale`: do not wait until the derived values of the branch are up to date.

        Raises the errors of `enqueue_updates_with_reply`: `RequestConflicts` with the base of the branch (`base`), the
        definition in the target (`ours`) and in the branch (`theirs`), and `RequestRejected` with code `closed`,
        `moved`, `no_such_change_set`, `not_its_target`, `purged`, `self`, `stale`, `too_large` or `unresolved`. Raises
        `UnprocessableError` with code `no_such_change_set`, or `not_a_branch` for a change set without a target.
        """
        timeout = options.get("timeout", 60.0)
        deadline = time.monotonic() + timeout
        key = ChangeSetKey.of(workspace, branch)
        target, sequence, stale = await self._to_apply(key, at)
        if stale and not allow_stale:
            try:
                with anyio.fail_after(timeout):
                    await self._derived(key, *stale)
            except TimeoutError:
                raise RequestTimeout(RequestId(options.get("request_id") or ""), timeout) from None
        options["timeout"] = max(deadline - time.monotonic(), 0.001)
        action = Apply(branch, sequence, strict, allow_stale)
        return await self.enqueue_updates_with_reply(workspace, to or target, (), action=action, **options)

    async def protect(
        self, workspace: str, change_set: str, **options: Unpack[RevertOptions]
    ) -> EnqueueUpdatesResponse:
        """Have the change set refuse edits and reverts, with code `protected`, and wait. Branches can be applied to it.

        Raises the errors of `enqueue_updates_with_reply`; `RequestRejected` has the code `no_such_change_set`.
        """
        return await self._mark(workspace, change_set, Marking(protected=True), **options)

    async def unprotect(
        self, workspace: str, change_set: str, **options: Unpack[RevertOptions]
    ) -> EnqueueUpdatesResponse:
        """Have the change set accept edits again, and wait. Raises the errors of `protect`."""
        return await self._mark(workspace, change_set, Marking(protected=False), **options)

    async def _mark(
        self, workspace: str, change_set: str, marking: Marking, **options: Unpack[RevertOptions]
    ) -> EnqueueUpdatesResponse:
        return await self.enqueue_updates_with_reply(workspace, change_set, (), action=marking, **options)

    async def _to_apply(self, key: ChangeSetKey, at: At | None) -> tuple[str, int, tuple[int, bool] | None]:
        """Return the target of the branch, its log sequence at the position, and what to wait for before it is applied.

        To wait for: the commit that has to be covered, and whether that commit created the branch. None: nothing.
        """
        with translate_missing_stream():
            found = await self._reader.newest_commit(key, at)
        name = f"{key.workspace}/{key.change_set}"
        if found is None:
            raise UnprocessableError(f"there is no change set {name}", code="no_such_change_set")
        message, commit = found
        branch = read_branch(message.headers)
        if branch is None or not branch.target:
            raise UnprocessableError(f"{name} is not a branch of another change set", code="not_a_branch")
        edited = read_edited(message.headers, message.sequence)
        covered = commit.sequence if commit.covers is None else commit.covers
        stale = None if covered >= edited else (edited, edited == commit.created_by)
        return branch.target, commit.sequence, stale

    async def _derived(self, key: ChangeSetKey, edited: int, inherited: bool) -> None:
        """Wait until the derived values of `key` are up to date as of commit `edited`."""
        if inherited:
            # No server works on a change set that was only created. A request without updates makes a server load it.
            await self.enqueue_updates_with_reply(key.workspace, key.change_set, ())
        await self._coverage.wait(key, edited)

"""The operations of the client that bring a branch into its target: apply, and the protection of change sets."""

import time
from contextlib import aclosing
from typing import Unpack

import anyio
from anyio import to_thread

from rebaser_client.branches import BranchOperations
from rebaser_client.errors import NewErrors, RequestTimeout
from rebaser_client.log.positions import At
from rebaser_client.requests.sender import translate_missing_stream
from rebaser_client.reverts import RevertOptions
from rebaser_core.branch import Apply
from rebaser_core.commit import Kind, Marking
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesResponse, read_branch, read_edited
from rebaser_core.values import Fault


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
        check: bool = False,
        keep: bool = False,
        **options: Unpack[RevertOptions],
    ) -> EnqueueUpdatesResponse:
        """Apply the changes of a branch to its target, and wait. Either all changes are applied, or nothing is.

        The target gets the edits of the branch as of one position. A value that was edited on both sides, to different
        definitions, is a conflict, and is never overwritten. Derived values are not copied; the target computes them.

        - `to`: if given, it must be the target of the branch.
        - `at`: the position of the branch, a log sequence or a time with its time zone; None is now.
        - `strict`: only if the target was not edited after the base of the branch, so that it becomes exactly what
          the branch shows.
        - `allow_stale`: do not wait until the derived values of the branch are up to date.
        - `check`: apply nothing if a value is an error in the branch, but not in the target; see `new_errors`. With
          `strict`, this is exact. Otherwise, edits of the target that the branch does not have may cause other errors,
          or avoid them. Not together with `allow_stale`.
        - `keep`: the branch stays open. Otherwise its status becomes `applied`, unless it has later edits of its own.

        The branch then takes over what its target has by now, so that it can be applied again. This happens soon after
        the answer, and may find conflicts with edits of the branch that were not applied.

        Raises the errors of `enqueue_updates_with_reply`: `RequestConflicts` with the definitions at the base of the
        branch (`base`), in the target (`ours`) and in the branch (`theirs`), and `RequestRejected` with code `closed`,
        `moved`, `no_such_change_set`, `not_its_target`, `purged`, `self`, `stale`, `too_large` or `unresolved`. Raises
        `UnprocessableError` with code `no_such_change_set`, or `not_a_branch` for a change set without a target, and
        the errors of `new_errors` and `NewErrors` if `check` is true.
        """
        if check and allow_stale:
            raise UnprocessableError(
                "`check` and `allow_stale` exclude each other: the check needs derived values that are up to date",
                code="invalid_argument",
            )
        timeout = options.get("timeout", 60.0)
        deadline = time.monotonic() + timeout
        key = ChangeSetKey.of(workspace, branch)
        target, sequence, stale = await self._to_apply(key, at)
        if stale and not allow_stale:
            try:
                with anyio.fail_after(timeout):
                    await self._derived(key, *stale)
            except TimeoutError:
                request_id = RequestId(options.get("request_id") or "")
                raise RequestTimeout(request_id, timeout, unsent_for=f"{workspace}/{branch}") from None
        if check:
            errors = await self._new_errors(key, to or target, sequence)
            if errors:
                raise NewErrors(branch, to or target, errors)
        options["timeout"] = max(deadline - time.monotonic(), 0.001)
        action = Apply(branch, sequence, strict, allow_stale, keep)
        return await self.enqueue_updates_with_reply(workspace, to or target, (), action=action, **options)

    async def new_errors(
        self,
        workspace: str,
        branch: str,
        *,
        at: At | None = None,
        timeout: float = 60.0,  # noqa: ASYNC109 - it bounds the wait for a server
    ) -> dict[str, Fault]:
        """Return the faults, by value id, of the values that are errors in the branch, but not in its target now.

        Values that fail by themselves come first, then those that fail because an input does. The call first waits
        until the derived values of the branch are up to date, and then reads all values of the branch and the target.
        `at`: as in `apply`. `timeout`: the longest wait for the derived values, in seconds.

        Raises `UnprocessableError` with code `no_such_change_set`, `not_a_branch`, or `stale` if the branch was edited
        again before its derived values as of `at` were up to date. Raises `PositionPurged` as `state` does, and
        `TimeoutError` if the derived values are not up to date in time.
        """
        key = ChangeSetKey.of(workspace, branch)
        target, sequence, stale = await self._to_apply(key, at)
        if stale:
            try:
                with anyio.fail_after(timeout):
                    await self._derived(key, *stale)
            except TimeoutError:
                raise TimeoutError(f"derived values of {key} were not up to date within {timeout:g} s") from None
        return await self._new_errors(key, target, sequence)

    async def _new_errors(self, key: ChangeSetKey, target: str, sequence: int) -> dict[str, Fault]:
        from rebaser_core.state.tally import new_faults  # noqa: PLC0415 - as states, it needs NumPy

        computed = await self._computed(key, sequence)
        theirs = await self.state(key.workspace, key.change_set, at=computed)
        if theirs.covers < theirs.edited:
            raise UnprocessableError(
                f"{key.change_set} was edited again before its derived values as of {sequence} were up to date",
                code="stale",
            )
        return await to_thread.run_sync(new_faults, await self.state(key.workspace, target), theirs)

    async def _computed(self, key: ChangeSetKey, sequence: int) -> int:
        """Return the log sequence of the newest commit at which the definitions are those of commit `sequence`."""
        same = 0
        with translate_missing_stream():
            async with aclosing(self._reader.back(key)) as commits:
                async for commit in commits:
                    same = same or commit.sequence
                    if commit.sequence <= sequence:
                        break
                    if commit.kind is not Kind.DVU and (commit.delta or commit.delta_blob):
                        same = commit.previous
        return max(same, sequence)

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
        """Return the target of the branch, the log sequence of its newest commit at the position, and what to wait for.

        What to wait for is None if the derived values were up to date at the position. Otherwise it is the log sequence
        of the commit as of which they have to be, and whether that commit created the branch.
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

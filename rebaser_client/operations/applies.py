"""The operations of the client that apply a branch to its target, and that protect change sets."""

import time
from dataclasses import dataclass
from typing import Unpack

import anyio
from anyio import to_thread

from rebaser_client.errors import NewErrors, RequestConflicts, RequestRejected, RequestTimeout, UnresolvedConflicts
from rebaser_client.jetstream import StoredMessage
from rebaser_client.log.branch_errors import no_change_set, not_a_branch
from rebaser_client.log.positions import At
from rebaser_client.operations.rebases import RebaseOperations
from rebaser_client.operations.reverts import RevertOptions
from rebaser_client.requests.sender import translate_missing_stream
from rebaser_core.branches.branch import Apply
from rebaser_core.commit import Commit, Marking
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesResponse, read_branch, read_edited
from rebaser_core.shell import command
from rebaser_core.values import Fault

APPLY_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class _ToApply:
    """A branch as of its commit `sequence`, with its target and the number of its conflicts.

    `stale` is None if the derived values were up to date at that commit. Otherwise, `stale` contains the log sequence
    as of which they have to be up to date, and whether the commit at that sequence created the branch.
    """

    target: str
    sequence: int
    conflicts: int
    stale: tuple[int, bool] | None


class ApplyOperations(RebaseOperations):
    """The operations that apply branches and protect change sets. `RebaserClient` inherits them."""

    async def apply(
        self,
        workspace: str,
        branch: str,
        *,
        to: str | None = None,
        at: At | None = None,
        expect_at: int | None = None,
        strict: bool = False,
        allow_stale: bool = False,
        check: bool = False,
        keep: bool = False,
        **options: Unpack[RevertOptions],
    ) -> EnqueueUpdatesResponse:
        """Apply the changes of a branch to its target, and wait for the server's answer.

        Either all changes are applied, or nothing is. First, the branch is rebased if it lacks edits of its target.
        Then the call waits for the derived values of the branch. If the branch has conflicts before or after the
        rebase, nothing is applied. If the target is edited meanwhile, the call starts again, up to five times. This
        ensures that the target receives the branch as of a single position, and keeps all edits that the branch does
        not contain. Derived values are not copied; the target computes its own.

        - `to`: the change set to which the branch is applied; by default, its target.
        - `at`: apply the branch as of this position, a log sequence or a time with its time zone, without a rebase.
        - `expect_at`: the log sequence of the target up to which the caller has seen it, such as `target_sequence` of
          `changes`. If the target was edited after that, nothing is applied, and the code is `moved`. Requires `at`, so
          that both the branch and the target are as the caller has seen them.
        - `strict`: apply only if the branch contains all edits of the target. The target then becomes equal to the
          branch.
        - `allow_stale`: do not wait until the derived values of the branch are up to date.
        - `check`: apply nothing if a value is an error in the branch, but not in the target; see `new_errors`. With
          `strict`, the check is exact. Otherwise, edits that only the target has may cause other errors, or prevent
          some of these errors. Cannot be combined with `allow_stale`.
        - `keep`: keep the branch open. By default, it is closed as soon as the target has all edits of the branch.
        - `request_id`: requires `at`, because without `at`, each attempt may apply a different position.

        Raises:

        - the errors of `rebase`, and `UnresolvedConflicts`.
        - the errors of `enqueue_updates_with_reply`. `RequestConflicts` has the definitions at the base of the branch
          (`base`), in the target (`ours`) and in the branch (`theirs`). `RequestRejected` has the code `behind`,
          `closed`, `moved`, `no_such_change_set`, `not_its_target`, `purged`, `self`, `stale`, `too_large` or
          `unresolved`.
        - `UnprocessableError` with code `no_such_change_set`, or `not_a_branch` for a change set without a target.
        - with `check`: `NewErrors`, and the errors of `new_errors`.
        """
        if check and allow_stale:
            raise UnprocessableError(
                "`check` and `allow_stale` exclude each other: the check needs derived values that are up to date",
                code="invalid_argument",
            )
        if at is None and expect_at is not None:
            raise UnprocessableError(
                "`expect_at` requires `at`: without `at`, the branch is first rebased and may change",
                code="invalid_argument",
            )
        if at is None and options.get("request_id") is not None:
            raise UnprocessableError(
                "`request_id` requires `at`: without `at`, each attempt may apply a different position",
                code="invalid_argument",
            )
        key = ChangeSetKey.of(workspace, branch)
        timeout = options.get("timeout", 60.0)
        deadline = time.monotonic() + timeout
        for attempt in range(1, APPLY_ATTEMPTS + 1):
            options["timeout"] = max(deadline - time.monotonic(), 0.001)
            found = await (self._rebased(key, options) if at is None else self._to_apply(key, at))
            if found.conflicts:
                raise UnresolvedConflicts(branch, found.target, found.conflicts)
            if found.stale and not allow_stale:
                await self._wait_derived(key, found.stale, deadline, options)
            if check:
                errors = await self._new_errors(key, to or found.target, found.sequence)
                if errors:
                    raise NewErrors(branch, to or found.target, errors)
            options["timeout"] = max(deadline - time.monotonic(), 0.001)
            action = Apply(branch, found.sequence, strict, allow_stale, keep)
            try:
                return await self.enqueue_updates_with_reply(
                    workspace, to or found.target, (), action=action, expect_at=expect_at, **options
                )
            except RequestRejected as error:
                moved = isinstance(error, RequestConflicts) or error.code in ("behind", "moved")
                if at is not None or not moved or attempt == APPLY_ATTEMPTS or not await self._is_behind(key):
                    raise
        raise AssertionError  # unreachable, because the last attempt returns or raises

    async def _rebased(self, key: ChangeSetKey, options: RevertOptions) -> _ToApply:
        """Rebase the branch if it is open, and return the facts that `apply` needs. If it is closed or deleted, do not
        rebase it: the server later rejects the request and gives the reason."""
        branch = await self._find_branch(key)
        if branch.info.status == "open":
            about = RevertOptions(author=options.get("author"), timeout=options["timeout"])
            if await self._rebase(branch, "record", None, **about) is not None:
                return await self._to_apply(key, None)
        message = branch.message
        commit = self._reader.decode(message.sequence, message.headers, message.data)
        return await self._to_apply(key, None) if commit is None else _facts(key, message, commit)

    async def _is_behind(self, key: ChangeSetKey) -> bool:
        """Return whether the branch is open and lacks edits of its target, so that another rebase may help."""
        info = await self.branch(key.workspace, key.change_set)
        return info is not None and info.status == "open" and info.behind

    async def _wait_derived(
        self, key: ChangeSetKey, stale: tuple[int, bool], deadline: float, options: RevertOptions
    ) -> None:
        """Wait until the derived values are up to date. Raise `RequestTimeout` at `deadline` (monotonic time)."""
        timeout = options.get("timeout", 60.0)
        try:
            with anyio.fail_after(deadline - time.monotonic()):
                await self._derived(key, *stale)
        except TimeoutError:
            request_id = RequestId(options.get("request_id") or "")
            raise RequestTimeout(request_id, timeout, unsent_for=str(key)) from None

    async def new_errors(
        self,
        workspace: str,
        branch: str,
        *,
        at: At | None = None,
        timeout: float = 60.0,  # noqa: ASYNC109 - limits only the wait for a server
    ) -> dict[str, Fault]:
        """Return the faults of all values that are now errors in the branch, but not in its target, by value id.

        Values that fail by themselves come first, then values that fail because one of their inputs does. The call
        first waits until the derived values of the branch are up to date, for at most `timeout` seconds. Then it reads
        all values of the branch and the target. `at` has the same meaning as in `apply`.

        Raise `UnprocessableError` with code `no_such_change_set` or `not_a_branch`, or with code `stale` if the branch
        was edited again before its derived values as of `at` were up to date. Raise `PositionPurged` like `state`, and
        `TimeoutError` if the derived values are not up to date in time.
        """
        key = ChangeSetKey.of(workspace, branch)
        found = await self._to_apply(key, at)
        if found.stale:
            try:
                with anyio.fail_after(timeout):
                    await self._derived(key, *found.stale)
            except TimeoutError:
                raise TimeoutError(
                    f"derived values of {key} were not up to date within {timeout:g} s; "
                    f"`{command('status', key.workspace)}` shows whether a server is computing them"
                ) from None
        return await self._new_errors(key, found.target, found.sequence)

    async def _new_errors(self, key: ChangeSetKey, target: str, sequence: int) -> dict[str, Fault]:
        from rebaser_core.state.tally import new_faults  # noqa: PLC0415 - it imports NumPy, which is rarely needed

        with translate_missing_stream():
            computed = await self._reader.newest_same(key, sequence)
        theirs = await self.state(key.workspace, key.change_set, at=computed)
        if theirs.covers < theirs.edited:
            raise UnprocessableError(
                f"{key.change_set} was edited again before its derived values as of {sequence} were up to date: "
                "try again",
                code="stale",
            )
        return await to_thread.run_sync(new_faults, await self.state(key.workspace, target), theirs)

    async def protect(
        self, workspace: str, change_set: str, **options: Unpack[RevertOptions]
    ) -> EnqueueUpdatesResponse:
        """Protect the change set, and wait for the server's answer.

        Servers then reject edits and reverts of the change set with code `protected`. Branches can still be applied to
        it. Raise the errors of `enqueue_updates_with_reply`; `RequestRejected` has the code `no_such_change_set`.
        """
        return await self._mark(workspace, change_set, Marking(protected=True), **options)

    async def unprotect(
        self, workspace: str, change_set: str, **options: Unpack[RevertOptions]
    ) -> EnqueueUpdatesResponse:
        """End the protection of the change set, and wait for the server's answer. Raise the errors of `protect`."""
        return await self._mark(workspace, change_set, Marking(protected=False), **options)

    async def _mark(
        self, workspace: str, change_set: str, marking: Marking, **options: Unpack[RevertOptions]
    ) -> EnqueueUpdatesResponse:
        return await self.enqueue_updates_with_reply(workspace, change_set, (), action=marking, **options)

    async def _to_apply(self, key: ChangeSetKey, at: At | None) -> _ToApply:
        """Return the facts that `apply` needs about the branch `key` at the position `at`."""
        with translate_missing_stream():
            found = await self._reader.newest_commit(key, at)
        if found is None:
            raise no_change_set(key)
        return _facts(key, *found)

    async def _derived(self, key: ChangeSetKey, edited: int, inherited: bool) -> None:
        """Wait until the derived values of `key` are up to date as of commit `edited`.

        `inherited` is true if that commit created the branch. In that case, the branch may not have received any
        request yet.
        """
        if inherited:
            # Servers do not load a new change set until it receives a request, so send a request without updates.
            await self.enqueue_updates_with_reply(key.workspace, key.change_set, ())
        await self._coverage.wait(key, edited)


def _facts(key: ChangeSetKey, message: StoredMessage, commit: Commit) -> _ToApply:
    """Return the facts that `apply` needs about the branch `key` as of `commit`, which `message` contains."""
    branch = read_branch(message.headers)
    if branch is None or not branch.target:
        raise not_a_branch(key)
    edited = read_edited(message.headers, message.sequence)
    covered = commit.sequence if commit.covers is None else commit.covers
    stale = None if covered >= edited else (edited, edited == commit.created_by)
    return _ToApply(branch.target, commit.sequence, branch.conflicts, stale)

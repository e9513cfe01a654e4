"""The operations of the client that reverse earlier edits: revert, undo and redo."""

from abc import abstractmethod
from functools import partial
from typing import Literal, TypedDict, Unpack

from rebaser_client.log.undo import UndoStep, find_redo, find_undo
from rebaser_client.operations.reads import ReadOperations
from rebaser_client.requests.sender import translate_missing_stream
from rebaser_core.commit import Reverts
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesResponse


class RevertOptions(TypedDict, total=False):
    """The options of `RebaserClient.revert`, `undo`, `redo` and similar methods. All are optional.

    The options have the same meaning as in `enqueue_updates_with_reply`. By default, `timeout` is 60 seconds, and
    `wait` is `applied`.
    """

    author: str | None
    message: str
    wait: Literal["applied", "derived"]
    timeout: float
    request_id: str | None


class RevertOperations(ReadOperations):
    """The operations that reverse earlier edits. `RebaserClient` inherits them."""

    _author = ""  # the author of requests that do not specify one

    @abstractmethod
    async def _send_revert(
        self, workspace: str, change_set: str, reverts: Reverts, **options: Unpack[RevertOptions]
    ) -> EnqueueUpdatesResponse: ...

    async def revert(
        self,
        workspace: str,
        change_set: str,
        first: int,
        last: int | None = None,
        *,
        request: str | None = None,
        of: str | None = None,
        **options: Unpack[RevertOptions],
    ) -> EnqueueUpdatesResponse:
        """Reverse the edits of the commits from log sequence `first` to `last`, and wait for the server's answer.

        By default, `last` is `first`. The edited values get the definitions that they had before `first`. If `request`
        is given, only the edits that this request made in the commit `first` are reversed. A revert is an edit like any
        other, and can itself be reverted. Commits without edits of their own, such as a rebase, are skipped, so changes
        taken over from the target remain.

        If `change_set` is a branch, `of` may be its target. Then `first` and `last` are commits of the target, up to
        the base of the branch, and their edits are reversed in the branch. To correct the target, which may be
        protected, apply the branch afterwards.

        Raise the errors of `enqueue_updates_with_reply`: `RequestConflicts` if a value was edited again after `last`,
        and `RequestRejected` with code `moved` (for a commit of the target after the base), `not_its_target`, `purged`,
        `no_such_position`, `no_such_request` or `too_large`.
        """
        asked = None if request is None else RequestId(request)
        reverts = Reverts(first, first if last is None else last, asked, of)
        return await self._send_revert(workspace, change_set, reverts, **options)

    async def undoable(self, workspace: str, change_set: str, *, author: str | None = None) -> UndoStep | None:
        """Return the request that `undo` would revert: the newest request of `author` that made edits.

        Reverts, and requests that were reverted, do not count. Return None if there is no such request in the newest
        10,000 commits. By default, `author` is the author of the client; an empty string means requests without an
        author.
        """
        key = ChangeSetKey.of(workspace, change_set)
        with translate_missing_stream():
            return await find_undo(self._history.log(key), self._author if author is None else author)

    async def redoable(self, workspace: str, change_set: str, *, author: str | None = None) -> UndoStep | None:
        """Return the request that `redo` would revert: the newest undo of `author` that is not itself reverted.

        Return None if there is no such undo, or if the author has made other edits since. `author` has the same
        meaning as in `undoable`.
        """
        key = ChangeSetKey.of(workspace, change_set)
        author = self._author if author is None else author
        with translate_missing_stream():
            return await find_redo(self._history.log(key), author, partial(self._reader.commit_at, key))

    async def undo(self, workspace: str, change_set: str, **options: Unpack[RevertOptions]) -> EnqueueUpdatesResponse:
        """Revert the request that `undoable` returns, and wait for the server's answer.

        Each further call reverts an earlier request of the author.

        Raise the errors of `revert`, and `UnprocessableError` with code `nothing_to_undo`.
        """
        step = await self.undoable(workspace, change_set, author=options.get("author"))
        return await self._revert_step("undo", step, workspace, change_set, **options)

    async def redo(self, workspace: str, change_set: str, **options: Unpack[RevertOptions]) -> EnqueueUpdatesResponse:
        """Revert the undo that `redoable` returns, and wait for the server's answer.

        Raise the errors of `revert`, and `UnprocessableError` with code `nothing_to_redo`.
        """
        step = await self.redoable(workspace, change_set, author=options.get("author"))
        return await self._revert_step("redo", step, workspace, change_set, **options)

    async def _revert_step(
        self, verb: str, step: UndoStep | None, workspace: str, change_set: str, **options: Unpack[RevertOptions]
    ) -> EnqueueUpdatesResponse:
        if step is None:
            author = options.get("author")
            author = self._author if author is None else author
            whose = f"by {author}" if author else "without an author"
            what = "request" if verb == "undo" else "undo"
            name = f"{workspace}/{change_set}"
            raise UnprocessableError(
                f"nothing to {verb} in {name}: there is no {what} {whose} to revert", code=f"nothing_to_{verb}"
            )
        return await self.revert(
            workspace, change_set, step.entry.sequence, request=step.decision.request_id, **options
        )

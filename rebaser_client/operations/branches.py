"""The operations of the client that create branches, list them, and show their changes."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from rebaser_client.errors import RequestRejected
from rebaser_client.log.branch_pages import BranchPages
from rebaser_client.log.branches import BranchDiff, BranchInfo, info_of
from rebaser_client.log.changes import Definition, check_limit, page_of
from rebaser_client.log.origins import source_of
from rebaser_client.log.positions import At, at_text
from rebaser_client.operations.pages import PageOperations
from rebaser_client.requests.sender import translate_missing_stream
from rebaser_core.branches.branch import Create
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, check_token
from rebaser_core.messages import EnqueueUpdatesResponse, Success

Follow: TypeAlias = Literal["auto", "manual"]


class BranchOperations(PageOperations):
    """The operations on branches. `RebaserClient` inherits them."""

    _kept: tuple[tuple[ChangeSetKey, bool], BranchDiff] | None = None  # what further pages of `changes` are taken from
    _pages: BranchPages | None = None  # what further pages of `branches` are taken from

    @abstractmethod
    async def enqueue_updates_with_reply(self, *args: Any, **options: Any) -> EnqueueUpdatesResponse:
        """Send a request, and wait for its answer."""

    async def create_branch(
        self,
        workspace: str,
        change_set: str,
        parent: str | None = "main",
        *,
        at: At | None = None,
        target: str | None = None,
        closed: bool = False,
        follow: Follow = "auto",
        or_use: bool = False,
        author: str | None = None,
        message: str = "",
        wait: Literal["applied", "derived"] = "applied",
        timeout: float = 60.0,  # noqa: ASYNC109 - the error must carry the request id
        request_id: str | None = None,
    ) -> BranchInfo:
        """Create a change set with all values of `parent`, and wait until it exists.

        The duration does not depend on the number of values. Later edits of one of the two change sets do not affect
        the other.

        - `parent`: the change set whose values are inherited; None for a change set without values.
        - `at`: the position of the parent, a log sequence or a time with its time zone; None means the newest commit.
          If the parent did not exist at that position, the parent's own parent is used.
        - `target`: the change set with which the new change set is compared, and to which it can be applied: the parent
          (default), or the target of the parent. In the second case, the new change set begins with all changes of the
          parent.
        - `closed`: create a change set that accepts no edits. Like a tag, it keeps one state of the parent under a
          name.
        - `follow`: with `auto`, servers bring the branch up to date with its target, like `rebase`, whenever they work
          on the branch. An unused branch falls behind until its next request, which brings it up to date. With
          `manual`, only `rebase` and `apply` bring it up to date.
        - `or_use`: if the change set exists, return it, provided that it was created from the same parent, with the
          same target, and not from a position after `at`.
        - `wait`: with `derived`, also wait until the derived values of the new change set are up to date.

        Raise the errors of `enqueue_updates_with_reply`; `RequestRejected` has the code `exists`,
        `no_such_change_set`, `not_its_target`, `no_such_position`, `purged` or `self`.
        """
        key = ChangeSetKey.of(workspace, change_set)
        sequence: int | None = None
        if parent is not None and at is not None:
            parent, sequence = await self._position(ChangeSetKey.of(workspace, parent), at)
        if follow not in ("auto", "manual"):
            raise UnprocessableError(f"follow must be auto or manual, not {follow!r}", code="invalid_argument")
        asked = Create(parent, sequence, target, closed, follow == "auto")
        about = {"author": author, "message": message, "timeout": timeout, "request_id": request_id}
        try:
            response = await self.enqueue_updates_with_reply(workspace, change_set, (), action=asked, **about)
        except RequestRejected as error:
            if error.code != "exists" or not or_use:
                raise
            info = await self.branch(workspace, change_set)
            same = info is not None and info.origin == parent and info.target == (target or parent)
            if info is None or not same or (sequence is not None and info.origin_sequence > sequence):
                raise
            return info
        assert isinstance(response.status, Success)  # noqa: S101 - any other status is raised as an error
        created = response.status.commit
        if wait == "derived" and await self._owes(key, created):
            # Servers do not load a new change set until it receives a request, so send a request without updates.
            await self.enqueue_updates_with_reply(workspace, change_set, (), wait="derived", timeout=timeout)
        if at is None and target in (None, parent):
            # It was created with all edits of its target, so the target need not be read.
            with translate_missing_stream():
                stored = await self._reader.newest_message(key, created)
            info = None if stored is None else info_of(key, stored)
        else:
            info = await self.branch(workspace, change_set, at=created)
        if info is None:
            raise TransientError(
                f"{key} was created in commit {created}, but its log has since been purged; try again", code="purged"
            )
        return info

    async def branch(self, workspace: str, change_set: str, *, at: At | None = None) -> BranchInfo | None:
        """Return the parent, the target and the status of the change set as of the position `at`.

        If `at` is None, the newest commit is used. Return None if the change set had no commit at that position.
        """
        with translate_missing_stream():
            return await self._branches.one(ChangeSetKey.of(workspace, change_set), at)

    async def branches(
        self, workspace: str | None = None, *, after: str = "", limit: int | None = None
    ) -> list[BranchInfo]:
        """Return all change sets of the workspace, or of all workspaces, that have commits, sorted by name.

        For each change set, only the headers of the newest commit are read.

        To read the change sets of a workspace in pages, `limit` is the maximum size of a page, and `after` is the last
        name of the previous page. For later pages, the client reads only what was stored since the previous page.
        """
        if workspace is not None:
            check_token(workspace, "workspace")
        check_limit(limit)
        with translate_missing_stream():
            if limit is None and not after:
                return await self._branches.all(workspace)
            if workspace is None:
                raise UnprocessableError(
                    "`after` and `limit` require a workspace: the names of change sets are unique only in one",
                    code="invalid_argument",
                )
            if self._pages is None or self._pages.workspace != workspace:
                self._pages = BranchPages(self._js, self._subjects, workspace)
            return await self._pages.page(after, limit)

    async def changes(
        self,
        workspace: str,
        change_set: str,
        *,
        at: At | None = None,
        derived: bool = False,
        after: str = "",
        limit: int | None = None,
    ) -> BranchDiff:
        """Return the changes of the branch since its base, and the current definitions of the changed values in its
        target, sorted by id.

        `at` is the position of the branch; None means the newest commit. The cost depends on the number of changes, and
        on the commits of the branch and its target since the base, but not on the number of values.

        If `derived` is true, the result also has the derived values whose results differ from the base although their
        definitions are the same. For this, the call reads all values of the branch, and of its target at the base.

        To read the changes in pages, `limit` is the maximum number of changes and derived values on a page, and `after`
        is the greatest id of the previous page. The client caches all changes of the position that was read last, with
        the definitions in the target. For further pages of the same position, it reads only the newest commit.

        Raise `UnprocessableError` with code `no_such_change_set`, or `not_a_branch` for a change set without a target.
        Raise `PositionPurged` like `state`.
        """
        check_limit(limit)
        with translate_missing_stream():
            key = ChangeSetKey.of(workspace, change_set)
            found = await self._known_changes(key, at, derived=derived) if after else None
            if found is None:
                found = await self._branches.diff(key, at)
                found = replace(found, derived=await self._branches.derived(found)) if derived else found
        if after or limit is not None:
            self._kept = (key, derived), found
        changes, moved = page_of(found.changes, found.derived, after, limit)
        return replace(found, changes=changes, derived=moved)

    async def _known_changes(self, key: ChangeSetKey, at: At | None, *, derived: bool) -> BranchDiff | None:
        """Return the changes of the branch that are cached; None if they are those of another position."""
        if self._kept is None or self._kept[0] != (key, derived):
            return None
        found = self._kept[1]  # another call may replace it during the read
        message = await self._reader.newest_message(key, at)
        return found if message is not None and message.sequence == found.info.sequence else None

    async def branch_edits(self, workspace: str, change_set: str) -> dict[str, Definition | None]:
        """Return the definitions that the branch has of the values that it edited since its base, by id.

        None means that the branch removed the value. The cost depends on the commits of the branch, and not on those of
        its target. Raise the errors of `changes`.
        """
        with translate_missing_stream():
            return await self._branches.edits(ChangeSetKey.of(workspace, change_set))

    async def _position(self, key: ChangeSetKey, at: At) -> tuple[str, int]:
        """Return the change set whose log contains the state of `key` at the position `at`, and the log sequence of the
        newest commit at or before that position.
        """
        with translate_missing_stream():
            try:
                source, at_source = await source_of(self._reader, key, at)
            except UnprocessableError:
                if not isinstance(at, int):
                    raise
                return key.change_set, at  # the server will reject the position and give the reason
            if isinstance(at_source, int):
                return source.change_set, at_source
            message = await self._reader.newest_message(source, at_source)
        if message is None:
            name = f"{key.workspace}/{key.change_set}"
            raise UnprocessableError(
                f"{name} had no commit at {at_text(at)}: use a later position", code="no_such_position"
            )
        return source.change_set, message.sequence

    async def _owes(self, key: ChangeSetKey, created: int) -> bool:
        """Return whether derived values were not up to date when commit `created` created the change set."""
        commit = await self._reader.commit_at(key, created)
        return commit is not None and commit.covers is not None and commit.covers < created

"""The operations of the client that rebase a branch onto its target, and read and resolve its conflicts.

Invariant: only a caller that has read a conflict can resolve it. A resolution contains the position at which the
conflicts were read. Servers reject the resolution if one of the values, or its conflict, has changed since that
position.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, Unpack

from rebaser_client.log.branch_errors import no_change_set, not_a_branch
from rebaser_client.log.branches import BranchConflict, BranchInfo, FoundBranch
from rebaser_client.log.changes import check_limit
from rebaser_client.log.positions import At
from rebaser_client.operations.branches import BranchOperations
from rebaser_client.operations.reverts import RevertOptions
from rebaser_client.requests.sender import translate_missing_stream
from rebaser_core.branches.branch import Rebase
from rebaser_core.branches.merge import same_definition
from rebaser_core.commit import Strategy
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, first_of
from rebaser_core.messages import EnqueueUpdatesResponse, Success
from rebaser_core.updates import Remove, Update

StrategyName: TypeAlias = Literal["record", "ours", "theirs"]


@dataclass(frozen=True, slots=True)
class Rebased:
    """The result of a rebase: the branch has all edits of `target` up to log sequence `base`.

    `commit` is the log sequence of the commit that added these edits to the branch; None if the branch had them before.
    `updates` is the number of definitions that the commit took from the target. `conflicts` is the number of conflicts
    that the branch has now.
    """

    commit: int | None
    target: str
    base: int
    updates: int
    conflicts: int


@dataclass(frozen=True, slots=True)
class BranchConflicts:
    """A page of the conflicts of a branch, sorted by id. `info.conflicts` is the number of all conflicts.

    In `conflicts`, `base` is the definition that both sides replaced, `ours` the definition in the branch, and `theirs`
    the definition in its target as of the base of the branch.
    """

    info: BranchInfo
    conflicts: tuple[BranchConflict, ...]


class RebaseOperations(BranchOperations):
    """The operations that rebase branches and resolve their conflicts. `RebaserClient` inherits them."""

    async def rebase(
        self,
        workspace: str,
        branch: str,
        *,
        strategy: StrategyName = "record",
        onto: str | None = None,
        **options: Unpack[RevertOptions],
    ) -> Rebased:
        """Bring a branch up to date with its target, and wait for the server's answer.

        The branch receives the edits of the target that it does not contain yet, and keeps its own edits. A value that
        both sides defined differently is in conflict. `strategy` determines the result: `record` keeps the definition
        of the branch and records the conflict; `ours` keeps the definition of the branch, and `theirs` takes the
        definition of the target, both without a conflict. `ours` and `theirs` also resolve conflicts that are already
        recorded. `onto` is the new target of the branch, which must be the target of its current target. If there is
        nothing to do, no request is sent.

        Raise the errors of `enqueue_updates_with_reply`; `RequestRejected` has the code `closed`, `deleted`,
        `moved`, `not_a_branch`, `not_its_target`, `protected`, `purged` or `too_large`. Raise `UnprocessableError` with
        code `no_such_change_set`, or `not_a_branch` for a change set without a target.
        """
        found = await self._find_branch(ChangeSetKey.of(workspace, branch))
        done = await self._rebase(found, strategy, onto, **options)
        return done or Rebased(None, str(found.info.target), found.info.base, 0, found.info.conflicts)

    async def _rebase(
        self, found: FoundBranch, strategy: StrategyName, onto: str | None, **options: Unpack[RevertOptions]
    ) -> Rebased | None:
        """Rebase the branch `found`. Return None if there is nothing to do."""
        info, target = found.info, found.target
        # A branch whose target is deleted is not behind, but the server has to reject the request.
        lost = target is None or target.status == "deleted"
        needless = info.status == "open" and not info.behind and onto is None and not lost
        if needless and (not info.conflicts or (strategy == "record" and not await self._can_end_conflicts(info))):
            return None
        action = Rebase(None, onto, _strategy(strategy))
        response = await self.enqueue_updates_with_reply(info.workspace, info.change_set, (), action=action, **options)
        status = response.status
        assert isinstance(status, Success)  # noqa: S101 - any other status is raised as an error
        return Rebased(status.commit, onto or str(info.target), status.position, status.performed, status.conflicts)

    async def _can_end_conflicts(self, info: BranchInfo) -> bool:
        """Return whether an edit of the branch has made the two sides of a conflict equal, or restored the definition
        that both replaced, so that a rebase ends the conflict."""
        page = await self.conflicts(info.workspace, info.change_set)
        return any(
            same_definition(one.ours, one.theirs) or same_definition(one.ours, one.base) for one in page.conflicts
        )

    async def conflicts(
        self, workspace: str, branch: str, *, at: At | None = None, after: str = "", limit: int | None = None
    ) -> BranchConflicts:
        """Return a page of the conflicts that rebases recorded in the branch, sorted by id.

        `at` is the position of the branch, a log sequence or a time with its time zone; None means the newest commit.
        `limit` is the maximum size of the page, and `after` is the last id of the previous page. The cost depends on
        the number of changes in the branch, not on the number of values. The client caches all conflicts of the
        position that was read last. For further pages of the same position, it reads only the newest commit.

        Raise `UnprocessableError` with code `no_such_change_set`, or `not_a_branch` for a change set without a target.
        Raise `PositionPurged` like `state`.
        """
        with translate_missing_stream():
            check_limit(limit)
            key, paged = ChangeSetKey.of(workspace, branch), limit is not None
            info, found = await self._branches.conflicts(key, at, keep=paged)
        page = [one for one in found if one.id > after]
        return BranchConflicts(info, tuple(page if limit is None else page[:limit]))

    async def resolve(
        self,
        workspace: str,
        branch: str,
        ids: Iterable[str] | None = None,
        *,
        take: str | None = None,
        updates: Iterable[Update] = (),
        at: int | None = None,
        **options: Unpack[RevertOptions],
    ) -> EnqueueUpdatesResponse:
        """Resolve conflicts of a branch, and wait for the server's answer. Either all are resolved, or none.

        - `ids`: the values whose conflicts are resolved; None for all values in conflict.
        - `take`: the name of the change set whose definitions to take: the branch or its target.
        - `updates`: new definitions, instead of `take`, one for each of `ids`. Then `ids` may be omitted.
        - `at`: the log sequence of the branch at which the caller read the conflicts; None means the newest commit. The
          server rejects the request if one of the values was edited, or came into conflict again, after `at`.

        Raise the errors of `enqueue_updates_with_reply`; `RequestRejected` has the code `closed`, `moved` or
        `protected`. Raise the errors of `conflicts`. Raise `UnprocessableError` with code `no_conflict` for an id that
        is not in conflict, and with code `invalid_argument` if the arguments contradict each other.
        """
        new = {update.id: update for update in updates}
        if (take is None) != bool(new):
            raise UnprocessableError("give either `take` or `updates`, but not both", code="invalid_argument")
        found = await self.conflicts(workspace, branch, at=at)
        known = {one.id: one for one in found.conflicts}
        wanted = list(dict.fromkeys(new or known if ids is None else ids))
        unknown = [id_ for id_ in wanted if id_ not in known]
        if unknown:
            raise UnprocessableError(
                f"these values are not in conflict in {branch}: {first_of(unknown)}", code="no_conflict"
            )
        if new and new.keys() != set(wanted):
            raise UnprocessableError("`updates` must define each of `ids`, and nothing else", code="invalid_argument")
        edits = list(new.values()) if take is None else _taken(found.info, [known[id_] for id_ in wanted], take)
        return await self.enqueue_updates_with_reply(workspace, branch, edits, expect_at=found.info.sequence, **options)

    async def _find_branch(self, key: ChangeSetKey) -> FoundBranch:
        """Return the branch `key`. Raise `UnprocessableError` if there is no such change set, or it has no target."""
        with translate_missing_stream():
            found = await self._branches.find(key)
        if found is None:
            raise no_change_set(key)
        if found.info.target is None:
            raise not_a_branch(key)
        return found


def _taken(info: BranchInfo, conflicts: list[BranchConflict], take: str) -> list[Update]:
    """Return updates that give the values in conflict the definitions in the change set `take`, which must be the
    branch or its target."""
    if take not in (info.change_set, info.target):
        raise UnprocessableError(
            f"`take` must be {info.change_set} or {info.target}, not {take[:80]!r}", code="invalid_argument"
        )
    sides = [(one.id, one.ours if take == info.change_set else one.theirs) for one in conflicts]
    return [Remove(id_) if definition is None else definition for id_, definition in sides]


def _strategy(name: str) -> Strategy:
    try:
        return Strategy(name)
    except ValueError:
        choices = ", ".join(Strategy)
        raise UnprocessableError(f"strategy must be one of {choices}, not {name!r}", code="invalid_argument") from None

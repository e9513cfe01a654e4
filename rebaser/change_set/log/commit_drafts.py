"""Drafts commits that protect, close, delete or create a change set, or that pull changes from its target. Each of
these commits decides at most one request. This module also compares requests with the state before a commit is drafted.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rebaser.change_set.known_functions import missing_functions
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.log.tombstones import store_emptied, store_restored
from rebaser_client.blobs import BlobStore
from rebaser_client.cooperative import cooperate, run_in_steps
from rebaser_client.jetstream import Message
from rebaser_core import thresholds
from rebaser_core.branches.branch import Branch
from rebaser_core.branches.merge import Merged
from rebaser_core.commit import BranchStatus, CarriedOutcome, Commit, Kind, Strategy
from rebaser_core.decisions.decide import DecidedBatch, defined_after
from rebaser_core.decisions.deletion import remembered_outcomes
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.decisions.replay import Replayed, Theirs
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Update

_REBASE = Kind.REBASE  # a lookup of an enum member takes 0.1 µs in Python 3.11


def of_small_batch(commits: CommitLog, decided: DecidedBatch, stored_ms: int) -> Commit:
    """Return what `of_large_batch` returns, without letting other tasks run. The delta should have few edits."""
    owes = commits.state.owes or commits.state.wakes(decided.delta) or bool(decided.recompute)
    return of_batch(commits, decided, stored_ms, owes=owes, before=commits.before_now(decided.delta))


async def of_large_batch(commits: CommitLog, decided: DecidedBatch, stored_ms: int) -> Commit:
    """Return the commit for a batch that neither creates nor marks the change set. The caller must hold the append
    lock. `stored_ms` has the same meaning as in `CommitLog.draft`."""
    owes = commits.state.owes or await wakes(commits.state, decided.delta) or bool(decided.recompute)
    return of_batch(commits, decided, stored_ms, owes=owes, before=await commits.before(decided.delta))


def of_batch(
    commits: CommitLog, decided: DecidedBatch, stored_ms: int, *, owes: bool, before: tuple[Update, ...] | None
) -> Commit:
    """Return the commit for a batch that neither creates nor marks the change set. The caller must hold the append
    lock.

    `stored_ms` has the same meaning as in `CommitLog.draft`. `owes` tells whether a dependent values update is due
    after the commit. `before` are the definitions that the commit replaces.
    """
    state, replayed = commits.state, decided.replayed
    covers = state.covers if owes else None
    debt = state.debt + len(decided.delta) + len(decided.recompute) if owes else 0
    authors = decided.authors if commits.history else ()
    plain = decided.reverts is None and decided.source is None and replayed is None and not decided.settled
    if plain and decided.delta and state.branch is None and not state.protected:
        # Nearly all batches. `draft` returns the same, but takes four times as long.
        id_, at_ms, owner, forget_before_ms = commits.stamp(stored_ms)
        return Commit(
            id_,
            state.last,
            _REBASE,
            at_ms,
            owner,
            decided.applied,
            covers,
            decided.decisions,
            decided.delta,
            decided.delta_blob,
            state.checkpoint,
            None,
            forget_before_ms,
            decided.recompute,
            debt,
            0,
            missing_functions(state),
            before,
            None,
            authors,
        )
    return commits.draft(
        _REBASE if replayed is None else Kind.REPLAY,
        stored_ms=stored_ms,
        applied=decided.applied,
        requests=decided.decisions,
        delta=decided.delta,
        delta_blob=decided.delta_blob,
        covers=covers,
        recompute=decided.recompute,
        debt=debt,
        before=before,
        authors=authors,
        reverts=decided.reverts,
        source=decided.source,
        settled=decided.settled,
        **({} if replayed is None else of_replay(replayed)),
    )


async def of_lifecycle(blobs: BlobStore, commits: CommitLog, message: Message, decided: DecidedBatch) -> Commit:
    """Return the commit for a request that creates or marks the change set. The caller must hold the append lock."""
    if decided.fork is not None:
        return created(commits, message, decided)
    return await marked(blobs, commits, message, decided)


async def marked(blobs: BlobStore, commits: CommitLog, message: Message, decided: DecidedBatch) -> Commit:
    """Return the commit that protects, closes or deletes the change set, or that undoes one of these actions."""
    state = commits.state
    named: dict[str, Any] = {}
    if decided.marking is not None and decided.marking.deletes:
        state, named = await store_emptied(blobs, state)
    elif decided.restored is not None:
        state, named = await store_restored(blobs, decided.restored, state)
    return commits.draft(
        Kind.MARK,
        stored_ms=message.timestamp_ns // 1_000_000,
        state=state,
        applied=decided.applied,
        requests=decided.decisions,
        debt=state.debt,
        authors=decided.authors,
        marking=decided.marking,
        **named,
    )


def created(commits: CommitLog, message: Message, decided: DecidedBatch) -> Commit:
    """Return the commit that creates the change set."""
    state, fork = commits.state, decided.fork
    assert fork is not None  # noqa: S101 - the caller has checked it
    commit = commits.draft(
        Kind.CREATE,
        stored_ms=message.timestamp_ns // 1_000_000,
        applied=decided.applied,
        requests=decided.decisions,
        covers=fork.covers,
        checkpoint=fork.checkpoint,
        authors=decided.authors,
        origin=fork.origin,
        status=None if fork.branch.status is BranchStatus.OPEN else fork.branch.status,
        unknown=fork.unknown,
        branch=fork.branch,
        blobs=fork.blobs,
    )
    outcomes = remembered_outcomes(state, commit.forget_before_ms)
    return replace(commit, carried=tuple([CarriedOutcome(one.decision, one.commit, one.at_ms) for one in outcomes]))


async def compared(state: ChangeSetState, branch: Branch, theirs: Theirs, strategy: Strategy) -> Replayed:
    """Return the changes that `branch` takes over from `theirs`, the changes of its target. The caller must hold the
    append lock."""
    replayed = Replayed(branch, theirs, strategy)
    await run_in_steps(replayed.compare(state.cells.edit_of, thresholds.now.overlay_merge_step))
    return replayed


async def merged(state: ChangeSetState, request: QueuedRequest) -> QueuedRequest:
    """Return the request with the result of merging its patch into `state`. The caller must hold the append lock."""
    result, step = Merged(), thresholds.now.overlay_merge_step
    for start in range(0, len(request.patch), step):
        await cooperate()
        result.add(state.cells.edit_of, request.patch[start : start + step])
    return replace(request, merged=result)


async def with_moved(state: ChangeSetState, request: QueuedRequest) -> QueuedRequest:
    """Return `request` with `moved` set: the ids of its values that were defined after the position `expect_at`. The
    caller must hold the append lock."""
    ids, step, moved = request.touched, thresholds.now.fold_step, set[str]()
    for start in range(0, len(ids), step):
        await cooperate()
        moved |= defined_after(state, ids[start : start + step], request.expect_at or 0)
    return replace(request, moved=frozenset(moved))


async def pulled(commits: CommitLog, replayed: Replayed) -> Commit:
    """Return the commit that pulls the changes of the target into a branch. The caller must hold the append lock."""
    state, delta = commits.state, tuple(replayed.delta)
    owes = state.owes or await wakes(state, delta)
    return commits.draft(
        Kind.REPLAY,
        delta=delta,
        covers=state.covers if owes else None,
        debt=state.debt + len(delta) if owes else 0,
        before=await commits.before(delta),
        source=replayed.source,
        **of_replay(replayed),
    )


async def wakes(state: ChangeSetState, delta: Sequence[Update]) -> bool:
    """Return whether applying `delta` makes a dependent values update due. The caller must hold the append lock."""
    step = thresholds.now.fold_step
    if len(delta) <= step:
        return state.wakes(delta)
    for start in range(0, len(delta), step):
        await cooperate()
        if state.wakes(delta[start : start + step]):
            return True
    return False


def of_replay(replayed: Replayed) -> dict[str, Any]:
    """Return the fields that only a `replay` commit has."""
    return {"replay": replayed.content(), "status": replayed.status, "branch": replayed.summary()}

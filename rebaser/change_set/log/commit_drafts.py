"""Drafts the commits that decide an action alone: those that mark or create a change set, or replay a target."""

from typing import Any

from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.log.tombstones import store_emptied, store_restored
from rebaser_client.blobs import BlobStore
from rebaser_client.jetstream import Message
from rebaser_core.commit import BranchStatus, CarriedOutcome, Commit, Kind
from rebaser_core.decisions.decide import DecidedBatch
from rebaser_core.decisions.replay import Replayed


async def marked(blobs: BlobStore, commits: CommitLog, message: Message, decided: DecidedBatch) -> Commit:
    """Return the commit that protects, closes or deletes the change set, or ends any of these."""
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
    outcomes = [*state.outcomes.values(), *state.redriven.values()]
    return commits.draft(
        Kind.CREATE,
        stored_ms=message.timestamp_ns // 1_000_000,
        applied=decided.applied,
        requests=decided.decisions,
        covers=fork.covers,
        checkpoint=fork.checkpoint,
        authors=decided.authors,
        origin=fork.origin,
        status=None if fork.branch.status is BranchStatus.OPEN else fork.branch.status,
        carried=tuple([CarriedOutcome(one.decision, one.commit, one.at_ms) for one in outcomes]),
        unknown=fork.unknown,
        branch=fork.branch,
        blobs=fork.blobs,
    )


def of_replay(replayed: Replayed) -> dict[str, Any]:
    """Return the fields that only a `replay` commit has."""
    return {"replay": replayed.content(), "status": replayed.status, "branch": replayed.summary()}

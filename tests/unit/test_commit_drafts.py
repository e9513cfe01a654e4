"""Commits that replace the state of a change set: what they keep of the state before, and the blobs that they name."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser.change_set.log.commit_drafts import created, marked, of_batch
from rebaser_core.blobs.address import address_of
from rebaser_core.branches.branch import Create, Fork
from rebaser_core.checkpoint.chain import Chain
from rebaser_core.commit import (
    Applied,
    BlobRef,
    BranchStatus,
    BranchSummary,
    CheckpointRef,
    Commit,
    Decision,
    Kind,
    Marking,
    Origin,
    Outcome,
)
from rebaser_core.decisions.decide import DecidedBatch, decide
from rebaser_core.decisions.queued_request import QueuedRequest, Restored
from rebaser_core.ids import RequestId
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Set
from tests.support.kept_log import WINDOW, kept_blobs, log_of, read_checkpoint

pytestmark = pytest.mark.anyio

STORED = 10_000_000  # Unix ms; the clock of this server is far behind that
RESULT = BlobRef(address_of(b"conflicts"), 9)
MESSAGE = cast("Any", SimpleNamespace(timestamp_ns=STORED * 1_000_000))
APPLIED = Applied("s", 3)


def used() -> ChangeSetState:
    """Return a change set with values, with a value that has to be computed, and with outcomes of every kind."""
    state = ChangeSetState()
    requests = (
        Decision(1, RequestId("applied"), Outcome.SUCCESS, 2),
        Decision(2, RequestId("redriven"), Outcome.SUCCESS, redrive=1),
        Decision(3, RequestId("conflicts"), Outcome.CONFLICTS, result=RESULT),
    )
    delta = (Set("a", 1), Derive("d", "sum", {"of": "a"}))
    about: dict[str, Any] = {"requests": requests, "delta": delta, "before": ()}
    state.fold(1, Commit("c", 0, Kind.REBASE, STORED, "o", APPLIED, 0, **about))
    return state


def deleted(state: ChangeSetState) -> ChangeSetState:
    mark = Marking(status=BranchStatus.DELETED)
    state.fold(state.last + 1, Commit("c", state.last, Kind.MARK, STORED, "o", APPLIED, None, marking=mark))
    return state


def decided(state: ChangeSetState, **fields: Any) -> DecidedBatch:
    found = decide(state, APPLIED, [QueuedRequest(4, RequestId("now"), **fields)])
    assert found.decisions[0].outcome is Outcome.SUCCESS
    return found


def remembered(state: ChangeSetState) -> dict[RequestId, tuple[Decision, int]]:
    both = [*state.outcomes.unpacked(), *state.redriven.unpacked()]
    return {one.decision.request_id: (one.decision, one.commit) for one in both}


def check_times(commit: Commit) -> None:
    assert (commit.at_ms, commit.forget_before_ms) == (STORED, STORED - WINDOW)


async def test_what_is_deleted_is_stored_without_values_and_with_all_outcomes() -> None:
    state, blobs = used(), kept_blobs()
    commit = await marked(
        blobs, log_of(state, kept_blobs()), MESSAGE, decided(state, action=Marking(status=BranchStatus.DELETED))
    )
    check_times(commit)
    assert commit.checkpoint is not None
    loaded = read_checkpoint(
        {address: blobs.kept[address] for address in commit.blobs if address != RESULT.address},
        commit.checkpoint.address,
    )
    assert (len(loaded.cells), loaded.owes, commit.debt) == (0, False, 0)
    assert remembered(loaded) == remembered(state)
    assert RESULT.address in commit.blobs, "a repeated answer needs it"


async def test_what_is_brought_back_has_its_values_and_the_outcomes_since() -> None:
    state, blobs = deleted(used()), kept_blobs()
    later = (Decision(4, RequestId("later"), Outcome.ERROR, code="deleted"),)
    state.fold(3, Commit("c", 2, Kind.REBASE, STORED, "o", Applied("s", 4), None, requests=later))
    asked = {"action": Marking(status=BranchStatus.OPEN), "restored": Restored(used(), Chain())}
    commit = await marked(blobs, log_of(state, kept_blobs()), MESSAGE, decided(state, **asked))
    check_times(commit)
    assert commit.checkpoint is not None
    loaded = read_checkpoint(
        {address: blobs.kept[address] for address in commit.blobs if address != RESULT.address},
        commit.checkpoint.address,
    )
    assert (set(loaded.cells), loaded.status) == ({"a", "d"}, BranchStatus.OPEN)
    assert (loaded.owes, commit.debt, commit.covers) == (True, used().debt, used().covers)
    assert remembered(loaded) == remembered(state)
    assert RESULT.address in commit.blobs, "a repeated answer needs it"


async def test_a_change_set_is_created_as_its_parent_says_with_all_outcomes_under_its_name() -> None:
    state, parent = deleted(used()), used()
    fork = Fork(
        BranchSummary("main", 1, BranchStatus.CLOSED, 0, 0, "main", 1, follows=True),
        Origin("main", 1, "main", 1, follows=True),
        CheckpointRef(address_of(b"checkpoint"), 1, 10),
        covers=1,
        unknown=("f",),
        blobs=(address_of(b"checkpoint"),),
    )
    found = decided(state, action=Create("main"), fork=fork, author="ann", message="why")
    commit = created(log_of(state, kept_blobs()), MESSAGE, found)
    check_times(commit)
    for field in {one.name for one in dataclasses.fields(Fork)} & {one.name for one in dataclasses.fields(Commit)}:
        assert getattr(commit, field) == getattr(fork, field), field
    assert (commit.status, commit.requests, commit.authors) == (BranchStatus.CLOSED, found.decisions, found.authors)
    assert (commit.previous, commit.applied, found.authors[0].author) == (state.last, Applied("s", 4), "ann")
    parent.fold(3, commit)
    assert remembered(parent) == remembered(state) | {RequestId("now"): (found.decisions[0], 3)}


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("owes", [True, False])
@pytest.mark.parametrize("protected", [True, False])
async def test_the_commit_of_a_usual_batch_is_the_one_that_draft_returns(
    history: bool, owes: bool, protected: bool
) -> None:
    state = used()
    state.checkpoint, state.protected = CheckpointRef(address_of(b"x"), 1, 9), protected  # `draft` alone knows these
    commits = log_of(state, kept_blobs())
    commits.history = history
    requests = [QueuedRequest(4, RequestId("now"), (Set("a", 2),), digest=b"12345678", author="me", message="why")]
    found = decide(used(), APPLIED, requests)
    authors = found.authors if history else ()
    before = (Set("a", 1),) if history else None
    debt = state.debt + 1 if owes else 0
    covers = state.covers if owes else None
    commit = of_batch(commits, found, STORED, owes=owes, before=before)
    drafted = commits.draft(
        Kind.REBASE,
        stored_ms=STORED,
        applied=found.applied,
        requests=found.decisions,
        delta=found.delta,
        covers=covers,
        debt=debt,
        before=before,
        authors=authors,
    )
    for field in dataclasses.fields(Commit):
        assert getattr(commit, field.name) == getattr(drafted, field.name), field.name
    assert authors or not history
    assert commit.protected is protected
    check_times(commit)


def test_the_time_to_forget_moves_once_a_second() -> None:
    log = log_of(ChangeSetState(), kept_blobs())
    times = {log.stamp(STORED + at)[3] for at in range(0, 2500, 100)}
    assert times == {STORED - WINDOW, STORED - WINDOW + 1000, STORED - WINDOW + 2000}

"""Reads the whole log of a change set, and checks the guarantees about every request in it."""

from collections.abc import Sequence
from itertools import pairwise

import anyio

from rebaser_client import Commit, RebaserClient
from rebaser_core.commit import Kind
from rebaser_core.messages import EnqueueUpdatesResponse, Success


async def commits_of(client: RebaserClient, workspace: str, change_set: str) -> list[Commit]:
    """Return all commits up to the last commit at the time of the call."""
    last = (await client.state(workspace, change_set)).last
    found: list[Commit] = []
    with anyio.fail_after(120):
        async for commit in client.watch(workspace, change_set, after=0):
            found.append(commit)
            if commit.sequence >= last:
                break
    return found


def check_history(commits: Sequence[Commit], request_ids: Sequence[str] | None = None) -> None:
    """Check that each request is decided once and in the order of the stream, that no commit is missing, and that
    `applied` and `covers` never decrease.

    If `request_ids` are given, the log must have exactly these requests, in this order.
    """
    assert commits[0].previous == 0, "the log does not have exactly the given requests"
    decisions = [decision for commit in commits for decision in commit.requests]
    sequences = [decision.sequence for decision in decisions]
    assert sequences == sorted(set(sequences)), "requests are decided out of order or twice"
    ids = [decision.request_id for decision in decisions]
    assert len(ids) == len(set(ids)), "a request was decided twice"
    if request_ids is not None:
        assert ids == list(request_ids)
    for before, after in pairwise(commits):
        assert after.previous == before.sequence, "a commit does not follow the one before it"
        if before.applied is not None and after.applied is not None:
            assert before.applied.sequence <= after.applied.sequence, "`applied` decreased"
        covered = [one.sequence if one.covers is None else one.covers for one in (before, after)]
        assert covered[0] <= covered[1], "`covers` decreased"


def commit_of(reply: EnqueueUpdatesResponse) -> int:
    """Return the log sequence of the commit that applied a request."""
    assert isinstance(reply.status, Success)
    assert reply.status.commit is not None
    return reply.status.commit


def check_replies(commits: Sequence[Commit], replies: Sequence[EnqueueUpdatesResponse]) -> None:
    """Check that the log has exactly the requests that were answered, and that each answer names the commit of its
    request."""
    decided = {decision.request_id: commit.sequence for commit in commits for decision in commit.requests}
    answered = {reply.id: commit_of(reply) for reply in replies}
    assert answered == decided
    assert len(answered) == len(replies)


async def replayed(client: RebaserClient, workspace: str, branch: str, commit: int) -> None:
    """Return when the branch has replayed `commit` of its target."""
    with anyio.fail_after(120):
        async for one in client.watch(workspace, branch, after=0):
            if one.kind is Kind.REPLAY and one.source is not None and one.source.sequence >= commit:
                break

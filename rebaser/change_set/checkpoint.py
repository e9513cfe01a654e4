"""Writes checkpoints, so that loading a change set stays as cheap as its state is large, however long its log.

Invariant: a checkpoint is stored and verified before a commit names it, and the log is purged only below the
checkpoint before the current one, so that a reader who is at work finds its tail.
"""

import structlog

from rebaser.change_set.commit_log import CommitLog
from rebaser.context import Context
from rebaser_client.rounds import turn
from rebaser_core.checkpoint import write_checkpoint
from rebaser_core.commit import CheckpointRef, Kind

log = structlog.get_logger(__name__)


def due(commits: CommitLog, smallest: int) -> bool:
    """Whether the tail has outgrown the checkpoint it rests on, so that writing another is paid for by then."""
    checkpoint = commits.state.checkpoint
    return commits.weight > max(smallest, checkpoint.size if checkpoint else 0)


async def write(context: Context, commits: CommitLog) -> None:
    """Store the state as it is now, name it in a commit, purge what no reader needs any more."""
    weight, before = commits.weight, commits.state.checkpoint
    chunks: list[bytes] = []
    async with commits.view() as view:
        for chunk in write_checkpoint(commits.state, view):
            chunks.append(chunk)
            await turn()
    data = b"".join(chunks)
    reference = CheckpointRef(await context.blobs.put(data), view.sequence, len(data))
    async with commits.turn():
        debt = commits.state.debt
        await commits.append(commits.draft(Kind.CHECKPOINT, checkpoint=reference, debt=debt))
        commits.weight -= weight
    if before is not None:
        subjects = context.subjects
        await context.js.purge(subjects.commits_stream, subjects.commits(commits.key), sequence=before.sequence + 1)
    log.info(
        "checkpoint_written",
        workspace=commits.key.workspace,
        change_set=commits.key.change_set,
        seq=view.sequence,
        bytes=len(data),
    )

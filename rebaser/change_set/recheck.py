"""Checks for remaining work after an owner has released its task.

While the owner held the task, NATS refused every other task for this change set as a duplicate. A client whose task
was refused in that time depends on this recheck: without it, no server would process that client's request.
"""

from rebaser.change_set.branch_puller import BranchPuller
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.processor import Processor
from rebaser.runtime.context import Context


async def recheck(context: Context, commits: CommitLog, processor: Processor, puller: BranchPuller | None) -> bool:
    """Return whether another owner is needed: for queued requests, an update, dead letters or a pull.

    Raise `RebaserError` if NATS does not answer.
    """
    subjects, key = context.subjects, commits.key
    if commits.state.owes or commits.left_debt or processor.owes_dead_letters:
        return True
    request = await context.js.next(subjects.requests_stream, subjects.requests(key), processor.applied.sequence + 1)
    if request is not None:
        return True
    if commits.handed_over:
        return False
    if puller is not None and puller.owed:
        return True
    # An earlier owner that had lost the task may have appended a commit after this owner loaded the log. If this owner
    # has appended nothing since, it has not noticed that commit, and the commit may require more work.
    return await context.js.next(subjects.commits_stream, subjects.commits(key), commits.state.last + 1) is not None

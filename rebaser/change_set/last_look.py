"""The last look of an owner that has released its task: is there work for which nobody would be woken?

While the task was held, every other request for a task of this change set was refused as a duplicate. So whoever asked
in vain relies on this look, which comes after the release.
"""

from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.processor import Processor
from rebaser.change_set.puller import BranchPuller
from rebaser.runtime.context import Context


async def work_left(context: Context, commits: CommitLog, processor: Processor, puller: BranchPuller | None) -> bool:
    """Whether another owner is needed: for queued requests, an update, dead letters or a pull.

    Raises `RebaserError` if NATS does not answer.
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
    # An owner that had lost the task may have appended a commit after this one loaded the log. This owner was never
    # fenced if it appended nothing itself, and does not know what that commit left to do.
    return await context.js.next(subjects.commits_stream, subjects.commits(key), commits.state.last + 1) is not None

"""Recomputes values that failed because no server had their function, once a server has it.

A header of each commit names the functions that its writer lacked. If the server that runs the sweeper has one of these
functions, the sweeper wakes the change set. If the server of an owner has one, the owner requests a recompute of the
failed values. The commit with this request names only the functions that this server lacks, so the owner does not
repeat the request. Commits of older releases have no such header; their values are recomputed when an owner loads the
change set.
"""

from rebaser.change_set.known_functions import any_available
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.dvu.faults import UNKNOWN_FUNCTION
from rebaser.dvu.functions.registry import registry
from rebaser_core.commit import Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Recompute


async def heal(commits: CommitLog) -> None:
    """Append a commit that requests a recompute of the values that failed for lack of a function that is now available.

    Raises the errors of `CommitLog.append`.
    """
    state, known = commits.state, registry().functions
    missing = sorted(state.cells.functions_of_faults(UNKNOWN_FUNCTION))
    recompute = tuple([Recompute(name) for name in missing if name in known and not _owed(state, Recompute(name))])
    if not recompute and not any_available(state.unknown):
        return
    async with commits.append_lock():
        owes = state.owes or bool(recompute)
        commit = commits.draft(
            Kind.REBASE, recompute=recompute, covers=state.covers if owes else None, debt=state.debt + len(recompute)
        )
        await commits.append(commit)
    commits.logger.info("functions_found", functions=[recomputed.function for recomputed in recompute])


def _owed(state: ChangeSetState, recompute: Recompute) -> bool:
    return recompute in state.recompute or Recompute() in state.recompute

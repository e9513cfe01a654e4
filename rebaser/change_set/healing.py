"""Recomputes values that failed because a function was missing, once a server has that function.

A header of each commit lists the functions that were missing on the server that wrote the commit. If the server that
runs the sweeper has one of these functions, the sweeper wakes the change set. If an owner's server has one, the owner
appends a commit that requests a recompute of the failed values. That commit lists only the functions that are still
missing on the owner's server, so the owner does not repeat the request. Commits from older releases have no such
header; their values are recomputed when an owner loads the change set.
"""

from rebaser.change_set.known_functions import any_available
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.dvu.faults import UNKNOWN_FUNCTION
from rebaser.dvu.functions.registry import registry
from rebaser_core.commit import Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Recompute


async def heal(commits: CommitLog) -> None:
    """Append a commit that requests a recompute of the values that failed because a function was missing, for each such
    function that this server has. Append nothing if this server has none of the missing functions.

    Raise the errors of `CommitLog.append`.
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

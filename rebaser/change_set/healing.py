"""Recomputes values that failed because no server had their function, once a server has it.

A header of each commit names the functions that its writer lacked. If a sweeper has one of these functions, it wakes
the change set; if an owner has one, it asks for the failed values to be recomputed. The owner asks only once, because
the header of the commit that asks names only the functions that this owner lacks. Commits of older releases have no
such header; their values heal when an owner loads the change set.
"""

from rebaser.change_set.known_functions import any_available
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.dvu.faults import UNKNOWN_FUNCTION
from rebaser.dvu.functions.registry import registry
from rebaser_core.commit import Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Recompute


async def heal(commits: CommitLog) -> None:
    """Append a request to recompute the values whose function was unknown and is known now.

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

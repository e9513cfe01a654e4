"""Values that failed because nobody had their function, once somebody has it.

A commit tells in a header which functions its writer had not got. A sweeper that has one of them wakes the change set,
and an owner that does asks for what failed to be computed anew. That is done once: the commit that asks names only what
its writer lacks. What an older release wrote has no such header, and heals when somebody loads it.
"""

import structlog

from rebaser.change_set.commit_log import CommitLog
from rebaser.change_set.known_functions import any_available
from rebaser.dvu.faults import UNKNOWN_FUNCTION
from rebaser.dvu.functions.registry import registry
from rebaser_core.commit import Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Recompute

log = structlog.get_logger(__name__)


async def heal(commits: CommitLog) -> None:
    """Ask for the values to be computed anew whose function was unknown and is not any more.

    Raises what appending a commit raises.
    """
    state, known = commits.state, registry().functions
    missed = state.cells.functions_of_faults(UNKNOWN_FUNCTION)
    asked = tuple([one for one in map(Recompute, sorted(missed)) if one.function in known and not _owed(state, one)])
    if not asked and not any_available(state.unknown):
        return
    async with commits.append_lock():
        owes = state.owes or bool(asked)
        commit = commits.draft(
            Kind.REBASE, recompute=asked, covers=state.covers if owes else None, debt=state.debt + len(asked)
        )
        await commits.append(commit)
    key = commits.key
    functions = [one.function for one in asked]
    log.info("functions_found", workspace=key.workspace, change_set=key.change_set, functions=functions)


def _owed(state: ChangeSetState, asked: Recompute) -> bool:
    return asked in state.recompute or Recompute() in state.recompute

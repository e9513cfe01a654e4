"""One dependent values update of one change set: plan at a commit, compute on Spark, append one commit.

Invariant: the commit's `covers` is the log sequence the update was planned at, and it holds no result for a value whose
definition changed since.
"""

import anyio
import structlog

from rebaser.change_set.commit_log import CommitLog
from rebaser.context import Context
from rebaser.dvu.run import still_valid, update
from rebaser_core.commit import Kind
from rebaser_core.errors import DvuError

log = structlog.get_logger(__name__)


async def run_dvu(context: Context, commits: CommitLog) -> None:
    """Bring the derived values up to date as of the commit where this starts.

    Raises `DvuError` if they could not be computed in time, `TransientError` if the commit could not be written and
    `FencedError` if another owner wrote first. Nothing has changed then.
    """
    key = commits.key
    started = context.now()
    seconds = context.settings.dvu_timeout
    with commits.state.view() as view:
        try:
            with anyio.fail_after(seconds):
                computed = await update(view, context.engine, label=str(key))
        except TimeoutError:
            raise DvuError(f"the update of {key} took longer than {seconds:g} s", code="late") from None
    async with commits.turn():
        state = commits.state
        valid = still_valid(state, computed, view.sequence)
        owed = sum(1 for at in state.roots.values() if at > view.sequence)
        commit = commits.draft(Kind.DVU, covers=view.sequence, delta=valid, debt=owed)
        await commits.append(commit)
    log.info(
        "dvu_done",
        workspace=key.workspace,
        change_set=key.change_set,
        commit=commit.id,
        covers=view.sequence,
        roots=len(view.roots),
        changed=len(valid),
        ms=round((context.now() - started) * 1000, 1),
    )

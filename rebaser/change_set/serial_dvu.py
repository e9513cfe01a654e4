"""Runs the dependent values updates (DVUs) of one owner: plans each update, computes it on Spark, and commits it.

Invariant: an update appends one commit. `covers` of that commit is the log sequence at which the update was planned, or
the sequence of the commit itself if no commit in between makes another update due. The commit has no result for a value
whose definition changed after planning.

An update may kill or hang its owner, for instance because it needs more memory than there is. Attempts are counted as
for requests (see `poison`). An owner whose task was redelivered records each update in the log as an attempt, until one
update is committed. An attempt counts as the death of a server until the log records that the attempt ended. Unlike a
request, an update cannot be rejected. An update that killed or hung `max_deaths` servers is deferred instead, for a
longer time after each attempt, while requests are applied as usual.
"""

from collections.abc import Callable, MutableMapping
from contextlib import AsyncExitStack

import anyio
from structlog.contextvars import bind_contextvars

from rebaser.change_set.attempts.counted_attempts import CountedAttempts
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.dvu.faults import CRASHED
from rebaser.dvu.update import still_valid, update
from rebaser.runtime.context import Context
from rebaser.runtime.progress import Progress
from rebaser.telemetry.feeds import update_runs
from rebaser_core.commit import DVU_ATTEMPT, Kind
from rebaser_core.errors import DvuError, RebaserError
from rebaser_core.state.change_set import View
from rebaser_core.state.computed_table import ComputedTable

CRASHED_NAMED = 10  # an update logs at most this many of the values whose function killed a process


class SerialDvu:
    """Runs the updates of the change set whose log is `commits`, one at a time.

    `redelivered` tells whether the task had an earlier owner, which may have died. `hung` returns whether this owner
    stalled and lost its lease.
    """

    def __init__(self, context: Context, commits: CommitLog, *, redelivered: bool, hung: Callable[[], bool]) -> None:
        self._context = context
        self._commits = commits
        self._log = commits.logger
        self._attempts = CountedAttempts(context, commits, DVU_ATTEMPT, "dvu", redelivered=redelivered, hung=hung)

    def deferral(self) -> float:
        """Return the seconds until the first update may start. Log a deferral, and show it in the status."""
        return self._attempts.deferral() if self._commits.state.owes else 0.0

    async def run(self) -> None:
        """Bring the derived values up to date as of the newest commit.

        Raise `DvuError` if the values could not be computed in time, `TransientError` if a commit could not be
        written, and `FencedError` if another owner appended first. After each of these errors, nothing has changed.
        """
        async with AsyncExitStack() as stack:
            if self._attempts.recording:
                await self._await_spark()  # an outage of Spark does not count as an attempt
                await stack.enter_async_context(self._attempts.recorded())
            try:
                with update_runs(self._commits) as fields:
                    await self._run(fields)
            except RebaserError:
                raise
            except Exception as error:
                self._log.exception("dvu_broken")
                raise DvuError(
                    f"the update failed unexpectedly: {type(error).__name__}; see the log event dvu_broken",
                    code="internal",
                ) from error
            finally:
                self._context.running_updates.pop(self._commits.key, None)
            self._attempts.recording = False

    async def _await_spark(self) -> None:
        seconds = self._context.settings.dvu_timeout
        try:
            with anyio.fail_after(seconds):
                await self._context.engine.available()
        except TimeoutError:
            raise DvuError(
                f"Spark was not available within {seconds:g} s; the update will be retried", code="late"
            ) from None

    async def _run(self, fields: MutableMapping[str, object]) -> None:
        """Run an update. Add to `fields` the results that the log event about the update reports."""
        commits = self._commits
        async with AsyncExitStack() as lock:
            async with commits.view() as view:
                commits.debt.update_began()
                if commits.spans is not None:
                    bind_contextvars(**commits.spans.update_planned(view.sequence))  # for all events of this task
                progress = Progress(view.sequence, self._context.now())
                self._context.running_updates[commits.key] = progress
                computed = await self._compute(view, progress)
                progress.enter(self._context.now(), "commit", progress.plan, progress.wave)
                await lock.enter_async_context(commits.append_lock())
                # Results refer to rows by number. Once the view is closed, a row may be freed and given to another id.
                valid = still_valid(commits.state, computed, view.sequence)
                debt = commits.state.debt_after(view.sequence)
                # If no commit after `view` makes an update due, this update also covers those commits.
                covers = view.sequence if debt else None
                encoded = await commits.encode(commits.draft(Kind.DVU, covers=covers, delta=valid, debt=debt))
                self._log_crashed(valid)
            sequence = await commits.publish(encoded)
        progress.end_stage(self._context.now())
        self._context.recent_updates.add(commits.key, sequence, progress.stages)
        fields.update(
            commit=encoded.commit.id,
            covers=sequence if covers is None else covers,
            roots=len(view.roots),
            reached=progress.total or 0,
            changed=len(valid),
            errors=len(valid.faults),
            plan=progress.plan,
            waves=progress.wave,
        )

    def _log_crashed(self, computed: ComputedTable) -> None:
        faults = [(computed.ids[row], fault) for row, fault in computed.faults.items()]
        crashed = [(id_, fault.message) for id_, fault in faults if fault.code == CRASHED]
        for id_, reason in crashed[:CRASHED_NAMED]:
            self._log.warning("value_crashed", id=id_, reason=reason, total=len(crashed))

    async def _compute(self, view: View, progress: Progress) -> ComputedTable:
        context, seconds = self._context, self._context.settings.dvu_timeout
        label = str(self._commits.key)

        def recorded(done: int, total: int) -> None:
            progress.record(context.now(), done, total)

        def entered(stage: str, plan: str, wave: int) -> None:
            progress.enter(context.now(), stage, plan, wave)

        try:
            with anyio.fail_after(seconds):
                return await update(view, context.engine, label=label, progress=recorded, entered=entered)
        except TimeoutError:
            raise DvuError(
                f"the update of {label} took longer than {seconds:g} s (REBASER_DVU_TIMEOUT) and will be retried",
                code="late",
            ) from None

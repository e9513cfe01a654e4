"""The dependent values updates of one owner: plan at a commit, compute on Spark, append one commit.

Invariant: the commit's `covers` is the log sequence the update was planned at, or its own where nothing that came
meanwhile is owed; and it holds no result for a value whose definition changed since.

An update may kill or hang its owner: it may need more memory than there is. What is counted is as for requests (see
`poison`): an owner whose task was redelivered records its updates as attempts until one lands, and the log keeps how
many attempts never ended. An update cannot be given up, so one that ended `max_deaths` servers is deferred, longer each
time, while requests are applied as ever.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import anyio
import structlog

from rebaser.change_set.commit_log import CommitLog
from rebaser.change_set.poison import recorded_attempt
from rebaser.dvu.faults import CRASHED
from rebaser.dvu.update import still_valid, update
from rebaser.runtime.context import Context
from rebaser.runtime.progress import Progress
from rebaser_core.commit import DVU_ATTEMPT, Attempt, Kind
from rebaser_core.errors import DvuError, RebaserError
from rebaser_core.state.change_set import View
from rebaser_core.state.computed_table import ComputedTable

log = structlog.get_logger(__name__)

DEFERRAL = 10.0  # seconds until an update that ended `max_deaths` servers is tried again; doubled for each one more
DEFERRAL_MAX = 600.0  # seconds
CRASHED_NAMED = 10  # values of one update whose function ended a process, in the server's log


class SerialDvu:
    """For the owner of the change set whose log is `commits`, which runs one at a time.

    `redelivered`: its task had an owner before, who may have died; `hung`: this one stood still and lost its lease.
    `progress` is that of the update at work, or None.
    """

    def __init__(self, context: Context, commits: CommitLog, *, redelivered: bool, hung: Callable[[], bool]) -> None:
        self._context = context
        self._hung = hung
        self._commits = commits
        self._names = {"workspace": commits.key.workspace, "change_set": commits.key.change_set}
        self.progress: Progress | None = None
        self._announces = redelivered or DVU_ATTEMPT in commits.state.attempts

    def deferral(self) -> float:
        """Seconds until the first one may start; tells the operator if that is not now."""
        context, tried = self._context, self._tried()
        more = tried.deaths - context.settings.max_deaths
        if more < 0 or not self._commits.state.owes:
            return 0.0
        delay = min(DEFERRAL * 2.0 ** min(more, 10), DEFERRAL_MAX)
        # From when it was tried last, whoever owned it since; no clock makes it longer.
        delay = min(max(delay - (context.now_ms() - tried.first_ms) / 1000, 0.0), delay)
        text = f"{tried.deaths} of the servers that tried the update of {self._commits.key} died or hung: it is put off"
        context.health.record(context.now(), DvuError(text), delay)
        log.error("dvu_put_off", **self._names, deaths=tried.deaths, seconds=round(delay, 1))
        return delay

    async def run(self) -> None:
        """Bring the derived values up to date as of the commit where this starts.

        Raises `DvuError` if they could not be computed in time, `TransientError` if a commit could not be written and
        `FencedError` if another owner wrote first. Nothing has changed then.
        """
        async with AsyncExitStack() as stack:
            if self._announces:
                await self._await_spark()  # an outage is no try, and the log need not know of it
                await self._announce(stack)
            try:
                await self._run()
            except RebaserError:
                raise
            except Exception as error:
                log.exception("dvu_broken", **self._names)
                raise DvuError(f"the update broke: {type(error).__name__}", code="internal") from error
            finally:
                self.progress = None
            self._announces = False

    async def _await_spark(self) -> None:
        seconds = self._context.settings.dvu_timeout
        try:
            with anyio.fail_after(seconds):
                await self._context.engine.available()
        except TimeoutError:
            raise DvuError(f"Spark has been starting for {seconds:g} s", code="late") from None

    async def _announce(self, stack: AsyncExitStack) -> None:
        before = replace(self._tried(), first_ms=self._context.now_ms())
        if before.deaths:
            try:  # a process tries one such update at a time, so that its death accuses no other
                self._context.suspect_dvus.acquire_nowait()
            except anyio.WouldBlock:
                raise DvuError("another update that servers may have died of is being tried", code="suspect") from None
            stack.callback(self._context.suspect_dvus.release)
            log.warning("dvu_suspected", **self._names, deaths=before.deaths)
        await stack.enter_async_context(recorded_attempt(self._commits, before, self._hung))

    def _tried(self) -> Attempt:
        return self._commits.state.attempts.get(DVU_ATTEMPT) or Attempt(DVU_ATTEMPT, 0, 0)

    async def _run(self) -> None:
        context, commits = self._context, self._commits
        started = context.now()
        async with AsyncExitStack() as lock:
            async with commits.view() as view:
                computed = await self._compute(view)
                await lock.enter_async_context(commits.append_lock())
                # Results name rows, and which id a row is may change as soon as the view is closed.
                valid = still_valid(commits.state, computed, view.sequence)
                debt = commits.state.debt_after(view.sequence)
                # What came meanwhile and touched nothing is covered with the rest: no other update will.
                covers = view.sequence if debt else None
                encoded = await commits.encode(commits.draft(Kind.DVU, covers=covers, delta=valid, debt=debt))
                self._tell_crashed(valid)
            sequence = await commits.publish(encoded)
        log.debug(
            "dvu_done",
            **self._names,
            commit=encoded.commit.id,
            covers=sequence if covers is None else covers,
            roots=len(view.roots),
            changed=len(valid),
            ms=round((context.now() - started) * 1000, 1),
        )

    def _tell_crashed(self, computed: ComputedTable) -> None:
        faults = [(computed.ids[at], fault) for at, fault in computed.faults.items()]
        crashed = [(id_, fault.message) for id_, fault in faults if fault.code == CRASHED]
        for id_, reason in crashed[:CRASHED_NAMED]:
            log.warning("value_crashed", **self._names, id=id_, reason=reason, crashed=len(crashed))

    async def _compute(self, view: View) -> ComputedTable:
        context, seconds = self._context, self._context.settings.dvu_timeout
        self.progress = Progress(view.sequence, context.now())
        label = str(self._commits.key)
        try:
            with anyio.fail_after(seconds):
                return await update(view, context.engine, label=label, progress=self.progress.record)
        except TimeoutError:
            raise DvuError(f"the update of {label} took longer than {seconds:g} s", code="late") from None

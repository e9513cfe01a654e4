"""Counts attempts at updates and pulls: work that may kill or hang its owner, but cannot be rejected.

An owner whose task was redelivered records its attempts until one of them succeeds (see `poison`). Work that killed or
hung `max_deaths` servers is deferred, for a longer time after each attempt, while requests are applied as usual.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import anyio

from rebaser.change_set.attempts.poison import recorded_attempt
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.runtime.context import Context
from rebaser_core.backoff import exponential_delay
from rebaser_core.commit import Attempt
from rebaser_core.errors import DvuError

DEFERRAL = 10.0  # seconds until work that killed or hung `max_deaths` servers is retried; doubled each time
DEFERRAL_MAX = 600.0  # maximum seconds for which such work is deferred


class CountedAttempts:
    """A counter of the attempts at one kind of work: `name` is "dvu" or "branch_pull".

    The log records these attempts under `sequence`, in place of the sequence of a request (see `Attempt`).

    `redelivered` tells whether the task had an earlier owner, which may have died. `hung` returns whether this owner
    stalled and lost its lease. `recording` tells whether the next attempt will be recorded.
    """

    def __init__(
        self,
        context: Context,
        commits: CommitLog,
        sequence: int,
        name: str,
        *,
        redelivered: bool,
        hung: Callable[[], bool],
    ) -> None:
        self._context = context
        self._commits = commits
        self._sequence = sequence
        self._what = {"dvu": "the update", "branch_pull": "the pull"}[name]
        self._deferred, self._suspected = f"{name}_deferred", f"{name}_suspected"  # log events
        self._hung = hung
        self.recording = redelivered or sequence in commits.state.attempts

    def deferral(self) -> float:
        """Return the seconds until the next attempt may start. Log a deferral, and show it in the status."""
        context, attempt = self._context, self._last()
        excess = attempt.deaths - context.settings.max_deaths
        if excess < 0:
            return 0.0
        delay = exponential_delay(excess, DEFERRAL, DEFERRAL_MAX)
        # The delay counts from the last attempt of any owner. If this server's clock is behind that owner's clock, the
        # delay does not get longer.
        delay = min(max(delay - (context.now_ms() - attempt.first_ms) / 1000, 0.0), delay)
        reason = f"{attempt.deaths} of the servers that ran it died or hung"
        error = DvuError(f"{self._what} of {self._commits.key} is deferred: {reason}")
        context.health.record(context.now(), error, delay, self._commits.key)
        self._commits.logger.error(self._deferred, deaths=attempt.deaths, seconds=round(delay, 1))
        return delay

    @asynccontextmanager
    async def recorded(self) -> AsyncIterator[None]:
        """Enter a context that records in the log when an attempt begins and when it ends.

        Raise `DvuError` if this server is already running another update or pull that may have killed servers. Raise
        the errors of `CommitLog.append`.
        """
        before = replace(self._last(), first_ms=self._context.now_ms())
        async with AsyncExitStack() as stack:
            if before.deaths:
                try:  # a process makes one suspected attempt at a time, so its death counts against no other attempt
                    self._context.suspect_dvu_lock.acquire_nowait()
                except anyio.WouldBlock:
                    raise DvuError(
                        "this server is already running another update or pull that may have killed servers; this one"
                        " will be retried",
                        code="suspect",
                    ) from None
                stack.callback(self._context.suspect_dvu_lock.release)
                self._commits.logger.warning(self._suspected, deaths=before.deaths)
            await stack.enter_async_context(recorded_attempt(self._context, self._commits, before, self._hung))
            yield

    def _last(self) -> Attempt:
        return self._commits.state.attempts.get(self._sequence) or Attempt(self._sequence, 0, 0)

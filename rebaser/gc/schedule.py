"""Starts runs of the garbage collection, on the server that is the sweeper.

Invariant: whether a run is due depends only on the log of the collection and the clock of NATS, not on which server is
the sweeper or how often servers are restarted.
"""

from collections.abc import Callable
from datetime import datetime

import anyio
import structlog

from rebaser.gc.collector import Collector
from rebaser.gc.installations import leave_note
from rebaser.gc.spark_tables import SparkTables
from rebaser.runtime.context import Context
from rebaser_client.blobs import open_collectable
from rebaser_core.blobs.garbage import GC_KEY
from rebaser_core.errors import FencedError, RebaserError

log = structlog.get_logger(__name__)

CHECKS = 100  # number of checks in the time between two runs
MAX_PAUSE = 600.0  # maximum seconds between two checks


class CollectionSchedule:
    """Starts a run of the garbage collection every `every` seconds; never if `every` is 0."""

    def __init__(self, context: Context, every: float) -> None:
        self._context = context
        self._every = every

    async def run(self, is_sweeper: Callable[[], bool]) -> None:
        """Carry out a run whenever one is due and this server is the sweeper, until cancelled."""
        # The note is needed even if this schedule never starts a run: it protects the blobs of this installation from
        # the garbage collection of another installation that uses the same store.
        await leave_note(self._context)
        while self._every:
            await anyio.sleep(min(self._every / CHECKS, MAX_PAUSE))
            if not is_sweeper():
                continue
            try:
                if await self.is_due():
                    await self._collect()
            except FencedError as error:
                log.info("gc_fenced", reason=error.message)
            except RebaserError as error:
                log.warning("gc_failed", code=error.code, reason=error.message)

    async def is_due(self) -> bool:
        """Return whether the last run was at least `every` seconds ago. If there was no run yet, count from the
        creation of the stream that holds the logs."""
        js, subjects = self._context.js, self._context.subjects
        info = await js.stream_info(subjects.commits_stream)
        last = await js.last(subjects.commits_stream, subjects.commits(GC_KEY))
        since, now = info.created if last is None else last.time, info.now
        if not since or not now:
            return False
        return (datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds() >= self._every

    async def _collect(self) -> None:
        context = self._context
        await context.engine.available()
        blobs = open_collectable(context.settings.blobs, context.js, context.subjects.blobs_bucket)
        # A run uses one Spark task at a time, so that the other slots remain for updates.
        tables = SparkTables(context.engine.url, context.js, context.subjects, context.settings, tasks=1)
        try:
            owner, new_id = context.settings.server_id, context.new_id
            await Collector(context.js, context.subjects, blobs, tables, owner=owner, new_id=new_id).run()
        finally:
            await tables.close()

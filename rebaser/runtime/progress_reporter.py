"""Reports the progress of slow updates: as log events, in `rebaser status`, and to clients that watch a change set.

Invariant: an update that ends within `progress_every` is not reported. Reports may be lost, and do not delay updates.
"""

import anyio
import structlog

from rebaser.runtime.context import Context
from rebaser.snapshot import SlowUpdate
from rebaser_core.errors import RebaserError
from rebaser_core.messages import DvuProgress, encode

log = structlog.get_logger(__name__)

MAX_REPORTED = 1000  # maximum number of updates in one report; if there are more, the slowest are reported
MAX_LOGGED = 10  # maximum number of updates in one report that are logged; while Spark is down, all updates are slow


class ProgressReporter:
    """Reports which of the `context.running_updates` are slow. Call `run` in a task group."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def slow(self) -> list[SlowUpdate]:
        """Return the updates that have run for longer than `progress_every`, the slowest first."""
        context = self._context
        now, server = context.now(), context.settings.server_id
        slow = [
            SlowUpdate(
                DvuProgress(
                    key.workspace, key.change_set, server, update.covers, update.done, update.total, round(seconds, 1)
                ),
                update.stage,
                update.plan,
                update.wave,
                context.engine.tags.get(str(key), ""),
            )
            for key, update in context.running_updates.items()
            if (seconds := now - update.started) >= context.settings.progress_every
        ]
        slow.sort(key=lambda update: -update.report.seconds)
        return slow[:MAX_REPORTED]

    async def run(self) -> None:
        """Report the slow updates every `progress_every` seconds, until cancelled."""
        context = self._context
        while True:
            await anyio.sleep(context.settings.progress_every)
            for index, slow in enumerate(self.slow()):
                update = slow.report
                if index < MAX_LOGGED:
                    log.info(
                        "dvu_progress",
                        workspace=update.workspace_id,
                        change_set=update.change_set_id,
                        done=update.done,
                        total=update.total,
                        seconds=update.seconds,
                        stage=slow.stage,
                    )
                headers, payload = encode(update)
                subject = context.subjects.progress(update.workspace_id, update.change_set_id)
                try:
                    await context.connection.publish(subject, payload, headers)
                except RebaserError as error:
                    log.debug("dvu_progress_not_published", reason=error.message)
                    break

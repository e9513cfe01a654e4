"""Tells how far updates are that take their time: in the log, to `rebaser status`, to whoever watches.

Invariant: an update that is done before `progress_every` costs nothing here; telling is best effort and holds up none.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import anyio
import structlog

from rebaser.runtime.context import Context
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import DvuProgress, encode

log = structlog.get_logger(__name__)

MAX_REPORTED = 1000  # updates at once, those that take longest
MAX_LOGGED = 10  # the same: if Spark is away, all that there are take long


@dataclass(slots=True)
class Progress:
    """Of one update: begun at `started` (of the server's clock), planned at log sequence `covers`.

    `done` of `total` values are looked at; `total` is None until they are known.
    """

    covers: int
    started: float
    done: int = 0
    total: int | None = None

    def record(self, done: int, total: int) -> None:
        self.done, self.total = done, total


Running = Callable[[], Iterable[tuple[ChangeSetKey, Progress]]]


class ProgressReporter:
    """`running` gives the updates of this server that are at work; call `run` in a task group."""

    def __init__(self, context: Context, running: Running) -> None:
        self._context = context
        self._running = running

    def slow(self) -> list[DvuProgress]:
        """The updates that have taken for longer than `progress_every`; those that take longest come first."""
        context = self._context
        now, server = context.now(), context.settings.server_id
        found = [
            DvuProgress(key.workspace, key.change_set, server, one.covers, one.done, one.total, round(seconds, 1))
            for key, one in self._running()
            if (seconds := now - one.started) >= context.settings.progress_every
        ]
        found.sort(key=lambda one: -one.seconds)
        return found[:MAX_REPORTED]

    async def run(self) -> None:
        """Tell, every `progress_every`, until cancelled."""
        context = self._context
        while True:
            await anyio.sleep(context.settings.progress_every)
            for place, one in enumerate(self.slow()):
                if place < MAX_LOGGED:
                    log.info(
                        "dvu_progress",
                        workspace=one.workspace_id,
                        change_set=one.change_set_id,
                        done=one.done,
                        total=one.total,
                        seconds=one.seconds,
                    )
                headers, payload = encode(one)
                subject = context.subjects.progress(one.workspace_id, one.change_set_id)
                try:
                    await context.connection.publish(subject, payload, headers)
                except RebaserError as error:
                    log.debug("progress_not_told", reason=error.message)
                    break

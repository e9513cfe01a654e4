"""Reports the progress of slow updates: as log events, in `rebaser status`, and to clients that watch a change set.

Invariant: an update that ends within `progress_every` is not reported. Reports may be lost, and do not delay updates.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import anyio
import structlog

from rebaser.runtime.context import Context
from rebaser.snapshot import SlowUpdate
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import DvuProgress, encode

log = structlog.get_logger(__name__)

MAX_REPORTED = 1000  # maximum number of updates in one report; if there are more, the slowest are reported
MAX_LOGGED = 10  # maximum number of updates in one report that are logged; while Spark is down, all updates are slow


@dataclass(slots=True)
class Progress:
    """The progress of one update. `done` of `total` values are processed; `total` is None until it is known.

    `moved` is the time at which the number of processed values or the stage last changed.
    `started` is the time at which the update began, in seconds on the server's clock. `covers` is the log sequence at
    which the update was planned. For `stage`, `plan` and `wave`, see `rebaser.dvu.update.Entered`; while the results
    are committed, `stage` is `commit`. `stages` has the duration of each stage that has ended, in seconds.
    """

    covers: int
    started: float
    done: int = 0
    total: int | None = None
    stage: str = "plan"
    plan: str = ""
    wave: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    moved: float = 0.0
    _stage_began: float | None = None

    def __post_init__(self) -> None:
        self.moved = self.started

    def record(self, now: float, done: int, total: int) -> None:
        """Record that `done` of `total` values are processed."""
        if done != self.done:
            self.moved = now
        self.done, self.total = done, total

    def silent(self, now: float) -> float:
        """Return the seconds since Spark last processed a value; 0 if Spark computes nothing now."""
        return now - self.moved if self.stage == "spark" else 0.0

    def enter(self, now: float, stage: str, plan: str, wave: int) -> None:
        """Record that a stage of the update begins."""
        self.end_stage(now)
        self.moved = now
        self.stage, self.plan, self.wave = stage, plan, wave

    def end_stage(self, now: float) -> None:
        """Record that the stage has ended. A stage that is entered several times has the sum of its durations."""
        began = self.started if self._stage_began is None else self._stage_began
        self.stages[self.stage] = self.stages.get(self.stage, 0.0) + now - began
        self._stage_began = now


Running = Callable[[], Iterable[tuple[ChangeSetKey, Progress]]]


class ProgressReporter:
    """Reports slow updates. Call `run` in a task group. `running` returns the updates that this server is running."""

    def __init__(self, context: Context, running: Running) -> None:
        self._context = context
        self._running = running

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
            for key, update in self._running()
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

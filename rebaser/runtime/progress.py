"""The progress of one dependent values update, from its plan to its commit."""

from dataclasses import dataclass, field


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

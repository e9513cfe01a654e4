"""The thresholds that pick how an update is done, drawn for each seed, so that small graphs take every way there is."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from rebaser.change_set import commit_log
from rebaser.dvu import plan, run, whole
from rebaser.dvu.graph import FEW
from rebaser.dvu.limits import PlanLimits
from rebaser_core.state import View


@dataclass(frozen=True)
class Ways:
    """`table`: results from which on they stand in columns; `rows` of one from which on it is a blob."""

    limits: PlanLimits
    table: int
    rows: int
    little: int

    @classmethod
    def drawn(cls, rng: random.Random) -> "Ways":
        if rng.random() < 0.2:
            return cls(PlanLimits(), 256, commit_log.ROWS, run.LITTLE)
        limits = PlanLimits(
            packet_bytes=rng.choice([3_000, 50_000, 8 * 1024 * 1024]),
            task_work=rng.choice([500, 150_000]),
            few=rng.choice([-1, FEW, 1 << 30]),
            whole=rng.choice([0, 0, 500, 20_000]),
            share=rng.choice([1, 32, 1 << 30]),
            slow=rng.choice([1 / 16, 1.0, 1.0]),
        )
        return cls(limits, rng.choice([1, 20, 256]), rng.choice([1, 100, commit_log.ROWS]), rng.choice([0, run.LITTLE]))

    @contextmanager
    def forced(self, counts: Counter[str]) -> Iterator[None]:
        """What is planned in this process is planned so meanwhile; `counts` tells which ways were taken."""

        def planned(view: View, limits: PlanLimits = self.limits) -> plan.Plan | whole.WholePlan:
            made = plan.plan(view, limits)
            counts[f"way {type(made).__name__}"] += 1
            return made

        with (
            patch.object(run, "plan", planned),
            patch.object(run, "LITTLE", self.little),
            patch.object(plan, "_TABLE", self.table),
            patch.object(whole, "_TABLE", self.table),
            patch.object(commit_log, "ROWS", self.rows),
        ):
            yield

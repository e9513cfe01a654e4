"""How the work of an update is cut.

Invariant: what comes out does not depend on it.
"""

from dataclasses import dataclass
from typing import Final

from rebaser.dvu.graph import FEW


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How work is cut. `packet_bytes` bounds a packet (a single value with more inputs than that goes alone);
    `parallelism` is how many tasks run at once, and `task_work` (nodes and edges) what a task of its own must be worth:
    a second task costs 30 to 45 ms before it helps. `few` values are planned by Python, more by compiled code.

    In a change set of `whole` values or more, what reaches one of `share` of them is swept as a whole, if no more than
    `slow` (0 to 1) of it is left to Python: a sweep does not stop where nothing changes. To put them in order for that,
    which is kept, it takes four times as much, or as much of their inputs.
    """

    packet_bytes: int = 8 * 1024 * 1024
    parallelism: int = 2
    task_work: int = 150_000
    few: int = FEW
    whole: int = 20_000
    share: int = 32
    slow: float = 1 / 16

    def many(self, inputs: int) -> int:
        """How many of `inputs` are much of a large change set."""
        return max(self.whole, inputs // self.lay)

    @property
    def lay(self) -> int:
        """One of how many values must be reached for all to be put in order."""
        return max(1, self.share // 4)


DEFAULT_PLAN_LIMITS: Final = PlanLimits()

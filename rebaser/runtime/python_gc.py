"""Keeps the pauses of Python's garbage collector short, even if a server owns many change sets.

An owner consists of some two hundred objects, and a full collection visits all objects. With ten thousand owners, a
full collection would block the event loop for a second. Objects that have survived two collections are therefore
frozen: no later collection visits them. An owner that ends breaks its reference cycles, so that its memory is freed at
once. `FrozenGarbage` collects other reference cycles that become garbage after they were frozen, such as those that
exceptions create. It collects more often while the server has few owners.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

# The number of new objects after which the youngest generation is collected, and the number of these collections after
# which the second generation is also collected. An owner that starts leaves 200 objects. With four times as many, and
# twice as many collections, the longest pauses are five times as long, and requests take no less time.
YOUNG, SECOND = 5_000, 2
NEVER = 1_000_000  # collections of the second generation after which all objects are collected: practically never
FEW_OWNERS = 500  # maximum number of owners for which `COLLECT_WITH_FEW` applies
COLLECT_WITH_FEW, COLLECT_WITH_MANY = 1000, 100_000  # ended owners after which `FrozenGarbage` collects all objects


@contextmanager
def short_collections() -> Iterator[None]:
    """Enter a context in which all objects that survive two collections are frozen."""
    thresholds = gc.get_threshold()
    gc.set_threshold(YOUNG, SECOND, NEVER)
    gc.callbacks.append(_freeze)
    try:
        yield
    finally:
        gc.callbacks.remove(_freeze)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class FrozenGarbage:
    """Collects garbage among frozen objects. `owners_ended` is the number of owners that ended since its last
    collection."""

    def __init__(self) -> None:
        self.owners_ended = 0

    def collect_if_due(self, owned: int) -> None:
        """Run a full garbage collection if enough owners have ended. `owned` is the present number of owners.

        With many owners, a collection takes longer, so it runs less often.
        """
        if self.owners_ended >= (COLLECT_WITH_FEW if owned <= FEW_OWNERS else COLLECT_WITH_MANY):
            self.owners_ended = 0
            gc.unfreeze()
            gc.collect()
            gc.freeze()


def _freeze(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] == 1:
        gc.freeze()  # freezes only survivors of two collections, because the two younger generations are empty now

"""Keeps the pauses of Python's garbage collector short, even if a server owns many change sets.

An owner consists of some two hundred objects, and a full collection visits all objects. With ten thousand owners, that
would block the event loop for a second. So objects that survived two collections are frozen: no collection visits them
again. An owner that ends breaks its reference cycles, so that its memory is freed at once. `FrozenGarbage` collects
other cycles that become garbage after they were frozen, such as those of errors. It does so more often while the server
has few owners.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

YOUNG = 20_000  # collect the youngest generation after this many new objects; requests create few cycles
SECOND = 4  # also collect the second generation after this many collections of the youngest
NEVER = 1_000_000  # run a full collection after this many collections of the second generation
FEW_OWNERS = 500
COLLECT_WITH_FEW, COLLECT_WITH_MANY = 1000, 100_000  # collect all objects after this many owners have ended


@contextmanager
def short_collections() -> Iterator[None]:
    """Freeze objects that survive two collections within this context."""
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
    """Collects frozen garbage. `owners_ended` is the number of owners that have ended since the last collection."""

    def __init__(self) -> None:
        self.owners_ended = 0

    def collect_if_due(self, owned: int) -> None:
        """Collect all objects if enough owners have ended. `owned` is the number of owners now.

        The more owners there are, the longer a collection takes, and the less often one runs.
        """
        if self.owners_ended >= (COLLECT_WITH_FEW if owned <= FEW_OWNERS else COLLECT_WITH_MANY):
            self.owners_ended = 0
            gc.unfreeze()
            gc.collect()
            gc.freeze()


def _freeze(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] == 1:
        gc.freeze()  # the two younger generations are empty now, so this freezes only survivors of two collections

"""Tells how far the reading of a state is, for somebody who waits for it.

Invariant: this costs nothing unless the caller of the reading has set a `LoadProgress`.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias

Stage: TypeAlias = Literal["begin", "checkpoint", "values", "commits", "sort"]


@dataclass(slots=True)
class LoadProgress:
    """How far a reading is. `bytes` is what was read so far.

    - `checkpoint`: blobs are read; `done` of `total` bytes of the checkpoint are there.
    - `values`: the checkpoint is decoded.
    - `commits`: the commits after the checkpoint are read; `done` of `total` positions of the log have been passed.
    - `sort`: the caller sorts the values.
    """

    stage: Stage = "begin"
    done: int = 0
    total: int = 0
    bytes: int = 0

    def begin(self, stage: Stage, total: int = 0) -> None:
        self.stage, self.done, self.total = stage, 0, total

    def add(self, size: int) -> None:
        """Note that `size` bytes were read."""
        self.bytes += size
        if self.stage == "checkpoint":
            self.done += size


LOADING: ContextVar[LoadProgress | None] = ContextVar("loading", default=None)
"""What the present task and the readings that it awaits report to."""

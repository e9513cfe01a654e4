"""A graph as peers get it: values by number, those that are set first, inputs before what they feed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.dvu.loaded import Model
from tests.benchmarks.evaluate import plain


@dataclass(frozen=True)
class Graph:
    """The first `base` values are `held`; value `base + n` is made of `refs[starts[n]:starts[n + 1]]` in the way of
    `kinds[n]`, which are those of `tests.benchmarks.evaluate`."""

    kinds: NDArray[np.int64]
    starts: NDArray[np.int64]
    refs: NDArray[np.int32]
    held: NDArray[np.float64]

    @classmethod
    def of(cls, model: Model) -> Self:
        return cls(*plain(model.work), model.work.refs, model.held.copy())  # type: ignore[arg-type]

    @property
    def base(self) -> int:
        return len(self.held)

    def __len__(self) -> int:
        return len(self.held) + len(self.kinds)

    def inputs(self) -> list[list[int]]:
        """The inputs of each node."""
        refs, starts = self.refs.tolist(), self.starts.tolist()
        return [refs[begin:end] for begin, end in pairwise(starts)]


class Peer(ABC):
    """Another engine with one graph. Making it reads the graph, `build` loads it and computes it once."""

    version: str | None = None  # where no package tells

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @abstractmethod
    def build(self) -> None: ...

    @abstractmethod
    def apply(self, at: NDArray[np.int64], values: NDArray[np.float64]) -> float | None:
        """Set some values and bring everything up to date. The ms that it took, where it is the better judge."""

    @abstractmethod
    def values(self) -> Any:
        """All values, by number."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """End what it started."""

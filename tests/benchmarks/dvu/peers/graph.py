"""The form in which peers get a graph: values by number, first those that are set, and inputs before their
dependents."""

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
    """A graph for peers. The first `base` values are `held`. Value `base + n` is computed from `refs[starts[n]:starts[n
    + 1]]` by the function `kinds[n]`, as in `tests.benchmarks.evaluate`."""

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
        """Return the inputs of each node."""
        refs, starts = self.refs.tolist(), self.starts.tolist()
        return [refs[begin:end] for begin, end in pairwise(starts)]


class Peer(ABC):
    """Another engine with one graph. The constructor reads the graph; `build` loads it and computes it once."""

    version: str | None = None  # for engines without a Python package that has the version

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @abstractmethod
    def build(self) -> None: ...

    @abstractmethod
    def apply(self, at: NDArray[np.int64], values: NDArray[np.float64]) -> float | None:
        """Set some values, and update everything. Return the milliseconds if the engine measures them better than its
        caller."""

    @abstractmethod
    def values(self) -> Any:
        """Return all values by number."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """End everything that the peer started."""

"""Peers in this process: compiled loops over arrays, which are the limit, and a plain engine with dictionaries."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tests.benchmarks.dvu.peers.graph import Graph, Peer
from tests.benchmarks.evaluate import ADD_ONE, GATE, MAX_3, MEAN_2, MEAN_3, PRODUCT_3, SUM, TWICE, bare

FUNCTIONS: dict[int, Callable[..., float]] = {
    ADD_ONE: lambda a: a + 1.0,
    TWICE: lambda a: a * 2.0 + 1.0,
    SUM: lambda *all_: sum(all_),
    MEAN_3: lambda a, b, c: (a + b + c) / 3.0,
    PRODUCT_3: lambda a, b, c: (a * b + c) / 3.0,
    MAX_3: max,
    MEAN_2: lambda a, b: (a + b) / 2.0,
    GATE: lambda a: max(a, 1.0),
}


@njit(cache=True)  # type: ignore[untyped-decorator]
def dependents(refs: Any, starts: Any, count: Any) -> Any:
    """Return the dependents of each value as compressed rows."""
    begin = np.zeros(count + 1, np.int64)
    for one in refs:
        begin[one + 1] += 1
    begin = np.cumsum(begin)
    at, nodes = begin[:-1].copy(), np.empty(len(refs), np.int32)
    for node in range(len(starts) - 1):
        for place in range(starts[node], starts[node + 1]):
            nodes[at[refs[place]]] = node
            at[refs[place]] += 1
    return begin, nodes


@njit(cache=True)  # type: ignore[untyped-decorator]
def reached(edited: Any, begin: Any, nodes: Any, base: Any, mark: Any) -> Any:
    """Return the nodes that edited values reach, in order. `mark` is all zeros before and after."""
    found, count, done = np.empty(len(mark), np.int32), 0, 0
    for value in edited:
        for place in range(begin[value], begin[value + 1]):
            if not mark[nodes[place]]:
                mark[nodes[place]] = 1
                found[count] = nodes[place]
                count += 1
    while done < count:
        value = base + found[done]
        done += 1
        for place in range(begin[value], begin[value + 1]):
            if not mark[nodes[place]]:
                mark[nodes[place]] = 1
                found[count] = nodes[place]
                count += 1
    if count * 32 < len(mark):
        order = np.sort(found[:count])
        mark[order] = 0
        return order
    order = np.flatnonzero(mark).astype(np.int32)
    mark[:] = 0
    return order


class Sweep(Peer):
    """The bare loop over everything for each edit, without planning."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._nodes = np.arange(len(graph.kinds), dtype=np.int32)
        self._values = np.concatenate((graph.held, np.zeros(len(graph.kinds))))
        self._compute(self._nodes[:0])  # compiles the loop

    def build(self) -> None:
        self._compute(self._nodes)

    def _compute(self, nodes: NDArray[np.int32]) -> None:
        graph = self.graph
        bare()(nodes, graph.kinds, graph.starts, graph.refs, self._values, graph.base)

    def apply(self, at: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        self._values[at] = values
        self._compute(self._nodes)

    def values(self) -> Any:
        return self._values


class Bare(Sweep):
    """The bare loop over the values that an edit reaches."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        users = dependents(graph.refs[:0], graph.starts[:1], 0)
        reached(np.zeros(0, np.int64), *users, 0, np.zeros(0, np.uint8))  # compiles the function

    def build(self) -> None:
        super().build()
        graph = self.graph
        self._users = dependents(graph.refs, graph.starts, len(graph))
        self._mark = np.zeros(len(graph.kinds), np.uint8)

    def apply(self, at: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        self._values[at] = values
        self._compute(reached(at, *self._users, self.graph.base, self._mark))


class Dicts(Peer):
    """Dictionaries by name, with a Python function for each value, computed in an order that is determined once."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._names = [f"v{at}" for at in range(len(graph))]
        names, base = self._names, graph.base
        self._formulas = {
            names[base + node]: (FUNCTIONS[kind], [names[one] for one in inputs])
            for node, (kind, inputs) in enumerate(zip(graph.kinds.tolist(), graph.inputs(), strict=True))
        }
        self._values: dict[str, float] = dict(zip(names, graph.held.tolist(), strict=False))

    def build(self) -> None:
        users = defaultdict(list)
        waiting = {}
        for name, (_, inputs) in self._formulas.items():
            waiting[name] = len(inputs)
            for one in inputs:
                users[one].append(name)
        ready = list(self._values)
        for name in ready:
            for user in users.get(name, ()):
                waiting[user] -= 1
                if not waiting[user]:
                    ready.append(user)
        self._users = dict(users)
        self._rank = {name: at for at, name in enumerate(ready)}
        self._compute(ready[self.graph.base :])

    def _compute(self, names: list[str]) -> None:
        values, formulas = self._values, self._formulas
        for name in names:
            function, inputs = formulas[name]
            values[name] = function(*[values[one] for one in inputs])

    def apply(self, at: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        todo = [self._names[one] for one in at.tolist()]
        self._values.update(zip(todo, values.tolist(), strict=True))
        found = set()
        while todo:
            for user in self._users.get(todo.pop(), ()):
                if user not in found:
                    found.add(user)
                    todo.append(user)
        self._compute(sorted(found, key=self._rank.__getitem__))

    def values(self) -> Any:
        return [self._values[name] for name in self._names]

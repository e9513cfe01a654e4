"""Measures the update alone: a change set with one of the shapes, its edits, and one update timed in parts.

Building the change set and writing the commit are not timed. The results are checked against a bare loop.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebaser.dvu.planning.planner import plan
from rebaser.dvu.update import PacketEngine, share_structure
from rebaser.dvu.wire.packet import Packet
from rebaser_core.commit import Commit, Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.kinds import FLOAT
from rebaser_core.updates import Derive, Set, Update
from tests.benchmarks.evaluate import bare, graph, plain

EDITS = ("all", "root", "same")
FOLDED_AT_ONCE = 50_000  # updates
COMPILED_FROM = 20_000  # compiling takes seconds, so fewer values are computed without it


def updates(work: Packet) -> Iterator[Update]:
    """Yield the updates that define the change set of a packet."""
    base = len(work.constants)
    for at, value in enumerate(work.constants):
        yield Set(f"v{at}", value)  # type: ignore[arg-type] # a double
    at = 0
    refs, shapes = memoryview(work.refs), work.templates  # type: ignore[arg-type]
    for node, shape in enumerate(memoryview(work.template)):  # type: ignore[arg-type]
        inputs: dict[str, str | tuple[str, ...]] = {}
        for name, count in shapes[shape].inputs:
            ids = tuple([f"v{slot}" for slot in refs[at : at + abs(count)]])
            inputs[name] = ids[0] if count < 0 else ids
            at += abs(count)
        yield Derive(f"v{base + node}", shapes[shape].function, inputs, shapes[shape].params)


class Model:
    """A shape with its present values, and its edits.

    `all` sets every value that is not derived, `first:N` the first N of these, and `same` sets all to their present
    values. The other edits set only values that are inputs. `root` sets the first, which in most shapes reaches most
    values. A number sets so many, evenly spread from the last one on, which in some shapes reach few values. In a gated
    model, the second word is `through` (everything behind a gate changes) or `cutoff` (nothing does after the first
    such edit), as in `root cutoff`.
    """

    def __init__(self, shape: str, size: int, *, gated: bool = False) -> None:
        self.work = graph(shape, size, gated=gated)
        self.held: NDArray[np.float64] = self.work.constants.bits.view(np.float64).copy()
        self.base = len(self.held)
        refs = self.work.refs[self.base :] - self.base if gated else self.work.refs
        self._used = np.unique(refs[refs < self.base])
        self._first = self.held.copy()
        self._turn = 0

    def __len__(self) -> int:
        return self.base + len(self.work.template)

    def edited(self, which: str) -> NDArray[np.int64]:
        """Return the numbers of the values that an edit sets; empty if the edit sets more values than there are."""
        how_many = which.partition(" ")[0]
        if how_many in ("all", "same"):
            return np.arange(self.base)
        if how_many == "root":
            return self._used[:1]  # type: ignore[return-value]
        if how_many.startswith("first:"):
            wanted = int(how_many.removeprefix("first:"))
            return np.arange(wanted if wanted <= self.base else 0)
        wanted, used = int(how_many), self._used[::-1]
        return np.sort(used[np.arange(wanted) * len(used) // wanted]) if wanted <= len(used) else used[:0]  # type: ignore[return-value]

    def edit(self, which: str) -> list[Set]:
        """Return the next edit of a kind."""
        at = self.edited(which)
        self._turn += which != "same"
        step = 0.001 * (self._turn % 400)
        how = which.partition(" ")[2]
        self.held[at] = 1.2 + step if how == "through" else 0.5 + step if how == "cutoff" else self._first[at] + step
        return [Set(f"v{one}", value) for one, value in zip(at.tolist(), self.held[at].tolist(), strict=True)]

    def computed(self) -> NDArray[np.float64]:
        """Return all values, set and derived, computed by the bare loop."""
        kinds, starts = plain(self.work)
        values = np.concatenate((self.held, np.zeros(len(kinds))))
        loop = bare() if len(values) > COMPILED_FROM else bare().py_func
        loop(np.arange(len(kinds), dtype=np.int32), kinds, starts, self.work.refs, values, self.base)
        return values


def check(state: ChangeSetState, model: Model) -> None:
    """Check that every value of `state` equals the result of the bare loop, to 1e-9, because the order of sums may
    differ."""
    columns, index = state.cells.columns, state.cells.columns.index
    rows = np.fromiter((index[f"v{at}"] for at in range(len(model))), np.int64, len(model))
    assert (columns.kind[rows] == FLOAT).all()
    np.testing.assert_allclose(columns.bits[rows].view(np.float64), model.computed(), rtol=1e-9, atol=0)


class Loaded:
    """A change set whose derived values are up to date, and its edits."""

    def __init__(self, shape: str, size: int, *, gated: bool = False) -> None:
        self.model = Model(shape, size, gated=gated)
        self.state = ChangeSetState()
        rest = updates(self.model.work)
        while some := list(islice(rest, FOLDED_AT_ONCE)):
            fold(self.state, some)

    def edit(self, which: str) -> None:
        fold(self.state, self.model.edit(which))

    async def update(self, engine: PacketEngine) -> dict[str, float]:
        return await timed_update(self.state, engine)


def fold(state: ChangeSetState, delta: Sequence[Update]) -> None:
    """Add a commit with edits."""
    state.fold(state.last + 1, Commit("", state.last, Kind.REBASE, 0, "", None, state.covers, delta=delta))


async def timed_update(state: ChangeSetState, engine: PacketEngine) -> dict[str, float]:
    """Run one update. Return the milliseconds of its parts, and how many values changed. Folding the results is not in
    `all`."""
    with state.view() as view:
        times = [time.perf_counter()]
        made = plan(view)
        await share_structure(made, engine)
        packets = made.next_wave()
        times.append(time.perf_counter())
        spark = sent = 0.0
        while packets:
            sent += sum(map(len, packets))
            began = time.perf_counter()
            results = await engine.evaluate(packets, label="bench")
            spark += time.perf_counter() - began
            made.absorb([part for one in results for part in one])
            packets = made.next_wave()
        computed = made.computed()
        times.append(time.perf_counter())
        sequence = view.sequence
    state.fold(state.last + 1, Commit("", state.last, Kind.DVU, 0, "", None, sequence, delta=computed))
    whole = times[2] - times[0]
    return {
        "all": 1000 * whole,
        "plan": 1000 * (times[1] - times[0]),
        "spark": 1000 * spark,
        "rest": 1000 * (times[2] - times[1] - spark),
        "mb": sent / 1e6,
        "affected": made.size,
        "changed": len(computed),
    }


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}


def with_and_without(edits: Sequence[str], *, gated: bool) -> list[str]:
    """Return each edit, or, for a gated model, each edit with `through` and with `cutoff`."""
    if not gated:
        return list(edits)
    return [f"{one} {how}" for one in edits if one != "same" for how in ("through", "cutoff")]


async def measure(
    engine: PacketEngine, shape: str, size: int, runs: int, *, edits: Sequence[str] = EDITS, gated: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield medians of each edit, and of an empty job of one packet in between. Raises `AssertionError` for a wrong
    value."""
    loaded, empty = Loaded(shape, size, gated=gated), Loaded("chain", 2)
    await loaded.update(engine)
    await empty.update(engine)
    found = []
    for which in with_and_without(edits, gated=gated):
        count = len(loaded.model.edited(which))
        if not count:
            continue
        taken, floor = [], []
        for _ in range(runs + 1):  # the first run of each is not counted
            empty.edit("all")
            floor.append(await empty.update(engine))
            loaded.edit(which)
            taken.append(await loaded.update(engine))
        one, none = medians(taken[1:]), medians(floor[1:])
        found.append(
            {"shape": shape, "size": size, "edit": which, "edited": count}
            | one
            | {"empty": none["all"], "ratio": round(one["all"] / none["all"], 2)}
        )
    check(loaded.state, loaded.model)
    return iter(found)

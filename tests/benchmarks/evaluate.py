"""Measures a worker's work on one packet (decode, compute, encode): compiled, in Python, and beside a bare Numba loop.

    python -m tests.benchmarks.evaluate [--sizes 1000,100000,1000000] [--scalar-up-to 100000] [--runs 7] [--json]

Shapes: chain (+1), fanout (one value is the input of all), fanin (one sum of all), running (running totals), grid (mean
of the upper and the left value), dag (any three earlier values), scale_free (three earlier values, each drawn with a
probability that grows with its uses), islands (dags of 100 values).

All values are doubles. `first` computes everything with no previous values. `again` computes everything, and no result
differs from its previous value. Figures are medians in ms. The bare loop has the formulas compiled into it, and no
kinds, no cutoff and no packets: it is the limit of the machine.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rebaser.dvu import fingerprint
from rebaser.dvu.compiled import linker, loader
from rebaser.dvu.functions import registry
from rebaser.dvu.wire.column import FLOAT, UNKNOWN, Column
from rebaser.dvu.wire.packet import DefinitionTemplate, Packet, Results
from rebaser.dvu.worker import evaluate
from rebaser.dvu.worker.evaluator import Evaluator

SHAPES = ("chain", "fanout", "fanin", "running", "grid", "dag", "scale_free", "islands")


def _formula(text: str, names: str) -> DefinitionTemplate:
    return DefinitionTemplate("cel", tuple((name, -1) for name in names), {"expr": text})


KINDS = [
    _formula("a + 1.0", "a"),
    _formula("a * 2.0 + 1.0", "a"),
    DefinitionTemplate("sum", (("of", 2),), {}),
    _formula("(a + b + c) / 3.0", "abc"),
    _formula("(a * b + c) / 3.0", "abc"),
    DefinitionTemplate("max", (("of", 3),), {}),
    _formula("(a + b) / 2.0", "ab"),
    _formula("a < 1.0 ? 1.0 : a", "a"),
]
ADD_ONE, TWICE, SUM, MEAN_3, PRODUCT_3, MAX_3, MEAN_2, GATE = range(8)


def graph(shape: str, size: int, *, gated: bool = False) -> Packet:
    """Return a packet of about `size` values, constants included, all of them dirty and without previous values.

    With `gated`, each constant is used through an additional value that lets nothing below 1 through.
    """
    rng = np.random.default_rng(7)
    shapes = KINDS
    if shape == "fanin":
        constants, kinds, refs = size - 1, np.full(1, SUM), np.arange(size - 1)
        shapes = [*KINDS[:SUM], DefinitionTemplate("sum", (("of", size - 1),), {}), *KINDS[SUM + 1 :]]
    else:
        constants, kinds, refs = _edges(shape, size, rng)
    if gated:
        kinds = np.concatenate((np.full(constants, GATE), kinds))
        refs = np.concatenate((np.arange(constants), refs + constants))
    return _work(shapes, kinds, refs, constants, rng)


def _edges(shape: str, size: int, rng: np.random.Generator) -> tuple[int, NDArray[Any], NDArray[Any]]:
    """Return the number of constants, the kind of each node, and the slots of its inputs."""
    if shape == "chain":
        return 1, np.full(size - 1, ADD_ONE), np.arange(size - 1)
    if shape == "fanout":
        return 1, np.full(size - 1, TWICE), np.zeros(size - 1, np.int64)
    if shape == "running":
        half = size // 2
        totals = np.concatenate(([0], np.arange(half - 1) + half))
        return half, np.full(half, SUM), np.stack((totals, np.arange(half)), 1).ravel()
    if shape == "grid":
        side = int(size**0.5)
        at = np.arange((side - 1) ** 2)
        row, column = np.divmod(at, side - 1)
        base = 2 * side - 1  # the corner, the first row and the first column
        up = np.where(row == 0, 1 + column, base + at - (side - 1))
        left = np.where(column == 0, side + row, base + at - 1)
        return base, np.full(len(at), MEAN_2), np.stack((up, left), 1).ravel()
    per = 100 if shape == "islands" else size
    inside = max(per // 10, 4)
    if shape == "scale_free":
        kinds = rng.choice([MEAN_3, PRODUCT_3, MAX_3], size - inside, p=[0.6, 0.3, 0.1])
        return inside, kinds, _attached(inside, size - inside, rng)
    nodes, islands = per - inside, size // per
    of = np.tile(np.arange(nodes), islands)
    island = np.repeat(np.arange(islands), nodes)
    pick = (rng.random((len(of), 3)) * (of + inside)[:, None]).astype(np.int64)
    base = islands * inside
    refs = np.where(pick < inside, island[:, None] * inside + pick, base + island[:, None] * nodes + pick - inside)
    return base, rng.choice([MEAN_3, PRODUCT_3, MAX_3], len(of), p=[0.6, 0.3, 0.1]), refs.ravel()


def _attached(constants: int, nodes: int, rng: np.random.Generator) -> NDArray[Any]:
    """Return three inputs for each node, drawn from all values before it, once for the value itself and once for each
    of its uses.

    Constants are placed between the nodes; otherwise the oldest values would be the most used, and all be constants.
    """
    derived = np.ones(constants + nodes, np.bool_)
    derived[:4] = False
    derived[4 + rng.permutation(constants + nodes - 4)[: constants - 4]] = False
    before = np.repeat(np.flatnonzero(derived), 3)
    edges = 3 * np.repeat(np.arange(nodes), 3)
    pick = (rng.random(len(before)) * (before + edges)).astype(np.int64)
    # The value itself, or the value of an earlier edge.
    same_as = np.where(pick < before, np.arange(len(pick)), pick - before)
    while not np.array_equal(further := same_as[same_as], same_as):
        same_as = further
    slots = np.where(derived, constants + np.cumsum(derived) - 1, np.cumsum(~derived) - 1)
    return slots[pick[same_as]]


def _work(
    shapes: list[DefinitionTemplate], kinds: NDArray[Any], refs: NDArray[Any], constants: int, rng: np.random.Generator
) -> Packet:
    used = sorted(set(kinds.tolist()))
    shapes = [shapes[kind] for kind in used]
    count = len(kinds)
    return Packet(
        number=1,
        code=fingerprint.code(),
        functions=registry().fingerprints({shape.function for shape in shapes}),
        templates=shapes,
        constants=Column(np.full(constants, FLOAT, np.uint8), rng.uniform(0.5, 1.5, constants).view(np.int64)),
        template=np.searchsorted(used, kinds).astype(np.int32),
        refs=refs.astype(np.int32),
        dirty=np.ones(count, np.bool_),
        old=Column(np.full(count, UNKNOWN, np.uint8), np.zeros(count, np.int64)),
    )


def known(work: Packet) -> Packet:
    """Return the same packet with its results as previous values."""
    sweep = Evaluator(work, registry())
    sweep.run()
    _, work.old, _ = sweep.results()
    return work


def parts(data: bytes) -> dict[str, float]:
    """Return the milliseconds of each step, and of all."""
    times = [time.perf_counter()]
    work = Packet.decode(data)
    times.append(time.perf_counter())
    sweep = Evaluator(work, registry())
    sweep.run()
    times.append(time.perf_counter())
    encoded = [part.encode() for part in evaluate._split(1, *sweep.results())]
    times.append(time.perf_counter())
    assert Results.decode(encoded[-1]).last
    steps = zip(("decode", "compute", "encode"), times, times[1:], strict=False)
    return {name: 1000 * (after - before) for name, before, after in steps} | {"all": 1000 * (times[-1] - times[0])}


def medians(measured: Callable[[], dict[str, float]], runs: int) -> dict[str, float]:
    taken = [measured() for _ in range(runs)]
    return {name: round(statistics.median(one[name] for one in taken), 3) for name in taken[0]}


@cache
def bare() -> Any:
    """Return a Numba function that computes some nodes with compiled formulas, from the arrays of a packet."""
    from numba import njit

    @njit(cache=True)  # type: ignore[untyped-decorator]
    def loop(nodes: Any, kind: Any, starts: Any, refs: Any, values: Any, base: int) -> None:
        for node in nodes:
            at, slot = starts[node], base + node
            if kind[node] == ADD_ONE:
                values[slot] = values[refs[at]] + 1.0
            elif kind[node] == TWICE:
                values[slot] = values[refs[at]] * 2.0 + 1.0
            elif kind[node] == SUM:
                total = 0.0
                for k in range(at, starts[node + 1]):
                    total += values[refs[k]]
                values[slot] = total
            elif kind[node] == MEAN_3:
                values[slot] = (values[refs[at]] + values[refs[at + 1]] + values[refs[at + 2]]) / 3.0
            elif kind[node] == PRODUCT_3:
                values[slot] = (values[refs[at]] * values[refs[at + 1]] + values[refs[at + 2]]) / 3.0
            elif kind[node] == MAX_3:
                values[slot] = max(values[refs[at]], values[refs[at + 1]], values[refs[at + 2]])
            elif kind[node] == GATE:
                values[slot] = max(values[refs[at]], 1.0)
            else:
                values[slot] = (values[refs[at]] + values[refs[at + 1]]) / 2.0

    return loop


def plain(work: Packet) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the kind of each node, and where its inputs begin in `refs` (with the end of all)."""
    expressions = [shape.params.get("expr") or shape.function for shape in KINDS]
    known = [expressions.index(each.params.get("expr") or each.function) for each in work.templates]
    kinds = np.array(known)[work.template]
    return kinds, np.concatenate(([0], np.cumsum(np.array([one.arity for one in work.templates])[work.template])))


def bare_time(loop: Callable[..., None], work: Packet, runs: int) -> float:
    kinds, starts = plain(work)
    values = np.concatenate((work.constants.bits.view(np.float64), np.zeros(len(kinds))))
    nodes = np.arange(len(kinds), dtype=np.int32)

    def once() -> dict[str, float]:
        started = time.perf_counter()
        loop(nodes, kinds, starts, work.refs, values, len(work.constants))
        return {"ms": 1000 * (time.perf_counter() - started)}

    once()
    return medians(once, runs)["ms"]


def measure(shape: str, size: int, *, runs: int, scalar: bool, loop: Callable[..., None]) -> dict[str, Any]:
    work = graph(shape, size)
    first = work.encode()
    found: dict[str, Any] = {
        "shape": shape,
        "size": size,
        "nodes": len(work.template),
        "packet_mb": round(len(first) / 1e6, 2),
    }
    parts(first)
    found["first"] = medians(lambda: parts(first), runs)
    found["bare"] = bare_time(loop, work, runs)
    again = known(work).encode()
    found["again"] = medians(lambda: parts(again), runs)
    if scalar:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(linker, "link", lambda *_: None)
            found["python"] = medians(lambda: parts(first), min(runs, 3))["all"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,100000,1000000")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--scalar-up-to", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    started = time.perf_counter()
    assert loader.load()
    if not options.json:
        print(
            f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}; "
            f"compiled code loaded in {time.perf_counter() - started:.1f} s"
        )
        print("    size shape      MB in   first: decode compute encode      all   again all   python      bare")
    loop = bare()
    for size in map(int, options.sizes.split(",")):
        for shape in options.shapes.split(","):
            found = measure(shape, size, runs=options.runs, scalar=size <= options.scalar_up_to, loop=loop)
            if options.json:
                print(json.dumps(found))
                continue
            one = found["first"]
            print(
                f"{size:8} {shape:8} {found['packet_mb']:7} {one['decode']:15} {one['compute']:7} {one['encode']:6}"
                f" {one['all']:8} {found['again']['all']:11} {found.get('python', '-'):>8} {found['bare']:9}"
            )


if __name__ == "__main__":
    main()

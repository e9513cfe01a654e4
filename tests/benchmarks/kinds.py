"""Measures the cost of a value in a worker, by function and kind of value: CPU time of decoding, computing and
encoding.

    python -m tests.benchmarks.kinds [--nodes 100000] [--runs 5] [--json]

The nodes have one definition, and do not depend on each other. Figures are medians in nanoseconds of CPU time per node.
`together` is the way of a worker; `one by one` uses neither compiled code nor groups.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rebaser.dvu import fingerprint
from rebaser.dvu.compiled import linker, loader
from rebaser.dvu.functions import registry
from rebaser.dvu.wire.column import UNKNOWN, Column
from rebaser.dvu.wire.packet import DefinitionTemplate, Packet
from rebaser.dvu.worker import evaluator
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_core.values import Json

VALUES: dict[str, Callable[[int], Json]] = {
    "double": lambda at: at / 7,
    "integer": lambda at: at,
    "number": lambda at: at if at % 2 else at / 7,
    "ASCII": lambda at: f"item {at}",
    "text": lambda at: f"größe {at} €",
    "scalar": lambda at: f"item {at}" if at % 2 else at,
    "boolean": lambda at: at % 3 == 0,
}
_A, _B = ("a", -1), ("b", -1)
CASES: dict[str, tuple[DefinitionTemplate, tuple[str, ...]]] = {
    f"{name} of {kinds[-1]}s": (shape, kinds)
    for name, shape, each in (
        (
            "a * b + 1",
            DefinitionTemplate("cel", (_A, _B), {"expr": "a * b + 1"}),
            (("double",), ("integer",), ("number",)),
        ),
        (
            "a > b ? a : b",
            DefinitionTemplate("cel", (_A, _B), {"expr": "a > b ? a - b : b"}),
            (("double",), ("integer",), ("number",)),
        ),
        ("sum", DefinitionTemplate("sum", (("x", 2),), {}), (("double",), ("integer",), ("number",))),
        ("max", DefinitionTemplate("max", (("x", 2),), {}), (("double",), ("integer",), ("number",))),
        ("concat", DefinitionTemplate("concat", (("x", 2),), {}), (("ASCII",), ("text",), ("scalar",))),
        ("join", DefinitionTemplate("join", (("x", 2),), {}), (("ASCII",), ("text",))),
        ("format", DefinitionTemplate("format", (_A, _B), {"template": "{a} of {b:.2f}"}), (("ASCII", "double"),)),
        ("length", DefinitionTemplate("length", (_A,), {}), (("text",),)),
        (
            "if",
            DefinitionTemplate("if", (("condition", -1), ("then", -1), ("else", -1)), {}),
            (("boolean", "double"), ("boolean", "text")),
        ),
        ("coalesce", DefinitionTemplate("coalesce", (("x", 2),), {}), (("text",),)),
    )
    for kinds in each
}


def work(shape: DefinitionTemplate, kinds: tuple[str, ...], nodes: int) -> Packet:
    """Return a packet of `nodes`, all dirty and without previous values. `kinds` are those of its inputs; the last one
    is that of all further inputs."""
    arity = shape.arity
    kinds = (*kinds, *[kinds[-1]] * arity)[:arity]
    constants = [VALUES[kind](at) for kind in kinds for at in range(nodes)]
    at = np.arange(nodes)
    refs = np.stack([place * nodes + at * (2 * place + 1) % nodes for place in range(arity)], 1)
    return Packet(
        number=1,
        code=fingerprint.code(),
        functions=registry().fingerprints([shape.function]),
        templates=[shape],
        constants=Column.from_items(constants),
        template=np.zeros(nodes, np.int32),
        refs=refs.ravel().astype(np.int32),
        dirty=np.ones(nodes, np.bool_),
        old=Column(np.full(nodes, UNKNOWN, np.uint8), np.zeros(nodes, np.int64)),
    )


def one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Make workers compute without compiled code and without groups."""
    patch.setattr(linker, "link", lambda *_: None)
    patch.setattr(evaluator.Evaluator, "_phase_flags", lambda *_: None)


def cost(data: bytes, nodes: int, runs: int) -> int:
    """Return the nanoseconds of CPU time per node."""
    taken = []
    evaluate_packet(data)
    for _ in range(runs):
        started = time.process_time()
        evaluate_packet(data)
        taken.append(time.process_time() - started)
    return round(statistics.median(taken) / nodes * 1e9)


def measure(name: str, nodes: int, runs: int) -> dict[str, Any]:
    data = work(*CASES[name], nodes).encode()
    found: dict[str, Any] = {"case": name, "nodes": nodes, "together": cost(data, nodes, runs)}
    with pytest.MonkeyPatch.context() as patch:
        one_by_one(patch)
        found["one by one"] = cost(data, nodes, min(runs, 3))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    assert loader.load()
    if not options.json:
        print(
            f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}; ns of CPU time a node"
        )
        print(f"{'':26} together  one by one")
    for name in CASES:
        found = measure(name, options.nodes, options.runs)
        line = f"{name:26} {found['together']:8} {found['one by one']:11}"
        print(json.dumps(found) if options.json else line, flush=True)


if __name__ == "__main__":
    main()

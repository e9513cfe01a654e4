"""Measures one peer with one graph: `python -m tests.benchmarks.dvu.peers PEER SHAPE SIZE EDITS RUNS`. It prints lines
of JSON.

The process ends when its standard input is closed. It must have a process group of its own.
"""

import json
import os
import signal
import statistics
import sys
import threading
import time

import numpy as np

from tests.benchmarks.dvu.loaded import Model
from tests.benchmarks.dvu.peers import TICK
from tests.benchmarks.dvu.peers.graph import Graph, Peer

LONG = 4.0  # seconds of a run from which on fewer runs are made


def make(name: str, graph: Graph) -> Peer:
    if name in ("bare", "bare-sweep", "pydict"):
        from tests.benchmarks.dvu.peers import in_process

        return {"bare": in_process.Bare, "bare-sweep": in_process.Sweep, "pydict": in_process.Dicts}[name](graph)
    if name in ("dask", "pyspark-joins"):
        from tests.benchmarks.dvu.peers import frameworks

        return {"dask": frameworks.Dask, "pyspark-joins": frameworks.Joins}[name](graph)
    from tests.benchmarks.dvu.peers import sheets

    return {"formualizer": sheets.Formualizer, "hyperformula": sheets.HyperFormula}[name](graph)


def main(name: str, shape: str, size: str, edits: str, runs: str) -> None:
    model = Model(shape, int(size))
    peer = make(name, Graph.of(model))
    say(None)
    started = time.perf_counter()
    peer.build()
    about: dict[str, object] = {"build": round(1000 * (time.perf_counter() - started), 1)}
    if peer.version is not None:
        about["version"] = peer.version
    say(None)
    for which in edits.split(","):
        at = model.edited(which)
        if not len(at):
            continue
        taken: list[float] = []
        while len(taken) <= int(runs):
            model.edit(which)
            values = model.held[at]
            started = time.perf_counter()
            itself = peer.apply(at, values)
            taken.append(1000 * (time.perf_counter() - started) if itself is None else itself)
            say(None)
            if sum(taken) > 1000 * LONG:
                break
        counted = taken[1:] or taken  # the first run is not counted, unless it took so long that it is the only one
        ms = round(statistics.median(counted), 4)
        say(about | {"edit": which, "edited": len(at), "runs": len(counted), "ms": ms})
    np.testing.assert_allclose(peer.values(), model.computed(), rtol=1e-9, atol=0)
    peer.close()


def end_with_parent() -> None:
    """End this process and its children when standard input is closed, for whatever reason."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def say(line: dict[str, object] | None) -> None:
    """Print a result, or that a step is done."""
    sys.stdout.write(TICK if line is None else json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    main(*sys.argv[1:])

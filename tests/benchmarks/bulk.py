"""Measures the processor time of each stage of a large file of updates, and of reading a large change set, as ratios.

    python -m tests.benchmarks.bulk [--updates 244564] [--rounds 5] [--json]

The stages run in this process, one after the other, `--rounds` times. The ratio is that of the medians of a stage and
of `floor`, in which the standard library parses each line of the same file with `json.loads`, and does nothing else.

- `file`: `rebaser enqueue --file` reads the file, checks it, and encodes batches.
- `request`: the server decodes and checks the batches, and computes their digests.
- `fold`: the server folds them into the state. `beside`: the same while an update has a view open, with the merge
  afterwards.
- `load`: a reader decodes them from the log, and folds them.
- `get`: `rebaser get --json` writes all values.
"""

import argparse
import io
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from typing import Any

from rebaser.cli.commands.get import _show_values
from rebaser.cli.runner import collector_paused
from rebaser.cli.sending.batches import BatchBuilder, EncodedBatch
from rebaser.cli.sending.jsonl import JsonLinesParser
from rebaser_core.commit import Commit, Kind
from rebaser_core.definitions import check_definition, check_definitions
from rebaser_core.messages import decode_updates_blob
from rebaser_core.messages.content_digest import digest_of
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Update

CHUNK, BATCH, BATCH_BYTES = 256 * 1024, 10_000, 4 * 1024 * 1024
WORDS = ("core", "util", "net", "http", "json", "parser", "model", "view", "form", "data", "frame", "plot", "graph")


def lines(count: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Yield `count` updates shaped like the import graph of many packages: sizes, files, and values derived from
    these."""
    rng = random.Random(seed)
    names: list[str] = []
    rows: list[dict[str, Any]] = [{"op": "set", "id": "floor", "value": -1}]
    while len(rows) < count:
        package = f"{rng.choice(WORDS)}_{len(names) // 400}"
        name = f"{package}.{rng.choice(WORDS)}.{rng.choice(WORDS)}_{len(names)}"
        near = names[-2000:]
        imports = rng.sample(near, min(len(near), int(rng.expovariate(1 / 3))))
        names.append(name)
        depths = ["floor", *(f"depth/{one}" for one in imports)]
        rows += [
            {"op": "set", "id": f"size/{name}", "value": rng.randrange(100, 100_000)},
            {"op": "set", "id": f"file/{name}", "value": f"site-packages/{name.replace('.', '/')}.py"},
            {"op": "set", "id": f"weight/{name}", "value": round(rng.random() * 10, 3)},
            derive(f"bytes/{name}", "sum", of=[f"size/{name}", *(f"size/{one}" for one in imports)]),
            derive(f"imports/{name}", "count", of=[f"size/{one}" for one in imports]),
            derive(f"below/{name}", "max", of=depths),
            derive(f"depth/{name}", "cel", {"expr": "below + 1"}, below=f"below/{name}"),
            derive(f"cost/{name}", "product", of=[f"bytes/{name}", f"weight/{name}"]),
        ]
    yield from rows[:count]


def derive(id_: str, function: str, params: dict[str, Any] | None = None, **inputs: Any) -> dict[str, Any]:
    return {"op": "derive", "id": id_, "function": function, "inputs": inputs, "params": params or {}}


def read(data: bytes) -> list[EncodedBatch]:
    """Return the batches that `rebaser enqueue --file` makes of a file."""
    reader = BatchBuilder(JsonLinesParser(check=partial(check_definition, formulas=True)), BATCH, BATCH_BYTES)
    batches: list[EncodedBatch] = []
    with collector_paused():
        for start in range(0, len(data), CHUNK):
            batches += reader.feed(data[start : start + CHUNK])
        batches += reader.finish()
    return batches


def receive(batches: list[EncodedBatch]) -> list[tuple[Update, ...]]:
    """Return the updates of requests as a server reads them."""
    deltas = []
    for batch in batches:
        updates = decode_updates_blob(batch.updates.blob)
        digest_of(updates, None, None)
        check_definitions(updates)
        deltas.append(updates)
    return deltas


def fold(deltas: list[tuple[Update, ...]], *, beside: bool = False) -> ChangeSetState:
    state = ChangeSetState()
    for delta in deltas:
        view = state.view() if beside else None
        state.fold(state.last + 1, Commit("", state.last, Kind.REBASE, 0, "", None, None, delta=delta))
        if view is not None:
            view.close()
            while state.merge_overlay(500):
                pass
    return state


def show(state: ChangeSetState) -> str:
    with redirect_stdout(io.StringIO()) as out, collector_paused():
        _show_values(state, None, True, False)
    return out.getvalue()


def measure(count: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return, by stage, the microseconds of processor time for each update, and the ratio to the floor."""
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines(count))
    texts = data.splitlines()
    batches = read(data)
    deltas = receive(batches)
    state = fold(deltas)
    if sum(map(len, deltas)) != count or show(state).count("\n") != len(state.cells):
        raise SystemExit("updates or values are missing")
    stages: dict[str, Callable[[], object]] = {
        "floor": lambda: [json.loads(text) for text in texts],
        "file": lambda: read(data),
        "request": lambda: receive(batches),
        "fold": lambda: fold(deltas),
        "beside": lambda: fold(deltas, beside=True),
        "load": lambda: fold([decode_updates_blob(batch.updates.blob) for batch in batches]),
        "get": lambda: show(state),
    }
    times: dict[str, list[float]] = {name: [] for name in stages}
    for _ in range(rounds):
        for name, stage in stages.items():
            begun = time.process_time()
            stage()
            times[name].append((time.process_time() - begun) / count * 1e6)
    medians = {name: statistics.median(some) for name, some in times.items()}
    return {name: {"us": round(us, 2), "ratio": round(us / medians["floor"], 2)} for name, us in medians.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=244_564)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.updates, options.rounds)
    if options.json:
        json.dump(found, sys.stdout)
        return
    for name, row in found.items():
        print(f"{name:8} {row['us']:>8} µs/update   {row['ratio']} times the floor")


if __name__ == "__main__":
    main()

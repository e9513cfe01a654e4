"""Measures the cost of history: the same requests go to a server that keeps history, and to one that does not.

    python -m tests.benchmarks.history_price [--seconds 3] [--rounds 5] [--loads 20] [--json]

Both servers run side by side, each with streams of its own, and are measured in turn. `one` and `many` send requests
that overwrite one value, one and 64 at a time; `new` sends requests that each define a new value. `log bytes` are bytes
in the stream of commits for each commit that replaces a value (`overwrite`) or defines a new value (`define`), sent one
at a time. `load` is the processor time, in ms, of a reader that loads a change set of 300 such commits. `memory` is the
number of bytes for each value in a state that say which commit defined it; they are needed without history, too.

A ratio is the figure of the server with history divided by that of the server without; ratios are medians over the
rounds. Aims: requests/s at least 0.95; log bytes at most 1.5 when values are replaced and 1.0 when they are new; `load`
at most 1.05; `memory` 8 bytes, and as a reserve for new values at most as many again.
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.commit import Commit, Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.streams.subjects import Subjects
from tests.benchmarks.requests import NO_SPARK, phases, process, wait_for_server
from tests.support.checkpoints import restored

COMMITS = 300  # commits in the log whose size and load are measured
HISTORY = {"kept": "604800", "none": "0"}
Edit = Callable[[int], Set]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, dict[str, list[float]]] = {}

    def note(figure: str, name: str, value: float) -> None:
        found.setdefault(figure, {which: [] for which in HISTORY})[name].append(value)

    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats:
            given = ("-m", "rebaser", "serve", "--nats", nats.url, "--spark", NO_SPARK, "--log-level", "error")
            with (
                process(*given, "--prefix", "kept", REBASER_HISTORY_FOR=HISTORY["kept"]) as kept,
                process(*given, "--prefix", "none", REBASER_HISTORY_FOR=HISTORY["none"]) as none,
            ):
                servers = {"kept": kept.pid, "none": none.pid}
                for name in HISTORY:
                    await wait_for_server(nats.url, warm=False, prefix=name)
                for number in range(options.rounds):
                    for name in sorted(HISTORY, reverse=bool(number % 2)):
                        pids = {"client": os.getpid(), "nats": nats.pid, "server": servers[name]}
                        for figure, value in (await rates(nats.url, name, options, pids)).items():
                            note(figure, name, value)
                for name in HISTORY:
                    for what, value in (await log_bytes(nats.url, name)).items():
                        note(f"log bytes {what}", name, value)
                for number in range(options.loads):
                    for name in sorted(HISTORY, reverse=bool(number % 2)):
                        note("load", name, await load(nats.url, name))
    return summary(found) | {"memory": {"bytes": memory(options.values)}}


def memory(values: int) -> float:
    """Return the bytes for each of `values` values, in a state that was loaded from a checkpoint."""
    state = ChangeSetState()
    delta = tuple([Set(f"v/{at}", at) for at in range(values)])
    state.fold(1, Commit("c", 0, Kind.REBASE, 1, "bench", None, None, delta=delta))
    columns = restored(state).cells.columns
    assert columns.edited[: columns.count].tolist() == [1] * values
    return columns.edited.nbytes / values


async def rates(url: str, name: str, options: argparse.Namespace, pids: dict[str, int]) -> dict[str, float]:
    """Return, for each phase, the requests per second, and the server's processor time in µs for each request."""
    counter = itertools.count()
    out: dict[str, float] = {}
    async with RebaserClient.connect(url, prefix=name) as client:

        async def send(key: str, edit: Edit) -> int:
            await client.enqueue_updates_with_reply("price", key, [edit(next(counter))], timeout=30)
            return 0

        async def overwrite(key: str) -> int:
            return await send(key, lambda number: Set("n", number))

        async def define(key: str) -> int:
            return await send(key, lambda number: Set(f"v/{number}", number))

        options.phases, options.keys, options.in_flight = ["one", "many"], 1, 64
        results = await phases(overwrite, options, name, pids)
        options.phases = ["many"]
        results["new"] = (await phases(define, options, name, pids))["many"]
    for phase, figures in results.items():
        for figure in ("per_s", "cpu_server"):
            out[f"{phase} {figure}"] = figures[figure]
    return out


async def log_bytes(url: str, name: str) -> dict[str, float]:
    """Return the bytes in the stream of commits for each commit: `overwrite` and `define`."""
    edits: dict[str, Edit] = {"overwrite": lambda at: Set("n", at), "define": lambda at: Set(f"v/{at:06}", at)}
    out: dict[str, float] = {}
    async with (
        RebaserClient.connect(url, prefix=name) as client,
        Connection.connect(url) as connection,
    ):
        js, stream = JetStream(connection), Subjects(name).commits_stream
        for what, edit in edits.items():
            await client.enqueue_updates_with_reply("price", what, [edit(0)], timeout=30)
            before = (await js.stream_info(stream)).bytes
            for at in range(1, COMMITS):
                await client.enqueue_updates_with_reply("price", what, [edit(at)], timeout=30)
            out[what] = ((await js.stream_info(stream)).bytes - before) / (COMMITS - 1)
    return out


async def load(url: str, name: str) -> float:
    """Return the processor time in ms to load the change set whose commits overwrite one value."""
    async with RebaserClient.connect(url, prefix=name) as client:
        started = time.process_time()
        await client.state("price", "overwrite")
        return (time.process_time() - started) * 1000


def summary(found: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Return, for each figure, the medians of both servers, and the median of the ratios of pairs."""
    return {
        figure: {
            **{name: round(statistics.median(values), 2) for name, values in row.items()},
            # In a short run, a server may have used less processor time than the system can tell.
            "ratio": round(
                statistics.median(a / max(b, 0.01) for a, b in zip(row["kept"], row["none"], strict=True)), 3
            ),
        }
        for figure, row in found.items()
    }


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--seconds", type=float, default=3.0)
    out.add_argument("--rounds", type=int, default=5)
    out.add_argument("--loads", type=int, default=20)
    out.add_argument("--values", type=int, default=1_000_000)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    options = parser().parse_args()
    found = uvloop.run(measure(options))
    if options.json:
        print(json.dumps(found))
    else:
        for name, row in found.items():
            print(f"{name:20}" + "  ".join(f"{key} {value:10g}" for key, value in row.items()))


if __name__ == "__main__":
    main()

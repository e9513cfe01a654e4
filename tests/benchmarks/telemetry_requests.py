"""Measures what metrics and traces cost requests: throughput with both and with neither, in turn, in one run.

    python -m tests.benchmarks.telemetry_requests [--phases one,many,keys] [--seconds 3] [--rounds 20] [--json]

One server decides the requests of `tests.benchmarks.requests`, with a real nats-server. SIGUSR1 makes it switch metrics
and traces off or on between the rounds, so both kinds of rounds have the same owners and the same processes. In rounds
with both, 1 % of the requests, but at most 20 a second, are recorded and sent to a collector, and the server answers a
scrape every 15 s and two probes every 10 s. `ratio` is the median over the rounds of requests/s with both to those with
neither, with an interval of 95 % (bootstrap). Aim: at least 0.98. `cpu_server` is the processor time in µs for each
request.

`tests.benchmarks.telemetry` compares the processor time of the owners alone, which a request that also passes through a
client and through NATS does not notice in full.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import anyio
import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from tests.benchmarks.requests import NO_SPARK, phases, process, wait_for_server
from tests.benchmarks.switched import Switch
from tests.benchmarks.telemetry import ACCEPT, ASKED, collector

T = TypeVar("T")

BOTH, NEITHER = "both", "neither"
MODULE = "tests.benchmarks.telemetry_requests"
RATIO = "0.01"
SAMPLES = 1000


def serve(arguments: list[str]) -> None:
    """Run `rebaser serve`, and switch metrics and traces at each SIGUSR1. They are on at the start."""
    from rebaser.cli import main as rebaser

    on = True
    with Switch() as switch:

        def toggle(*_: object) -> None:
            nonlocal on
            on = not on
            switch.set(metrics=on, traces=on)

        signal.signal(signal.SIGUSR1, toggle)
        sys.argv = ["rebaser", "serve", *arguments]
        rebaser()


def read(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": ACCEPT}), timeout=10) as answer:
        answer.read()


async def watched(on: bool, options: argparse.Namespace, running: Awaitable[T]) -> T:
    """Return the result of `running`. Meanwhile, if `on` is true, read the metrics and ask both probes as often as a
    system with monitoring does, on average."""

    async def ask(path: str, every: float) -> None:
        await anyio.sleep(random.uniform(0, every))
        while True:
            await anyio.to_thread.run_sync(read, f"http://127.0.0.1:{options.port}/{path}")
            await anyio.sleep(every)

    async with anyio.create_task_group() as group:
        for path, every in ASKED.items() if on else ():
            group.start_soon(ask, path, every)
        result = await running
        group.cancel_scope.cancel()
    return result


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[Mapping[str, Any]]] = {BOTH: [], NEITHER: []}
    with tempfile.TemporaryDirectory() as folder, collector() as spans_to:
        async with embedded_nats(Path(folder)) as nats:
            arguments = ("--nats", nats.url, "--spark", NO_SPARK, "--log-level", "error")
            variables = {
                "REBASER_CONCURRENCY": "10000",
                "REBASER_QUIESCENT_PERIOD": "600",
                "REBASER_HTTP": f"127.0.0.1:{options.port}",
                "REBASER_TRACE_RATIO": RATIO,
                "OTEL_EXPORTER_OTLP_ENDPOINT": spans_to,
            }
            with process("-m", MODULE, "serve", *arguments, **variables) as server:
                await wait_for_server(nats.url, warm=False)
                pids = {"client": os.getpid(), "nats": nats.pid, "server": server.pid}
                on = True
                async with RebaserClient.connect(nats.url) as client:

                    async def call(key: str) -> int:
                        await client.enqueue_updates_with_reply("bench", key, [Set("n", 1)], timeout=30)
                        return 0

                    for number in range(options.rounds):
                        for way in ((BOTH, NEITHER), (NEITHER, BOTH))[number % 2]:
                            if on is not (way == BOTH):
                                os.kill(server.pid, signal.SIGUSR1)
                                on = not on
                            found[way].append(await watched(on, options, phases(call, options, "requests", pids)))
    return {phase: summary(found, phase) for phase in options.phases}


def summary(found: Mapping[str, list[Mapping[str, Any]]], phase: str) -> dict[str, Any]:
    pairs = [(one[phase], other[phase]) for one, other in zip(found[BOTH], found[NEITHER], strict=True)]
    ratios = [one["per_s"] / other["per_s"] for one, other in pairs]
    drawn = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(SAMPLES))
    table: dict[str, Any] = {
        f"{figure} {way}": round(statistics.median(pair[number][figure] for pair in pairs), 3)
        for figure in ("per_s", "p50_ms", "cpu_server")
        for number, way in enumerate((BOTH, NEITHER))
    }
    interval = [round(drawn[int(SAMPLES * part)], 3) for part in (0.025, 0.975)]
    return table | {"ratio": round(statistics.median(ratios), 3), "interval": interval}


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--phases", type=lambda text: text.split(","), default=["one", "many", "keys"])
    out.add_argument("--in-flight", type=int, default=64)
    out.add_argument("--keys", type=int, default=1000)
    out.add_argument("--seconds", type=float, default=3.0)
    out.add_argument("--rounds", type=int, default=20)
    out.add_argument("--port", type=int, default=18421)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2:])
        return
    options = parser().parse_args()
    found = uvloop.run(measure(options))
    if options.json:
        print(json.dumps(found))
        return
    for phase, row in found.items():
        print(f"{phase:6}" + "  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()

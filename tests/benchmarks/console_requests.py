"""Measures what a console with a viewer costs requests: throughput with it and without it, in turn, in one run.

    python -m tests.benchmarks.console_requests [--phases many,keys] [--keys 1000] [--seconds 5] [--rounds 5] [--json]

One server decides the requests of `tests.benchmarks.requests`. In half of the rounds, a `rebaser console` runs beside
it, with one viewer of the overview and one of the table of change sets. `ratio` is the median over the rounds of
requests/s with the console to those without it. Aim: at least 0.97. `cpu_server`, `cpu_nats` and `cpu_console` are the
processor times in µs for each request, and `cpu` is their sum with that of the client. On a machine that is busy with
other work, the ratio of `cpu` says more than that of `per_s`. `console` is the share of a core that the console took.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from tests.benchmarks.console import running_console
from tests.benchmarks.requests import NO_SPARK, phases, process, used, wait_for_server

WAYS = ("with", "without")
VIEWED = ("/overview", "/change-sets")


async def round_of(way: str, url: str, options: argparse.Namespace, pids: dict[str, int]) -> tuple[Any, float]:
    """Run the phases once. Return their figures, and the share of a core that a console took."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(RebaserClient.connect(url))
        console = None
        if way == "with":
            console = await stack.enter_async_context(running_console(url, options.port))
            group = await stack.enter_async_context(anyio.create_task_group())
            for path in VIEWED:
                states = await stack.enter_async_context(console.live(path))
                await anext(states)

                async def watch(states: Any = states) -> None:
                    async for _ in states:
                        pass

                group.start_soon(watch)
            stack.callback(group.cancel_scope.cancel)

        async def call(key: str) -> int:
            await client.enqueue_updates_with_reply("bench", key, [Set("n", 1)], timeout=30)
            return 0

        before, began = (used(console.pid) if console else 0.0), time.perf_counter()
        found = await phases(call, options, "requests", pids | ({"console": console.pid} if console else {}))
        for figures in found.values():
            figures.setdefault("cpu_console", 0.0)
            figures["cpu"] = sum(figures[f"cpu_{who}"] for who in (*pids, "console"))
        took = (used(console.pid) - before if console else 0.0) / (time.perf_counter() - began)
        return found, took


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[Any]] = {way: [] for way in WAYS}
    took: list[float] = []
    slots = {"REBASER_CONCURRENCY": "10000", "REBASER_QUIESCENT_PERIOD": "600"}
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats:
            serve = ("-m", "rebaser", "serve", "--nats", nats.url, "--spark", NO_SPARK, "--log-level", "error")
            with process(*serve, **slots) as server:
                await wait_for_server(nats.url, warm=False)
                pids = {"client": os.getpid(), "nats": nats.pid, "server": server.pid}
                for number in range(options.rounds):
                    for way in (WAYS, WAYS[::-1])[number % 2]:
                        figures, share = await round_of(way, nats.url, options, pids)
                        found[way].append(figures)
                        took += [share] if way == "with" else []
    return summary(found, options.phases) | {"console": round(statistics.median(took), 4)}


def summary(found: dict[str, list[Any]], names: list[str]) -> dict[str, Any]:
    """Return the medians for each phase, and the median of the rounds' ratios."""
    table: dict[str, Any] = {}
    for phase in names:
        pairs = [(one[phase], other[phase]) for one, other in zip(found["with"], found["without"], strict=True)]
        for figure in ("per_s", "p50_ms", "cpu", "cpu_server", "cpu_nats", "cpu_console"):
            table[f"{phase} {figure}"] = {
                "with": round(statistics.median(one[figure] for one, _ in pairs), 3),
                "without": round(statistics.median(other[figure] for _, other in pairs), 3),
                "ratio": round(statistics.median(one[figure] / (other[figure] or 1) for one, other in pairs), 3),
            }
    return table


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--phases", type=lambda text: text.split(","), default=["many", "keys"])
    out.add_argument("--in-flight", type=int, default=64)
    out.add_argument("--keys", type=int, default=1000)
    out.add_argument("--seconds", type=float, default=5.0)
    out.add_argument("--rounds", type=int, default=5)
    out.add_argument("--port", type=int, default=18420)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    options = parser().parse_args()
    found = uvloop.run(measure(options))
    if options.json:
        print(json.dumps(found))
        return
    for name, row in found.items():
        figures = row if isinstance(row, dict) else {"share of a core": row}
        print(f"{name:16}" + "  ".join(f"{key} {value:10g}" for key, value in figures.items()))


if __name__ == "__main__":
    main()

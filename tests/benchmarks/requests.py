"""Requests through Rebaser beside the floor, in one run on one machine: reply latency and throughput, as ratios.

    python -m tests.benchmarks.requests [--seconds 3] [--rounds 3] [--json]

Phases, closed loop, each after a warm-up, floor and Rebaser in turn: `one` - one change set, one request in flight;
`many` - one change set, 64 in flight. Aim: p50 of `one` within 2 times the floor's, requests/s of `many` at least half.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from tests.benchmarks import floor

IN_FLIGHT = 64
Call = Callable[[str], Awaitable[int]]


async def closed_loop(call: Call, key: str, in_flight: int, seconds: float) -> dict[str, float]:
    """`in_flight` callers, each one call after the other, for `seconds`."""
    latencies: list[float] = []
    started = time.perf_counter()

    async def caller() -> None:
        while time.perf_counter() - started < seconds:
            begun = time.perf_counter()
            await call(key)
            latencies.append(time.perf_counter() - begun)

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    wall = time.perf_counter() - started
    latencies.sort()
    return {
        "requests": len(latencies),
        "per_s": round(len(latencies) / wall, 1),
        "p50_ms": round(statistics.median(latencies) * 1000, 3),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1000, 3),
    }


async def phases(call: Call, seconds: float, name: str) -> dict[str, dict[str, float]]:
    out = {}
    for phase, in_flight in (("one", 1), ("many", IN_FLIGHT)):
        key = f"{name}-{phase}-{os.getpid()}-{time.monotonic_ns()}"
        await closed_loop(call, key, in_flight, min(1.0, seconds / 3))
        out[phase] = await closed_loop(call, key, in_flight, seconds)
    return out


async def run_floor(url: str, seconds: float) -> dict[str, dict[str, float]]:
    async def drive(call: Call) -> Any:
        return await phases(call, seconds, "floor")

    return await floor.load(url, drive)  # type: ignore[no-any-return]


async def run_rebaser(url: str, seconds: float) -> dict[str, dict[str, float]]:
    counts: dict[str, int] = {}
    async with RebaserClient.connect(url) as client:

        async def call(key: str) -> int:
            counts[key] = counts.get(key, 0) + 1
            await client.enqueue_updates_with_reply("bench", key, [Set("n", 1)], timeout=30)
            return counts[key]

        out = await phases(call, seconds, "rebaser")
        for key, count in counts.items():
            state = await client.state("bench", key)
            if len(state.outcomes) != count or state.values()["n"].value != 1:
                raise SystemExit(f"not exact: {len(state.outcomes)} of {count} requests are in the log of {key}")
    return out


@contextmanager
def process(*argv: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL, env={**os.environ, **environment})
    try:
        yield child
    finally:
        child.terminate()
        child.wait(30)


async def measure(seconds: float, rounds: int, *, warm: bool = True) -> dict[str, Any]:
    """Run both `rounds` times in turn. `warm`: let Spark start first, so that its start-up is nobody's latency."""
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats_server:
            url = nats_server.url
            serve = ("-m", "rebaser", "serve", "--nats", url, "--quiescent-period", "60")
            results: dict[str, list[dict[str, dict[str, float]]]] = {"floor": [], "rebaser": []}
            with process("-m", "tests.benchmarks.floor", "serve", url), process(*serve):
                await wait_for_server(url, warm)
                for _ in range(rounds):
                    results["floor"].append(await run_floor(url, seconds))
                    results["rebaser"].append(await run_rebaser(url, seconds))
    return summary(results)


async def wait_for_server(url: str, warm: bool) -> None:
    """Return when the server takes requests (and its Spark is `warm`). A ping waits for nobody, so it is sent again."""
    async with RebaserClient.connect(url) as client:
        while True:
            servers = (await client.status()).servers
            if servers and (not warm or servers[0].dvu == "ready"):
                return
            await asyncio.sleep(0.2)


def summary(results: dict[str, list[dict[str, dict[str, float]]]]) -> dict[str, Any]:
    def middle(who: str, phase: str, figure: str) -> float:
        return statistics.median(one[phase][figure] for one in results[who])

    table = {
        who: {
            phase: {figure: middle(who, phase, figure) for figure in ("per_s", "p50_ms", "p99_ms")}
            for phase in ("one", "many")
        }
        for who in results
    }
    return {
        **table,
        "p50_ratio": round(table["rebaser"]["one"]["p50_ms"] / table["floor"]["one"]["p50_ms"], 2),
        "throughput_ratio": round(table["rebaser"]["many"]["per_s"] / table["floor"]["many"]["per_s"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = uvloop.run(measure(options.seconds, options.rounds))
    if options.json:
        print(json.dumps(found))
        return
    for who in ("floor", "rebaser"):
        for phase, row in found[who].items():
            print(f"{who:8} {phase:5} {row['per_s']:>9} requests/s   p50 {row['p50_ms']} ms   p99 {row['p99_ms']} ms")
    print(f"p50 {found['p50_ratio']} times the floor's; throughput {found['throughput_ratio']} of the floor's")


if __name__ == "__main__":
    main()

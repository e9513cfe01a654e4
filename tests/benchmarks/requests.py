"""Compares requests through Rebaser with the floor and the skeleton, in one run on one machine: latency, throughput and
processor time.

    python -m tests.benchmarks.requests [--phases one,many,keys,cold] [--keys 1000] [--in-flight 64] [--durability safe]
                                        [--seconds 3] [--rounds 3] [--json]

The floor (`floor.py`) is a bare nats-py program. The skeleton (`skeleton.py`) sends the messages that Rebaser sends,
without any logic, so its ratio to the floor is the most that the design allows.

Each caller waits for an answer before its next request. After a warm-up, each phase measures the three in turn:

- `one`: one change set, one request in flight. Aim: p50 at most 1.4 times the floor's.
- `many`: one change set, `--in-flight` requests in flight. Aim: at least 0.65 of the floor's requests/s.
- `keys`: `--keys` change sets at random, all owned before, `--in-flight` requests in flight. Aim: at least half of the
  floor's.
- `cold`: the first request of each of `COLD` change sets, one after the other. Aim: p50 at most 1.8 times the floor's.

With `--durability safe`, nats-server syncs each write to disk, for all three. Aim: in `keys`, as many requests as the
floor.

`cpu` is processor time in µs for each request, of the client, of the server (for the floor: its worker) and of
nats-server. On a busy machine it says more than the clock. Spark is not started, because no request here needs it.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from tests.benchmarks import floor, skeleton

PHASES = ("one", "many", "keys", "cold")
COLD = 100  # change sets in the phase `cold`
FIGURES = ("per_s", "p50_ms", "p99_ms", "cpu_client", "cpu_server", "cpu_nats")
NO_SPARK = "sc://127.0.0.1:9"
TICK = os.sysconf("SC_CLK_TCK")
Call = Callable[[str], Awaitable[int]]
Pids = Mapping[str, int]
Results = dict[str, dict[str, float]]


def random_keys(keys: Sequence[str], seconds: float) -> Iterator[str]:
    """Yield random ones of `keys`, for `seconds`."""
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        yield random.choice(keys)


async def closed_loop(call: Call, keys: Iterator[str], in_flight: int) -> dict[str, float]:
    """Run `in_flight` callers. Each makes one call after the other, for the next one of `keys`."""
    latencies: list[float] = []
    started = time.perf_counter()

    async def caller() -> None:
        for key in keys:
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


async def phases(call: Call, options: argparse.Namespace, name: str, pids: Pids) -> Results:
    out = {}
    for phase in options.phases:
        key = f"{name}-{phase}-{os.getpid()}-{time.monotonic_ns()}"
        # Each round has the same number of keys, so that the server does not own more change sets from round to round.
        keys = [f"{name}-{number}" for number in range(options.keys)] if phase == "keys" else [key]
        in_flight = 1 if phase in ("one", "cold") else options.in_flight
        await closed_loop(call, iter(keys), 64)  # the first request of each
        await closed_loop(call, random_keys(keys, min(1.0, options.seconds / 3)), in_flight)
        before = {who: used(pid) for who, pid in pids.items()}
        cold = (f"{key}-{number}" for number in range(COLD))
        called = cold if phase == "cold" else random_keys(keys, options.seconds)
        out[phase] = await closed_loop(call, called, in_flight)
        for who, pid in pids.items():
            out[phase][f"cpu_{who}"] = round(1e6 * (used(pid) - before[who]) / out[phase]["requests"], 1)
    return out


def used(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


async def run_floor(url: str, options: argparse.Namespace, pids: Pids) -> Results:
    async def drive(call: Call) -> Any:
        return await phases(call, options, "floor", pids)

    return await floor.load(url, drive)  # type: ignore[no-any-return]


async def run_skeleton(url: str, options: argparse.Namespace, pids: Pids) -> Results:
    async def drive(call: Call) -> Any:
        return await phases(call, options, "skeleton", pids)

    return await skeleton.load(url, drive)  # type: ignore[no-any-return]


async def run_rebaser(url: str, options: argparse.Namespace, pids: Pids, counts: Counter[str]) -> Results:
    """Measure Rebaser. `counts` has the number of requests of each change set, those of earlier rounds included."""
    async with RebaserClient.connect(url) as client:

        async def call(key: str) -> int:
            counts[key] += 1
            await client.enqueue_updates_with_reply("bench", key, [Set("n", 1)], timeout=30)
            return counts[key]

        return await phases(call, options, "rebaser", pids)


async def check(url: str, counts: Counter[str]) -> None:
    """End with an error unless each change set has decided each of its requests once."""
    async with RebaserClient.connect(url) as client:
        for key, count in counts.items():
            state = await client.state("bench", key)
            if len(state.outcomes) != count or state.values()["n"].value != 1:
                raise SystemExit(f"{len(state.outcomes)} of {count} requests are in the log of {key}")


@contextmanager
def process(*argv: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL, env={**os.environ, **environment})
    try:
        yield child
    finally:
        child.terminate()
        child.wait(30)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the floor, the skeleton and Rebaser in turn, `--rounds` times."""
    counts = Counter[str]()
    results: dict[str, list[Results]] = {"floor": [], "skeleton": [], "rebaser": []}
    with tempfile.TemporaryDirectory() as folder:
        sync_interval = "always" if options.durability == "safe" else None
        async with embedded_nats(Path(folder), sync_interval=sync_interval) as nats:
            serve = ["-m", "rebaser", "serve", "--nats", nats.url, "--spark", NO_SPARK, "--log-level", "error"]
            serve += ["--durability", options.durability]
            slots = {"REBASER_CONCURRENCY": "10000", "REBASER_QUIESCENT_PERIOD": "600"}
            with (
                process("-m", "tests.benchmarks.floor", "serve", nats.url) as worker,
                process("-m", "tests.benchmarks.skeleton", "serve", nats.url) as bare,
                process(*serve, **slots) as server,
            ):
                await wait_for_server(nats.url, warm=False)
                pids = {"client": os.getpid(), "nats": nats.pid}
                for _ in range(options.rounds):
                    results["floor"].append(await run_floor(nats.url, options, {**pids, "server": worker.pid}))
                    results["skeleton"].append(await run_skeleton(nats.url, options, {**pids, "server": bare.pid}))
                    results["rebaser"].append(
                        await run_rebaser(nats.url, options, {**pids, "server": server.pid}, counts)
                    )
                await check(nats.url, counts)
    return summary(results)


async def wait_for_server(url: str, warm: bool, prefix: str = "") -> None:
    """Return when the server accepts requests, and its Spark is ready if `warm`. A ping to a server that has not
    started is lost, so it is repeated."""
    async with RebaserClient.connect(url, prefix=prefix) as client:
        while True:
            servers = (await client.status()).servers
            if servers and (not warm or servers[0].dvu == "ready"):
                return
            await asyncio.sleep(0.2)


def summary(results: dict[str, list[Results]]) -> dict[str, Any]:
    """Return medians over the rounds, and the ratios of the skeleton's and Rebaser's to the floor's."""
    table = {
        who: {
            phase: {figure: round(statistics.median(one[phase][figure] for one in rounds), 3) for figure in FIGURES}
            for phase in rounds[0]
        }
        for who, rounds in results.items()
    }
    out: dict[str, Any] = {**table, "p50_ratio": {}, "throughput_ratio": {}}
    for who in ("skeleton", "rebaser"):
        rows = {phase: (table[who][phase], least) for phase, least in table["floor"].items()}
        out["p50_ratio"][who] = {
            phase: round(row["p50_ms"] / least["p50_ms"], 2) for phase, (row, least) in rows.items()
        }
        out["throughput_ratio"][who] = {
            phase: round(row["per_s"] / least["per_s"], 2) for phase, (row, least) in rows.items()
        }
    return out


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--phases", type=lambda text: text.split(","), default=list(PHASES))
    out.add_argument("--keys", type=int, default=1000)
    out.add_argument("--in-flight", type=int, default=64)
    out.add_argument("--durability", choices=("fast", "safe"), default="fast")
    out.add_argument("--seconds", type=float, default=3.0)
    out.add_argument("--rounds", type=int, default=3)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    options = parser().parse_args()
    found = uvloop.run(measure(options))
    if options.json:
        print(json.dumps(found))
        return
    for who in ("floor", "skeleton", "rebaser"):
        for phase, row in found[who].items():
            print(f"{who:8} {phase:5} " + "  ".join(f"{figure} {value:8g}" for figure, value in row.items()))
    for who in ("skeleton", "rebaser"):
        p50, throughput = found["p50_ratio"][who], found["throughput_ratio"][who]
        print(f"{who:8} p50, times the floor's: {p50}; requests/s, of the floor's: {throughput}")


if __name__ == "__main__":
    main()

"""Measures what a change set gets from a server while another change set is flooded with requests.

    python -m tests.benchmarks.fairness [--seconds 3] [--rounds 3] [--in-flight 64] [--flood 64] [--backlog 20000]

The flood comes from a process of its own. Each caller waits for an answer before its next request. The phases, after a
warm-up:

- `alone`, `beside`: the victim with one request in flight, without and with the flood.
- `share`: the victim with `--in-flight` requests; the figure is its share of all applied requests. The fair share is a
  half, whatever the flood has in flight.
- `backlog`: the victim with one request in flight, beside a queue that is filled without waiting for answers.

The latency during a flood also depends on the machine, which runs four processes. The order of the server's work is in
the log: `meanwhile` is the number of the flood's requests that were applied while a request of the victim waited. Two
turns have 64 requests.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser_client import Commit, RebaserClient, Set
from rebaser_core.ids import ulid
from tests.benchmarks.requests import closed_loop, process, random_keys, wait_for_server

NO_SPARK = "sc://127.0.0.1:1"  # no Spark, because nothing is derived


async def flood(url: str, key: str, in_flight: int) -> None:
    """Send requests until standard input ends. For each line on it, print the number of answered requests, which is at
    least 1."""
    answered, some = 0, asyncio.Event()
    async with RebaserClient.connect(url) as client:

        async def caller() -> None:
            nonlocal answered
            while True:
                await client.enqueue_updates_with_reply("bench", key, [Set("n", answered)])
                answered += 1
                some.set()

        callers = [asyncio.create_task(caller()) for _ in range(in_flight)]
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            await some.wait()
            print(answered, flush=True)
        for one in callers:
            one.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


class Flood:
    """A flood in a process of its own."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child

    async def count(self) -> int:
        """Return how many requests have been answered so far."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(b"\n")
        return int(await self._child.stdout.readline())


@asynccontextmanager
async def flooding(url: str, key: str, in_flight: int) -> AsyncIterator[Flood]:
    """Start a flood, and yield it when it runs. At the end, wait for its last answers."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.benchmarks.fairness", "flood", url, key, str(in_flight)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    running = Flood(child)
    try:
        await running.count()
        yield running
    finally:
        assert child.stdin is not None
        child.stdin.close()
        await child.wait()


async def fill(client: RebaserClient, key: str, count: int) -> None:
    """Queue `count` requests without waiting for answers."""
    todo = iter(range(count))

    async def caller() -> None:
        for number in todo:
            await client.enqueue_updates("bench", key, [Set("n", number)])

    await asyncio.gather(*(caller() for _ in range(64)))


async def one_round(url: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    out: dict[str, dict[str, float]] = {}
    name = f"{os.getpid()}-{time.monotonic_ns()}"
    async with RebaserClient.connect(url) as client:
        sent: dict[str, int] = {}  # request id -> Unix time in nanoseconds

        async def call(key: str) -> int:
            request_id = ulid(time.time_ns() // 1_000_000, os.urandom(10))
            sent[request_id] = time.time_ns()
            await client.enqueue_updates_with_reply("bench", key, [Set("n", 1)], request_id=request_id)
            return 0

        await closed_loop(call, random_keys([f"alone-{name}"], min(1.0, options.seconds / 3)), 1)
        out["alone"] = await closed_loop(call, random_keys([f"alone-{name}"], options.seconds), 1)
        async with flooding(url, f"flood-{name}", options.flood) as running:
            out["beside"] = await closed_loop(call, random_keys([f"beside-{name}"], options.seconds), 1)
            before = await running.count()
            out["share"] = await closed_loop(call, random_keys([f"share-{name}"], options.seconds), options.in_flight)
            other = await running.count() - before
        out["beside"] |= await meanwhile(client, sent, f"beside-{name}", f"flood-{name}")
        out["share"]["share"] = round(out["share"]["requests"] / (out["share"]["requests"] + other), 3)
        if options.backlog:
            filling = asyncio.create_task(fill(client, f"filled-{name}", options.backlog))
            try:
                out["backlog"] = await closed_loop(call, random_keys([f"backlog-{name}"], options.seconds), 1)
            finally:
                await filling
            await call(f"filled-{name}")  # answered after all earlier requests
            out["backlog"] |= await meanwhile(client, sent, f"backlog-{name}", f"filled-{name}")
    return out


async def meanwhile(client: RebaserClient, sent: dict[str, int], victim: str, flood: str) -> dict[str, float]:
    """Return how many requests of `flood` were applied between the sending and the applying of a request of
    `victim`."""
    times: list[int] = []  # when each request of the flood was applied
    async for entry in client.entries("commits", "bench", flood):
        assert isinstance(entry.content, Commit)
        times += [entry.time_ns] * len(entry.content.requests)
    counts: list[int] = []
    async for entry in client.entries("commits", "bench", victim):
        assert isinstance(entry.content, Commit)
        before = bisect_left(times, entry.time_ns)
        counts += [before - bisect_right(times, sent[request.request_id]) for request in entry.content.requests]
    return {"meanwhile_p50": statistics.median(counts), "meanwhile_max": max(counts)}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats:
            serve = ("-m", "rebaser", "serve", "--nats", nats.url, "--spark", NO_SPARK, "--log-level", "error")
            # No checkpoint may be written, because the log would be purged before it is read.
            with process(*serve, REBASER_CHECKPOINT_BYTES=str(2**40)):
                await wait_for_server(nats.url, warm=False)
                rounds = [await one_round(nats.url, options) for _ in range(options.rounds)]
    return summary(rounds)


def summary(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    table = {
        phase: {figure: statistics.median(one[phase][figure] for one in rounds) for figure in rounds[0][phase]}
        for phase in rounds[0]
    }
    return {**table, "p50_ratio": round(table["beside"]["p50_ms"] / table["alone"]["p50_ms"], 2)}


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--seconds", type=float, default=3.0)
    out.add_argument("--rounds", type=int, default=3)
    out.add_argument("--in-flight", type=int, default=64)
    out.add_argument("--flood", type=int, default=64)
    out.add_argument("--backlog", type=int, default=20_000)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    if sys.argv[1:2] == ["flood"]:
        url, key, in_flight = sys.argv[2:]
        uvloop.run(flood(url, key, int(in_flight)))
        return
    options = parser().parse_args()
    found = uvloop.run(measure(options))
    if options.json:
        print(json.dumps(found))
        return
    for phase in ("alone", "beside", "share", "backlog"):
        if phase in found:
            print(f"{phase:8} " + "  ".join(f"{figure} {value:g}" for figure, value in found[phase].items()))
    print(f"p50 beside the flood is {found['p50_ratio']} times that without; a fair share is 0.5")


if __name__ == "__main__":
    main()

"""Compares two servers side by side: one with few change sets and one with many, or the servers of two checkouts.

    python -m tests.benchmarks.crowd [--few 1000@64] [--many 10000@256] [--rounds 40] [--seconds 1] [--json]
    python -m tests.benchmarks.crowd --checkout DIR [--many 10000@256] …

`1000@64` means 1,000 change sets with 64 requests in flight. Each server has a nats-server of its own, and no Spark.
All change sets are touched once, then both servers get requests in turns. Each request sets a value of a random change
set to its next number, and waits until that is applied. In the end, some logs are compared with the requests.

The speed of a machine may change by a fifth within minutes, so that runs one after the other cannot be compared. In
turns of a second, both servers meet the same machine. `ratio` is the mean of the ratios of the rounds, with its
standard error; times are CPU microseconds per request.

With `--checkout`, both servers get the load `--many`: the first one runs the repository in that folder, and the second
one runs this repository.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from tests.benchmarks.owners import LIMIT, cpu, running

WORKSPACE, VALUE = "bench", "n"
TOUCHING = 256  # requests in flight while all change sets are touched
SETTLE = 2.0  # seconds of requests before the first round
CHECKED = 100  # change sets whose logs are read in the end


@dataclass(frozen=True, slots=True)
class Load:
    """`in_flight` requests at a time to `change_sets` change sets."""

    change_sets: int
    in_flight: int

    @classmethod
    def parse(cls, text: str) -> "Load":
        change_sets, in_flight = map(int, text.split("@"))
        return cls(change_sets, in_flight)


class Installation:
    """A server with its nats-server and a client. `per_second` has the applied requests per second of each round, and
    `used` the CPU microseconds per request of each process and round."""

    def __init__(self, client: RebaserClient, load: Load, pids: dict[str, int]) -> None:
        self.per_second: list[float] = []
        self.used: dict[str, list[float]] = {name: [] for name in pids}
        self._client = client
        self._load = load
        self._pids = pids
        self._keys = [f"cs{number}" for number in range(load.change_sets)]
        self._sent: Counter[str] = Counter()

    async def _send(self, key: str) -> None:
        self._sent[key] += 1
        update = Set(VALUE, self._sent[key])
        await self._client.enqueue_updates_with_reply(WORKSPACE, key, [update], timeout=LIMIT)

    async def touch_all(self) -> None:
        todo = iter(self._keys)

        async def caller() -> None:
            for key in todo:
                await self._send(key)

        await asyncio.gather(*(caller() for _ in range(TOUCHING)))

    async def run(self, seconds: float) -> int:
        """Send requests for `seconds`, and return how many were applied."""
        before, until = self._sent.total(), time.perf_counter() + seconds

        async def caller() -> None:
            while time.perf_counter() < until:
                await self._send(random.choice(self._keys))

        await asyncio.gather(*(caller() for _ in range(self._load.in_flight)))
        return self._sent.total() - before

    async def measure(self, seconds: float) -> None:
        before = {name: cpu(pid) for name, pid in self._pids.items()}
        began = time.perf_counter()
        count = await self.run(seconds)
        self.per_second.append(count / (time.perf_counter() - began))
        for name, pid in self._pids.items():
            self.used[name].append((cpu(pid) - before[name]) / count * 1e6)

    async def check(self) -> None:
        """Check for some change sets that the log has each request once."""
        for key in random.sample(self._keys, min(len(self._keys), CHECKED)):
            found = [
                decision.request_id
                async for entry in self._client.log(WORKSPACE, key)
                for decision, _ in entry.requests
            ]
            assert len(found) == len({*found}) == self._sent[key], key

    def figures(self) -> dict[str, float]:
        used = {f"{name}_us": round(statistics.median(one), 1) for name, one in self.used.items()}
        return {"per_s": round(statistics.median(self.per_second)), **used}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures of both servers. `ratio` is the throughput of `second` divided by that of `first`, and `error` is the
    standard error of `ratio`."""

    first: dict[str, float]
    second: dict[str, float]
    ratio: float
    error: float


async def compare(options: argparse.Namespace) -> Comparison:
    few = options.many if options.checkout else options.few
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        both = []
        for name, load, checkout in (("first", few, options.checkout), ("second", options.many, None)):
            nats = await stack.enter_async_context(embedded_nats(folder / name))
            server = await stack.enter_async_context(running(nats.url, name, checkout))
            client = await stack.enter_async_context(RebaserClient.connect(nats.url))
            pids = {"server": server.child.pid, "nats": nats.pid, "client": os.getpid()}
            both.append(Installation(client, load, pids))
        first, second = both
        for one in both:
            await one.touch_all()
        for one in both:
            await one.run(min(SETTLE, options.seconds))
        for number in range(options.rounds):
            for one in both if number % 2 else both[::-1]:
                await one.measure(options.seconds)
        for one in both:
            await one.check()
        ratios = [b / a for a, b in zip(first.per_second, second.per_second, strict=True)]
        error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
        return Comparison(first.figures(), second.figures(), round(statistics.mean(ratios), 3), round(error, 3))


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--few", metavar="SETS@IN_FLIGHT", type=Load.parse, default=Load(1000, 64))
    out.add_argument("--many", metavar="SETS@IN_FLIGHT", type=Load.parse, default=Load(10_000, 256))
    out.add_argument("--rounds", type=int, default=40)
    out.add_argument("--seconds", type=float, default=1.0)
    out.add_argument("--checkout", type=Path)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    options = parser().parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    found = uvloop.run(compare(options))
    if options.json:
        print(json.dumps(asdict(found)))
        return
    for name, figures in (("first", found.first), ("second", found.second)):
        print(f"{name:8}" + "  ".join(f"{key} {value:g}" for key, value in figures.items()))
    print(f"ratio   {found.ratio:g} ± {found.error:g}")


if __name__ == "__main__":
    main()

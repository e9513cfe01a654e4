"""Measures what a call of the blocking client costs over the same call of the asynchronous client.

    python -m tests.benchmarks.blocking [--rounds 20] [--calls 200] [--json]

Both clients are one client with one connection, so only the way of calling differs. In each round, `calls` calls are
made from a coroutine on the event loop of the client, and as many from another thread, one after the other. A real
nats-server answers.

- `nothing`: a coroutine that returns at once, which shows what two switches between threads cost
- `exists`: a read, one question to NATS
- `enqueue_updates`: a request is stored, and its task is published

For each, the table has the median of a call in µs both ways, and the median of what each round found as the difference.
Aim: at most 150 µs over.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from rebaser.embedded.nats import embedded_nats
from rebaser_client import BlockingRebaserClient, Set
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.benchmarks.machine import load, machine

AIM = 150  # µs


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=20)
    made.add_argument("--calls", type=int, default=200)
    made.add_argument("--json", action="store_true")
    return made


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the figures of each kind of call."""
    with (
        tempfile.TemporaryDirectory() as folder,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(embedded_nats(Path(folder))) as nats,
    ):
        portal.call(_create_streams, nats.url)
        with BlockingRebaserClient.connect(nats.url) as client:
            return {name: _compare(client, *both, arguments) for name, both in _calls(client).items()}


async def _create_streams(url: str) -> None:
    async with Connection.connect(url, name="benchmark") as connection:
        await ensure_topology(JetStream(connection), Subjects(""), TopologyOptions())


def _calls(client: BlockingRebaserClient) -> dict[str, tuple[Callable[[], object], Callable[[], Awaitable[object]]]]:
    """Return each kind of call in the blocking and in the asynchronous form."""
    asynchronous, updates = client._wrapped, [Set("price", 9.5)]

    async def nothing() -> None:
        pass

    return {
        "nothing": (lambda: client._portal.call(nothing), nothing),
        "exists": (lambda: client.exists("ws", "cs"), lambda: asynchronous.exists("ws", "cs")),
        "enqueue_updates": (
            lambda: client.enqueue_updates("ws", "cs", updates),
            lambda: asynchronous.enqueue_updates("ws", "cs", updates),
        ),
    }


def _compare(
    client: BlockingRebaserClient,
    blocking: Callable[[], object],
    asynchronous: Callable[[], Awaitable[object]],
    arguments: argparse.Namespace,
) -> dict[str, float]:
    async def on_the_loop() -> list[float]:
        took = []
        for _ in range(arguments.calls):
            begun = time.perf_counter()
            await asynchronous()
            took.append(time.perf_counter() - begun)
        return took

    found: dict[str, list[float]] = {"blocking": [], "asynchronous": []}
    differences = []
    for _ in range(arguments.rounds):
        direct = client._portal.call(on_the_loop)
        waited = []
        for _ in range(arguments.calls):
            begun = time.perf_counter()
            blocking()
            waited.append(time.perf_counter() - begun)
        found["asynchronous"] += direct
        found["blocking"] += waited
        differences.append(statistics.median(waited) - statistics.median(direct))
    medians = {name: statistics.median(took) for name, took in found.items()}
    return {
        name: round(seconds * 1e6, 1) for name, seconds in (medians | {"over": statistics.median(differences)}).items()
    }


def table(found: dict[str, dict[str, float]]) -> str:
    lines = [f"{'µs':>16} {'asynchronous':>13} {'blocking':>9} {'over':>6}"]
    for name, row in found.items():
        lines.append(f"{name:>16} {row['asynchronous']:13.1f} {row['blocking']:9.1f} {row['over']:6.1f}")
    return "\n".join(lines)


def main() -> None:
    arguments = parser().parse_args()
    found: Any = measure(arguments)
    if arguments.json:
        print(json.dumps(found | {"machine": machine(), "load": load()}))
    else:
        print(f"{machine()}, load {load():.1f}\n{table(found)}\naim: at most {AIM} µs over")


if __name__ == "__main__":
    main()

"""Measures the cost of one update in a small and in a large change set.

    python -m tests.benchmarks.apply_size [--small 1000] [--large 1000000] [--updates 2000] [--e2e N] [--json]

It measures the pure core (decide and fold). With `--e2e N`, it also measures a running server whose large change set
has N values: the median latency of replies, with one request in flight. Aim: the large change set takes less than twice
as long as the small one.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from rebaser_client.errors import NotReadyError
from rebaser_core.commit import Applied, Commit, Kind
from rebaser_core.decisions.decide import decide
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.ids import RequestId
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Update

BATCH = 5000  # updates per request while a change set is filled


def model(count: int) -> Iterator[Update]:
    """Yield `count` values, of which every tenth is the sum of the nine before it."""
    for number in range(count):
        if number % 10 == 9:
            yield Derive(f"v/{number}", "sum", {"of": [f"v/{one}" for one in range(number - 9, number)]})
        else:
            yield Set(f"v/{number}", number)


def filled(count: int) -> ChangeSetState:
    state = ChangeSetState()
    append(state, QueuedRequest(1, RequestId("fill"), tuple(model(count))))
    state.fold(state.last + 1, Commit("dvu", state.last, Kind.DVU, 0, "bench", state.applied, state.last))
    return state


def append(state: ChangeSetState, request: QueuedRequest) -> Commit:
    """Decide a request, build its commit, and fold it, as an owner does apart from I/O."""
    decided = decide(state, Applied("s", state.applied.sequence if state.applied else 0), [request])
    owes = state.owes or state.wakes(decided.delta)
    commit = Commit(
        id=request.request_id,
        previous=state.last,
        kind=Kind.REBASE,
        at_ms=request.sequence,
        owner="bench",
        applied=decided.applied,
        covers=state.covers if owes else None,
        requests=decided.decisions,
        delta=decided.delta,
        forget_before_ms=request.sequence - 100,
    )
    state.fold(state.last + 1, commit)
    return commit


def request(state: ChangeSetState, number: int) -> QueuedRequest:
    """Return a request that sets one value, on which others depend."""
    at = number * 7919 * 10 % (len(state.cells) // 10 * 10)
    return QueuedRequest(number + 2, RequestId(f"r{number}"), (Set(f"v/{at}", -number),))


def touched(state: ChangeSetState, number: int) -> int:
    """Return the number of values that one request changes; while a view is open, these are in the overlay."""
    with state.view():
        append(state, request(state, number))
        return len(state.cells._overlay)


def core(count: int, updates: int) -> float:
    """Return the median time of one request in microseconds."""
    state = filled(count)
    taken = []
    for number in range(updates):
        incoming = request(state, number)
        started = time.perf_counter()
        append(state, incoming)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e6


@contextmanager
def server(url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "rebaser", "serve", "--nats", url, "--quiescent-period", "600"]
    # No Spark, because nothing is derived.
    child = subprocess.Popen([*command, "--spark", "sc://127.0.0.1:1"], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.terminate()
        child.wait(60)


async def e2e(small: int, large: int, updates: int) -> dict[str, float]:
    """Return the median milliseconds until the reply, measured in turn in a small and in a large change set."""
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats:
            with server(nats.url):
                async with RebaserClient.connect(nats.url) as client:
                    await ready(client)
                    for name, count in (("small", small), ("large", large)):
                        await fill(client, name, count)
                    return await latencies(client, {"small": small, "large": large}, updates)


async def ready(client: RebaserClient) -> None:
    with anyio.fail_after(120):
        while True:
            try:
                await client.enqueue_updates_with_reply("size", "ready", [Set("n", 1)])
            except NotReadyError:
                continue  # The server reports that it is ready only after it has waited for the streams.
            return


async def fill(client: RebaserClient, name: str, count: int) -> None:
    batch: list[Update] = []
    for update in model(count):
        batch.append(update)
        if len(batch) == BATCH:
            await client.enqueue_updates_with_reply("size", name, batch)
            batch = []
    await client.enqueue_updates_with_reply("size", name, batch)


async def latencies(client: RebaserClient, counts: dict[str, int], updates: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in counts}
    for number in range(updates):
        for name, count in counts.items():
            update = Set(f"v/{number * 7919 * 10 % (count // 10 * 10)}", -number)
            started = time.perf_counter()
            await client.enqueue_updates_with_reply("size", name, [update])
            taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(one) * 1000 for name, one in taken.items()}


def measure(small: int, large: int, updates: int, e2e_large: int = 0) -> dict[str, Any]:
    one, other = core(small, updates), core(large, updates)
    found: dict[str, Any] = {
        "core": {"small_us": round(one, 2), "large_us": round(other, 2), "ratio": round(other / one, 2)}
    }
    if e2e_large:
        ms = uvloop.run(e2e(small, e2e_large, updates))
        found["e2e"] = {f"{name}_ms": round(value, 3) for name, value in ms.items()}
        found["e2e"]["ratio"] = round(ms["large"] / ms["small"], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=1000)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--e2e", type=int, default=0, metavar="N")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.small, options.large, options.updates, options.e2e)
    if options.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(f"{name:5}", "  ".join(f"{key} {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()

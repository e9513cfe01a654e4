"""Measures the time from `kill -9` of the owner of a change set to the reply of the next owner, with default settings.

    python -m tests.benchmarks.takeover [--kills 10] [--ack-wait SECONDS] [--json]

There are two servers. In each round, a client writes to a change set, its owner is killed, a request is sent at once,
and the time until its reply is measured; then the killed server is started again. The kill comes at a random moment
between two progress acks.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from rebaser.embedded.nats import embedded_nats
from rebaser.settings import Settings
from rebaser_client import RebaserClient, Set
from tests.support.fleet import NO_SPARK, ServerProcess, launched

LIMIT = 120.0  # seconds until a takeover counts as failed


async def measure(kills: int, ack_wait: float | None = None, seed: int = 1) -> dict[str, Any]:
    """Return the seconds of each takeover, with their median and maximum."""
    settings: dict[str, Any] = {"spark": NO_SPARK, "quiescent_period": 600}
    if ack_wait is not None:
        settings["ack_wait"] = ack_wait
    else:
        ack_wait = Settings.model_fields["ack_wait"].default
    chance = random.Random(seed)
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats, AsyncExitStack() as stack:
            running: dict[str, ServerProcess] = {}
            for number in range(kills):
                for name in {"left", "right"} - running.keys():
                    server = launched(  # as a user starts it: the memory of a forked process costs more to write to
                        nats.url, name, python=sys.executable, server_id=f"{name}-{number}", **settings
                    )
                    running[name] = await stack.enter_async_context(server)
                for server in running.values():  # type: ignore[assignment]
                    await server.wait_for("server_ready")  # type: ignore[attr-defined]
                async with RebaserClient.connect(nats.url) as client:
                    name = await _owner(client, f"c{number}")
                    await anyio.sleep(chance.uniform(0, ack_wait / 3))
                    await running.pop(name).kill()
                    began = time.perf_counter()
                    await client.enqueue_updates_with_reply("takeover", f"c{number}", [Set("n", 2)], timeout=LIMIT)
                    seconds.append(round(time.perf_counter() - began, 2))
    return {"ack_wait": ack_wait, "seconds": seconds, "p50": statistics.median(seconds), "max": max(seconds)}


async def _owner(client: RebaserClient, change_set: str) -> str:
    """Make a server own `change_set`, and return its name."""
    await client.enqueue_updates_with_reply("takeover", change_set, [Set("n", 1)], timeout=LIMIT)
    async for commit in client.watch("takeover", change_set, after=0):
        return commit.owner.partition("-")[0]
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ack-wait", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = anyio.run(partial(measure, options.kills, options.ack_wait, options.seed))
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{options.kills} kills, ack wait {found['ack_wait']:g} s: p50 {found['p50']} s, max {found['max']} s")


if __name__ == "__main__":
    main()

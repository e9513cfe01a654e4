"""Measures the cost of reading the past, and of a thousand branches that nobody uses.

    python -m tests.benchmarks.branch_reads [--values 1000 1000000] [--branches 1000] [--rounds 20] [--json]

The change sets of each size have a log with a thousand commits of one edit each. Measured are `get` of one value, `get
at` of the same value as of 500 commits ago, its `blame`, `show` of one commit, and `log` of a thousand. Figures are in
ms, medians of `--rounds`.

Then there are `--branches` branches of a small change set, each edited once, which follow it. `written asleep` is the
number of messages that are stored for them while nobody uses them and the change set is edited 20 times. `awake` is the
seconds until all branches contain these edits, after one request to each.

Aims: `get at` and `blame` at most 1.2 times as long as `get`; `show` 5 ms, `log` 50 ms; nothing written for branches
that nobody uses; 15 s until a thousand are up to date.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.subjects import Subjects
from tests.benchmarks.apply_size import ready, server

WORKSPACE = "reads"
BATCH = 5000  # values per request while a change set is filled
COMMITS = 1000  # commits in the part of the log that is read
EDITS = 20  # edits of the parent while nobody uses its branches
SUBJECTS = Subjects()


async def measure(options: argparse.Namespace) -> dict[str, float]:
    out: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats:
            with server(nats.url):
                async with RebaserClient.connect(nats.url) as client, Connection.connect(nats.url) as connection:
                    await ready(client)
                    for values in options.values:
                        await fill(client, f"n{values}", values)
                    for values in options.values:
                        for what, ms in (await reads(client, f"n{values}", values, options.rounds)).items():
                            out[f"{values:,} {what}"] = ms
                    out |= await sleepers(client, JetStream(connection), options.branches)
    return out


async def fill(client: RebaserClient, name: str, values: int) -> None:
    for start in range(0, values, BATCH):
        updates = [Set(f"v/{at}", at) for at in range(start, min(start + BATCH, values))]
        await client.enqueue_updates_with_reply(WORKSPACE, name, updates, timeout=600)
    for number in range(COMMITS):
        await client.enqueue_updates_with_reply(WORKSPACE, name, [Set(f"v/{number % 100}", -number)], timeout=600)


async def reads(client: RebaserClient, name: str, values: int, rounds: int) -> dict[str, float]:
    """Return medians in ms. The calls are measured in turn, so that disturbances affect all of them."""
    info = await client.branch(WORKSPACE, name)
    assert info is not None
    old, id_ = info.sequence - COMMITS // 2, f"v/{values // 2}"

    async def log() -> None:
        left = COMMITS
        async with aclosing(client.log(WORKSPACE, name)) as entries:
            async for _ in entries:
                left -= 1
                if not left:
                    return

    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "get": lambda: client.value(WORKSPACE, name, id_),
        "get at": lambda: client.value(WORKSPACE, name, id_, at=old),
        "blame": lambda: client.blame(WORKSPACE, name, id_),
        "show": lambda: client.show(WORKSPACE, name, info.sequence),
        "log": log,
    }
    taken: dict[str, list[float]] = {what: [] for what in calls}
    for _ in range(rounds):
        for what, call in calls.items():
            began = time.perf_counter()
            await call()
            taken[what].append(1000 * (time.perf_counter() - began))
    found = {what: round(statistics.median(times), 2) for what, times in taken.items()}
    return found | {
        f"{what} / get": round(statistics.median(a / b for a, b in zip(taken[what], taken["get"], strict=True)), 2)
        for what in ("get at", "blame")
    }


async def sleepers(client: RebaserClient, js: JetStream, branches: int) -> dict[str, float]:
    """Edit a parent whose branches nobody uses, and then send a request to each branch."""
    await client.enqueue_updates_with_reply(WORKSPACE, "parent", [Set("p/0", 0)], timeout=600)
    names = [f"branch-{number}" for number in range(branches)]

    async def each(call: Callable[[str], Awaitable[object]]) -> None:
        todo = iter(names)

        async def caller() -> None:
            for name in todo:
                await call(name)

        await asyncio.gather(*(caller() for _ in range(64)))

    async def begin(name: str) -> None:
        await client.create_branch(WORKSPACE, name, "parent", timeout=600)
        await client.enqueue_updates_with_reply(WORKSPACE, name, [Set("own", name)], timeout=600)

    await each(begin)
    await asyncio.sleep(2)

    async def stored() -> int:
        """Return how many commits the branches have, plus how many requests were ever stored."""
        commits = await js.subject_counts(SUBJECTS.commits_stream, f"{SUBJECTS.root}.commits.{WORKSPACE}.*")
        of_branches = sum(count for subject, count in commits.items() if ".branch-" in subject)
        return of_branches + (await js.stream_info(SUBJECTS.requests_stream)).last_sequence

    before = await stored()
    for number in range(EDITS):
        await client.enqueue_updates_with_reply(WORKSPACE, "parent", [Set("p/0", number + 1)], timeout=600)
    await asyncio.sleep(3)
    written = await stored() - before - EDITS
    began = time.perf_counter()

    async def wake(name: str) -> None:
        await client.enqueue_updates_with_reply(WORKSPACE, name, [Set("own", 1)], timeout=600)

    await each(wake)
    while any(info.behind for info in await client.branches(WORKSPACE)):  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.1)
    awake = time.perf_counter() - began
    return {"written asleep": written, "awake": round(awake, 2)}


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--values", type=int, nargs="+", default=[1000, 1_000_000])
    out.add_argument("--branches", type=int, default=1000)
    out.add_argument("--rounds", type=int, default=20)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    options = parser().parse_args()
    found = uvloop.run(measure(options))
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:28}{value:12,.2f}")


if __name__ == "__main__":
    main()

"""Measures the costs of creating change sets from one position of another: time, processor time, bytes.

    python -m tests.benchmarks.forks [--values 1000 1000000] [--tail 0 100] [--forks 1000] [--old CHECKOUT] [--json]

Parents of different sizes and tails (commits after the checkpoint) are filled once. In each round, every parent gets
forks: first one after the other (p50, p99), then `--in-flight` at the same time (forks per second, milliseconds of
processor time per fork for each process, bytes in the logs per fork). At the end, `moved` edits the last parent before
each fork, and the processor time is that of both requests. `worst` forks parents that no server has copied yet, each
with `--commits` small commits after its checkpoint, which have nearly the 1 MiB up to which commits are copied; `bytes`
is the size of the copy. With `--old`, a server of another checkout of this repository, with a NATS of its own, is
measured in turn with the server of this one. Figures are medians of the rounds.

Aims: p50 of 10 ms and p99 of 30 ms; at most 250 ms for the `worst`; for a million values at most 1.3 times as long as
for a thousand; 200 forks of one position per second, with 8 KiB each.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log.commits import CommitReader
from rebaser_core.branches.branch import Create
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Update
from tests.benchmarks.owners import cpu, running

BATCH = 5000  # values per request while a parent is filled
PAD = 200_000  # bytes
WORKSPACE = "forks"
SUBJECTS = Subjects()


class Installation:
    """A server of one checkout, with a NATS of its own."""

    def __init__(self, client: RebaserClient, js: JetStream, pids: dict[str, int], options: argparse.Namespace) -> None:
        self._client = client
        self._js = js
        self._logs = CommitReader(js, SUBJECTS, open_blobs(None, js, SUBJECTS.blobs_bucket))
        self._pids = pids
        self._options = options
        self._made = 0

    async def fill(self, parent: str, values: int, tail: int) -> None:
        """Create a parent with `values`, a checkpoint, and `tail` commits after it."""
        for start in range(0, values, BATCH):
            updates: list[Update] = [Set(f"v/{at}", at) for at in range(start, min(start + BATCH, values))]
            await self._send(parent, updates)
        while not await self._checkpointed(parent):
            await self._send(parent, [Set("pad", "x" * PAD)])
            await anyio.sleep(0.2)
        for at in range(tail):
            await self._send(parent, [Set(f"v/{at % values}", -at)])

    async def _send(self, parent: str, updates: list[Update]) -> None:
        await self._client.enqueue_updates_with_reply(WORKSPACE, parent, updates, timeout=300)

    async def _checkpointed(self, parent: str) -> bool:
        """Return whether the newest commit names a checkpoint of all commits before it."""
        commit = await self._logs.last(ChangeSetKey.of(WORKSPACE, parent))
        assert commit is not None
        return commit.checkpoint is not None and commit.previous == commit.checkpoint.sequence

    async def _fork(self, parent: str) -> float:
        """Create a change set, and return the seconds until the answer."""
        self._made += 1
        began = time.perf_counter()
        await self._client.enqueue_updates_with_reply(
            WORKSPACE, f"f{self._made}", (), action=Create(parent), timeout=300
        )
        return time.perf_counter() - began

    async def measure(self, parent: str) -> dict[str, float]:
        singly = sorted([await self._fork(parent) * 1000 for _ in range(self._options.singly)])
        count = self._options.forks
        todo = iter(range(count))

        async def caller() -> None:
            for _ in todo:
                await self._fork(parent)

        used, stored = self._cpu(), await self._bytes()
        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(self._options.in_flight)))
        seconds = time.perf_counter() - began
        await anyio.sleep(0.5)  # owners release their change sets
        after = self._cpu()
        return {
            "p50_ms": statistics.median(singly),
            "p99_ms": singly[int(len(singly) * 0.99)],
            "per_s": count / seconds,
            **{f"cpu_{name}": (after[name] - used[name]) * 1000 / count for name in used},
            "bytes": (await self._bytes() - stored) / count,
        }

    async def moved(self, parent: str) -> dict[str, float]:
        """Edit the parent, and create a change set from it, in turn."""
        count, used, singly = self._options.singly, self._cpu(), []
        for number in range(count):
            await self._send(parent, [Set(f"v/{number}", -number)])
            singly.append(await self._fork(parent) * 1000)
        after = self._cpu()
        p50 = {"p50_ms": statistics.median(singly)}
        return p50 | {f"cpu_{name}": (after[name] - used[name]) * 1000 / count for name in used}

    async def worst(self, values: int) -> dict[str, float]:
        """Create one change set from each of several parents with many commits after the checkpoint."""
        singly, sizes = [], []
        for number in range(self._options.rounds):
            await self.fill(f"worst{number}", values, self._options.commits)
            singly.append(await self._fork(f"worst{number}") * 1000)
            created = await self._logs.last(ChangeSetKey.of(WORKSPACE, f"f{self._made}"))
            assert created is not None
            assert created.origin is not None
            assert created.origin.tail_blob is not None
            sizes.append(created.origin.tail_blob.size)
        return {"p50_ms": statistics.median(singly), "max_ms": max(singly), "bytes": max(sizes)}

    def _cpu(self) -> dict[str, float]:
        return {name: cpu(pid) for name, pid in self._pids.items()}

    async def _bytes(self) -> int:
        return (await self._js.stream_info(SUBJECTS.commits_stream)).bytes


@asynccontextmanager
async def installation(checkout: Path, options: argparse.Namespace) -> AsyncIterator[Installation]:
    settings = {"quiescent_period": 3600, "checkpoint_bytes": 1 << 22}
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        nats = await stack.enter_async_context(embedded_nats(Path(folder)))
        connection = await stack.enter_async_context(Connection.connect(nats.url))
        client = await stack.enter_async_context(RebaserClient.connect(nats.url))
        server = await stack.enter_async_context(running(nats.url, "forks", checkout=checkout, **settings))
        pids = {"server": server.child.pid, "nats": nats.pid, "client": os.getpid()}
        yield Installation(client, JetStream(connection), pids, options)


async def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    here = Path(__file__).parents[2]
    checkouts = {"new": here} | ({"old": options.old} if options.old else {})
    rounds: dict[str, list[dict[str, float]]] = {}
    async with AsyncExitStack() as stack:
        all_ = {name: await stack.enter_async_context(installation(path, options)) for name, path in checkouts.items()}
        parents = [(f"p{values}-{tail}", values, tail) for values in options.values for tail in options.tail]
        for one in all_.values():
            for parent, values, tail in parents:
                await one.fill(parent, values, tail)
        for number in range(options.rounds + 1):  # the first round is not counted
            for parent, _, _ in parents:
                for name, one in all_.items():
                    found = await one.measure(parent)
                    if number:
                        rounds.setdefault(f"{parent} {name}", []).append(found)
        for name, one in all_.items():
            rounds[f"moved {name}"] = [await one.moved(parents[-1][0])]
            rounds[f"worst {name}"] = [await one.worst(options.values[-1])]
    return {
        name: {figure: round(statistics.median(one[figure] for one in runs), 2) for figure in runs[0]}
        for name, runs in rounds.items()
    }


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--values", type=int, nargs="+", default=[1000, 1_000_000])
    out.add_argument("--tail", type=int, nargs="+", default=[0, 100])
    out.add_argument("--forks", type=int, default=1000)
    out.add_argument("--singly", type=int, default=100)
    out.add_argument("--in-flight", type=int, default=64)
    out.add_argument("--rounds", type=int, default=3)
    out.add_argument("--commits", type=int, default=2400)
    out.add_argument("--old", type=Path)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    options = parser().parse_args()
    found = uvloop.run(measure(options))
    if options.json:
        print(json.dumps(found))
        return
    for step, figures in found.items():
        print(f"{step:18}" + "  ".join(f"{name} {value:g}" for name, value in figures.items()))


if __name__ == "__main__":
    main()

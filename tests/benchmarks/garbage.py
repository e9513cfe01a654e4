"""Measures garbage collection: its time by the number of blobs, and its effect on others.

    python -m tests.benchmarks.garbage [--blobs 100000] [--change-sets 1000] [--garbage 1000] [--runs 5] [--json]

The blobs are small, and commits of the change sets name a hundred each. No message names the `--garbage` additional
blobs. A collector in another process, which runs only on idle CPUs, as `rebaser gc` does, is measured on an embedded
Spark that is already up: `find` is the time until the garbage is known, `run` is the median time of a whole run. The
first run moves the garbage to the trash, the second run erases it, and the others find none.

Meanwhile, a writer in a third process appends to a log, one commit after the other. Windows without a run alternate
with the runs, so that both see the same load of other programs. The figures are p50 and p99 of all appends without a
run (`alone`), of all appends during runs (`beside`), and of those during each phase of the runs. `load` is the load
average before and after.

Aims: 60 s for 100,000 blobs of 1,000 change sets; a p99 of appends that is at most 1.2 times as long.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import anyio
import uvloop
from anyio.abc import ByteSendStream
from anyio.streams.buffered import BufferedByteReceiveStream

from rebaser.embedded.nats import embedded_nats
from rebaser.gc.collector import Collector
from rebaser.gc.finding import Found, find_garbage
from rebaser.gc.manual import new_id, use_half_of_the_cpus
from rebaser.gc.spark_tables import SparkTables, own_spark
from rebaser.runtime.concurrency import run_concurrently
from rebaser.settings import Settings
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.blobs import open_collectable
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions

T = TypeVar("T")
Append: TypeAlias = tuple[float, float]  # when it began and how long it took, in seconds
Span: TypeAlias = tuple[float, float]  # from when until when, in seconds

SUBJECTS = Subjects()
WRITER, COLLECTOR = "writer", "collector"
NAMED = 100  # blobs that a commit names
IN_FLIGHT = 64
QUIET = 3.0  # the shortest window without a run, in seconds


@asynccontextmanager
async def writing(url: str, appends: list[Append]) -> AsyncIterator[None]:
    """Run a writer in a process of its own, so that it notices only what others would. `appends` gets its appends."""
    command = [sys.executable, "-m", "tests.benchmarks.garbage", WRITER, url]
    async with await anyio.open_process(command, stderr=None) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        await child.stdout.receive()  # it is connected
        yield
        await child.stdin.aclose()
        appends += json.loads(b"".join([chunk async for chunk in child.stdout]))


async def write(url: str) -> list[Append]:
    """Append to a log, one commit after the other, until stdin ends."""
    appends: list[Append] = []
    async with Connection.connect(url) as connection:
        js, subject = JetStream(connection), SUBJECTS.commits(ChangeSetKey("others", new_id()))
        print("connected", flush=True)
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        last = 0
        while not ended.done():
            began = time.monotonic()
            headers, payload = encode_commit(commit(last, ()))
            last = (await js.publish(subject, payload, headers, expected_last_subject_sequence=last)).sequence
            appends.append((began, time.monotonic() - began))
            await asyncio.sleep(0.001)
    return appends


def figures(appends: list[Append], spans: list[Span]) -> dict[str, float]:
    """Return the 50th and 99th percentile, in ms, of the appends that began in one of `spans`."""
    took = [seconds for began, seconds in appends if any(start <= began < end for start, end in spans)]
    if len(took) < 2:
        return {}
    cuts = statistics.quantiles(took, n=100)
    return {"appends": len(took), "p50_ms": round(cuts[49] * 1000, 2), "p99_ms": round(cuts[98] * 1000, 2)}


def commit(previous: int, blobs: tuple[str, ...]) -> Commit:
    return Commit(
        *(new_id(), previous, Kind.REBASE, time.time_ns() // 1_000_000, "bench", None, None), before=(), blobs=blobs
    )


async def fill(js: JetStream, options: argparse.Namespace) -> None:
    blobs = open_collectable(None, js, SUBJECTS.blobs_bucket)
    addresses: list[str] = []

    async def put(number: int) -> None:
        addresses.append(await blobs.put(b"%d" % number + os.urandom(64)))

    await run_concurrently(range(options.blobs + options.garbage), put, IN_FLIGHT)
    last: dict[int, int] = {}
    for number, start in enumerate(range(0, options.blobs, NAMED)):
        name = number % options.change_sets
        headers, payload = encode_commit(commit(last.get(name, 0), tuple(addresses[start : start + NAMED])))
        ack = await js.publish(SUBJECTS.commits(ChangeSetKey("bench", f"c{name}")), payload, headers)
        last[name] = ack.sequence


class TimedTables:
    """Tables that note when each phase of a collection began and ended."""

    def __init__(self, tables: SparkTables) -> None:
        self._tables = tables
        self.phases: list[tuple[str, float, float]] = []

    async def stored(self) -> Any:
        return await self._timed("stored", self._tables.stored())

    async def queued(self) -> Any:
        return await self._timed("queued", self._tables.queued())

    async def newest(self) -> int:
        return await self._tables.newest()

    async def commits(self, after: int, *, split: bool) -> Any:
        return await self._timed("commits", self._tables.commits(after, split=split))

    async def join(self, stored: Any, needed: Sequence[Any]) -> Found:
        return await self._timed("join", self._tables.join(stored, needed))

    async def _timed(self, name: str, work: Awaitable[T]) -> T:
        began = time.monotonic()
        result = await work
        self.phases.append((name, began, time.monotonic()))
        return result


async def collect(url: str, folder: str) -> None:
    """Find the garbage, and print what was found. Then make a run for each line on stdin, and print its figures."""
    use_half_of_the_cpus()
    settings = Settings(nats_url=url, scratch=Path(folder))
    async with Connection.connect(url) as connection, own_spark(settings) as spark:
        js = JetStream(connection)
        tables = SparkTables(spark, js, SUBJECTS, settings)
        try:
            began = time.monotonic()
            garbage = await find_garbage(tables)
            found = {"blobs": garbage.blobs, "garbage": len(garbage.unneeded)}
            print(json.dumps({"find_s": round(time.monotonic() - began, 1)} | found), flush=True)
            blobs = open_collectable(None, js, SUBJECTS.blobs_bucket)
            while await asyncio.to_thread(sys.stdin.readline):
                timed = TimedTables(tables)
                collector = Collector(js, SUBJECTS, blobs, timed, owner="bench", new_id=new_id, grace=0.0)
                began = time.monotonic()
                run = await collector.run()
                ended = time.monotonic()
                phases = [*timed.phases, ("delete", timed.phases[-1][2], ended)]
                told = {"run": (began, ended), "phases": phases, "trashed": run.trashed, "erased": run.erased}
                print(json.dumps(told), flush=True)
        finally:
            await tables.close()


async def told(lines: BufferedByteReceiveStream) -> dict[str, Any]:
    """Return the next object that the collector prints. Its other lines are its log."""
    while not (line := await lines.receive_until(b"\n", 1 << 20)).startswith(b"{"):
        pass
    return json.loads(line)  # type: ignore[no-any-return]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats, Connection.connect(nats.url) as connection:
            js = JetStream(connection)
            await ensure_topology(js, SUBJECTS, TopologyOptions())
            began = time.monotonic()
            await fill(js, options)
            found: dict[str, Any] = {"fill_s": round(time.monotonic() - began, 1)}
            command = [sys.executable, "-m", "tests.benchmarks.garbage", COLLECTOR, nats.url, folder]
            async with await anyio.open_process(command, stderr=None) as child:
                assert child.stdin is not None
                assert child.stdout is not None
                lines = BufferedByteReceiveStream(child.stdout)
                found |= await told(lines)
                return found | await alternate(nats.url, child.stdin, lines, options.runs)


async def alternate(url: str, start: ByteSendStream, lines: BufferedByteReceiveStream, count: int) -> dict[str, Any]:
    """Make `count` runs, and wait for the duration of a run after each. Return the figures of a writer meanwhile."""
    appends: list[Append] = []
    runs: list[dict[str, Any]] = []
    alone: list[Span] = []
    load = os.getloadavg()[0]
    async with writing(url, appends):
        for _ in range(count):
            await start.send(b"\n")
            runs.append(await told(lines))
            began, ended = runs[-1]["run"]
            alone.append((time.monotonic(), time.monotonic() + max(QUIET, ended - began)))
            await asyncio.sleep(alone[-1][1] - alone[-1][0])
    spans: dict[str, list[Span]] = {"alone": alone, "beside": [tuple(run["run"]) for run in runs]}
    for run in runs:
        for name, began, ended in run["phases"]:
            spans.setdefault(name, []).append((began, ended))
    found: dict[str, Any] = {
        "run_s": round(statistics.median(ended - began for began, ended in spans["beside"]), 1),
        "trashed": sum(run["trashed"] for run in runs),
        "erased": sum(run["erased"] for run in runs),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    seconds = {name: round(sum(end - start for start, end in given) / count, 2) for name, given in spans.items()}
    return found | {name: {"s": seconds[name]} | figures(appends, given) for name, given in spans.items()}


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks.garbage", description=__doc__)
    options.add_argument("--blobs", type=int, default=100_000)
    options.add_argument("--change-sets", type=int, default=1000)
    options.add_argument("--garbage", type=int, default=1000)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--json", action="store_true")
    return options


def main() -> None:
    options = parser().parse_args()
    found = uvloop.run(measure(options))
    if options.json:
        print(json.dumps(found))
    else:
        for name, figure in found.items():
            print(f"{name:>10}  {figure}")


if __name__ == "__main__":
    if sys.argv[1:2] == [WRITER]:
        print(json.dumps(uvloop.run(write(sys.argv[2]))))
    elif sys.argv[1:2] == [COLLECTOR]:
        uvloop.run(collect(*sys.argv[2:]))
    else:
        main()

"""Measures garbage collection: its time by the number of blobs, and its effect on others.

    python -m tests.benchmarks.garbage [--blobs 100000] [--change-sets 1000] [--garbage 1000] [--json]

The blobs are small, and commits of the change sets name a hundred each. No message names the `--garbage` additional
blobs. A collector in another process, with the priority of `rebaser gc`, is measured on an embedded Spark that is
already up: `find` is the time until the garbage is known, `run` includes the deletions of the first step. Meanwhile, a
writer in a third process appends to a log, one commit after the other: the figures are p50 and p99 of its appends
without a run (before it and after it) and with the run.

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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import uvloop
from anyio.streams.buffered import BufferedByteReceiveStream

from rebaser.embedded.nats import embedded_nats
from rebaser.gc.collector import Collector
from rebaser.gc.finding import find_garbage
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

SUBJECTS = Subjects()
WRITER, COLLECTOR = "writer", "collector"
NAMED = 100  # blobs that a commit names
IN_FLIGHT = 64
QUIET = 3.0  # seconds of appends without a run


@asynccontextmanager
async def writing(url: str, found: dict[str, float]) -> AsyncIterator[None]:
    """Run a writer in a process of its own, so that it notices only what others would. `found` gets its figures."""
    command = [sys.executable, "-m", "tests.benchmarks.garbage", WRITER, url]
    async with await anyio.open_process(command, stderr=None) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        await child.stdout.receive()  # it is connected
        yield
        await child.stdin.aclose()
        found |= json.loads(b"".join([chunk async for chunk in child.stdout]))


async def write(url: str) -> dict[str, float]:
    """Append to a log, one commit after the other, until stdin ends; return the 50th and 99th percentile in ms."""
    took: list[float] = []
    async with Connection.connect(url) as connection:
        js, subject = JetStream(connection), SUBJECTS.commits(ChangeSetKey("others", new_id()))
        print("connected", flush=True)
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        last = 0
        while not ended.done():
            began = time.perf_counter()
            headers, payload = encode_commit(commit(last, ()))
            last = (await js.publish(subject, payload, headers, expected_last_subject_sequence=last)).sequence
            took.append(time.perf_counter() - began)
            await asyncio.sleep(0.001)
    cuts = statistics.quantiles(took, n=100)
    return {"p50_ms": round(cuts[49] * 1000, 2), "p99_ms": round(cuts[98] * 1000, 2)}


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


async def collect(url: str, folder: str) -> None:
    """Find the garbage, and print what was found. Once a line arrives on stdin, make a run, and print its figures."""
    use_half_of_the_cpus()
    settings = Settings(nats_url=url, scratch=Path(folder))
    async with Connection.connect(url) as connection, own_spark(settings) as spark:
        js = JetStream(connection)
        tables = SparkTables(spark, js, SUBJECTS, settings)
        try:
            began = time.perf_counter()
            garbage = await find_garbage(tables)
            found = {"blobs": garbage.blobs, "garbage": len(garbage.unneeded)}
            print(json.dumps({"find_s": round(time.perf_counter() - began, 1)} | found), flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            blobs = open_collectable(None, js, SUBJECTS.blobs_bucket)
            collector = Collector(js, SUBJECTS, blobs, tables, owner="bench", new_id=new_id, grace=0.0)
            began = time.perf_counter()
            run = await collector.run()
            print(json.dumps({"run_s": round(time.perf_counter() - began, 1), "trashed": run.trashed}), flush=True)
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
            began = time.perf_counter()
            await fill(js, options)
            found: dict[str, Any] = {"fill_s": round(time.perf_counter() - began, 1)}
            command = [sys.executable, "-m", "tests.benchmarks.garbage", COLLECTOR, nats.url, folder]
            async with await anyio.open_process(command, stderr=None) as child:
                assert child.stdin is not None
                assert child.stdout is not None
                lines = BufferedByteReceiveStream(child.stdout)
                found |= await told(lines)
                found |= {"alone": {}, "beside": {}, "after": {}}
                async with writing(nats.url, found["alone"]):
                    await asyncio.sleep(QUIET)
                async with writing(nats.url, found["beside"]):
                    await child.stdin.send(b"\n")
                    found |= await told(lines)
                async with writing(nats.url, found["after"]):
                    await asyncio.sleep(QUIET)
            return found


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks.garbage", description=__doc__)
    options.add_argument("--blobs", type=int, default=100_000)
    options.add_argument("--change-sets", type=int, default=1000)
    options.add_argument("--garbage", type=int, default=1000)
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

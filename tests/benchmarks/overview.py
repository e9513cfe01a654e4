"""Compares the overview of an installation from headers with that from whole commits.

    python -m tests.benchmarks.overview [--change-sets 10000] [--bytes 2000] [--rounds 3] [--json]

There are `--change-sets` change sets, of which a third owe an update; the newest commit of each has `--bytes` bytes. In
turn, `--rounds` times: `headers` is what `rebaser status` does, and `whole` is what it did before: it read and decoded
the newest commit of each change set. Figures are seconds of CPU time of this process, the lowest of the rounds.
`command` is the CPU time of the process `rebaser status`, with all its imports. `look` is one refresh of `rebaser top`
after its first, with the third of the change sets that owe an update, and a screen of 40 lines. `branches` are the
seconds, not of CPU time, in which the client lists the same number of branches in another workspace. Aims for 10,000
change sets: `headers` in 0.6 s or less, a `look` in 0.05 s or less, `branches` in 1 s or less.
"""

import argparse
import asyncio
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import anyio
from rich.console import Console

from rebaser.cli.output.top_view import TopScreen, render
from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient
from rebaser_client.admin.fleet_watch import FleetWatch
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.admin.status import ChangeSetStatus, key_counts, read_overview
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log.commits import CommitReader
from rebaser_core.commit import BranchStatus, BranchSummary, Commit, Kind
from rebaser_core.ids import ChangeSetKey, ulid
from rebaser_core.messages import covers_header, encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from rebaser_core.updates import Set

WINDOW = 256  # unconfirmed publishes
READS = 64  # commits that are read at the same time


async def fill(
    js: JetStream,
    subjects: Subjects,
    count: int,
    size: int,
    workspace: str = "bench",
    branch: BranchSummary | None = None,
) -> None:
    limit = asyncio.Semaphore(WINDOW)
    delta = (Set("text", "x" * size),)
    messages = []
    for covers, debt in ((None, 0), (None, 0), (0, 1)):
        commit = Commit(ulid(1, bytes(10)), 0, Kind.REBASE, 1, "bench", None, covers, delta=delta, debt=debt)
        commit = replace(commit, branch=branch)
        headers, payload = encode_commit(commit)
        messages.append((headers | covers_header(commit), payload))

    async def store(number: int) -> None:
        headers, payload = messages[number % 3]
        async with limit:
            await js.publish(subjects.commits(ChangeSetKey(workspace, f"cs-{number}")), payload, headers)

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(store, number)


async def whole(js: JetStream, subjects: Subjects, reader: CommitReader) -> list[ChangeSetStatus]:
    """Return the rows, computed from the newest commits as a whole."""
    pending = await key_counts(js, subjects, subjects.requests_stream, "requests")
    tasks = await key_counts(js, subjects, subjects.tasks_stream, "tasks")
    keys = await key_counts(js, subjects, subjects.commits_stream, "commits")
    limit = anyio.CapacityLimiter(READS)
    rows: list[ChangeSetStatus] = []

    async def read(key: ChangeSetKey) -> None:
        async with limit:
            commit = await reader.last(key)
        assert commit is not None
        covers = commit.sequence if commit.covers is None else commit.covers
        where = key.workspace, key.change_set
        rows.append(
            ChangeSetStatus(*where, pending.get(key, 0), key in tasks, commit.sequence, covers, commit.debt > 0)
        )

    async with anyio.create_task_group() as group:
        for key in keys:
            group.start_soon(read, key)
    return sorted(rows, key=lambda row: (row.workspace, row.change_set))


def command(url: str) -> float:
    """Return the CPU seconds of `rebaser status`."""
    args = [sys.executable, "-m", "rebaser", "status", "--nats", url]
    with subprocess.Popen(args, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


async def run(count: int, size: int, rounds: int) -> dict[str, float]:
    """Return CPU seconds by name. Checks that both ways give the same rows."""
    subjects, found = Subjects(), dict[str, float]()
    screen = Console(file=io.StringIO(), width=120, force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats, Connection.connect(nats.url) as connection:
            js = JetStream(connection, timeout=30)
            await ensure_topology(js, subjects, TopologyOptions())
            await fill(js, subjects, count, size)
            reader = CommitReader(js, subjects, open_blobs(None, js, subjects.blobs_bucket))
            for _ in range(rounds):
                began = time.process_time()
                overview = await read_overview(connection, js, subjects, reader, None)
                between = time.process_time()
                rows = await whole(js, subjects, reader)
                ended = time.process_time()
                assert overview.change_sets == rows
                assert len(rows) == count
                found["headers"] = min(found.get("headers", 1e9), between - began)
                found["whole"] = min(found.get("whole", 1e9), ended - between)
            async with FleetWatch(js, subjects, None) as fleet:
                assert (await fleet.look()).total == count
                for _ in range(rounds):
                    began = time.process_time()
                    view = await fleet.look()
                    screen.print(render(view, TopScreen(), "top", "", 40))
                    found["look"] = min(found.get("look", 1e9), time.process_time() - began)
            found["command"] = await anyio.to_thread.run_sync(command, nats.url)
            await fill(
                js, subjects, count, size, "forks", BranchSummary("cs-0", 1, BranchStatus.OPEN, 3, 1, "cs-0", 1, 2)
            )
            async with RebaserClient.connect(nats.url) as client:
                for _ in range(rounds):
                    began = time.perf_counter()
                    branches = await client.branches("forks")
                    found["branches"] = min(found.get("branches", 1e9), time.perf_counter() - began)
                    assert {(one.target, one.conflicts) for one in branches} == {("cs-0", 1)}
                    assert len(branches) == count
    return {name: round(seconds, 3) for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--change-sets", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = asyncio.run(run(args.change_sets, args.bytes, args.rounds))
    if args.json:
        print(json.dumps(found))
        return
    for name, seconds in found.items():
        kind = "" if name == "branches" else " of CPU"
        print(f"{name:8} {seconds:7.3f} s{kind} for {args.change_sets:,} change sets")


if __name__ == "__main__":
    main()

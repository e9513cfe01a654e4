"""Measures a sweep over many change sets: `python -m tests.benchmarks.sweep [--change-sets N]`.

It prints how long a sweep takes when everything is new to the sweeper, when nothing has changed, and when every change
set lacks its task. It also prints the longest time for which the sweep blocked the event loop, since that delays other
change sets.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import anyio

from rebaser.embedded.nats import embedded_nats
from rebaser.runtime.dead_letters import DeadLetterPublisher
from rebaser.sweeper.old_history import OldHistory
from rebaser.sweeper.sweeper import Sweeper
from rebaser.sweeper.unroutable import UnroutableMessages
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log.commits import CommitReader
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey, ulid
from rebaser_core.messages import encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions

WINDOW = 256  # unconfirmed publishes
BEAT = 0.001  # seconds between two measurements of the loop


class Beat:
    """Measures for how long the event loop was blocked."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(BEAT)
            self.longest = max(self.longest, time.perf_counter() - before - BEAT)


async def fill(js: JetStream, subjects: Subjects, count: int) -> None:
    """Create `count` change sets, each with a commit that owes no update, and a request."""
    commit = Commit(ulid(1, bytes(10)), 0, Kind.REBASE, 1, "bench", applied=None, covers=None)
    headers, payload = encode_commit(commit)
    limit = asyncio.Semaphore(WINDOW)

    async def store(number: int) -> None:
        key = ChangeSetKey("bench", f"cs-{number}")
        async with limit:
            await js.publish(subjects.commits(key), payload, headers)
            await js.publish(subjects.requests(key), b"")

    for start in range(0, count, 10_000):
        async with anyio.create_task_group() as group:
            for number in range(start, min(start + 10_000, count)):
                group.start_soon(store, number)


async def run(count: int) -> dict[str, tuple[int, float, float]]:
    """Return, by step, the number of published tasks, the seconds, and the longest block of the loop in seconds."""
    found: dict[str, tuple[int, float, float]] = {}
    subjects = Subjects()
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats, Connection.connect(nats.url) as connection:
            js = JetStream(connection, timeout=30)
            await ensure_topology(js, subjects, TopologyOptions())
            await fill(js, subjects, count)
            async with anyio.create_task_group() as group:
                beat = Beat()
                group.start_soon(beat.run)

                async def measure(name: str, sweeper: Sweeper) -> None:
                    beat.longest = 0.0
                    began = time.perf_counter()
                    published = await sweeper.sweep()
                    found[name] = published, time.perf_counter() - began, beat.longest

                blobs = open_blobs(None, js, subjects.blobs_bucket)
                letters = DeadLetterPublisher(js, subjects, blobs, "bench")
                unroutable = UnroutableMessages(js, subjects, letters, lambda: 1)
                history = OldHistory(js, subjects, CommitReader(js, subjects, blobs), 0)
                first = Sweeper(js, subjects, 10, unroutable, history)
                await measure("all stranded", first)
                await measure("nothing changed", first)
                await measure("a new sweeper", Sweeper(js, subjects, 10, unroutable, history))
                group.cancel_scope.cancel()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--change-sets", type=int, default=100_000)
    count = parser.parse_args().change_sets
    for name, (published, seconds, held) in asyncio.run(run(count)).items():
        print(f"{name:16}  {published:7,} tasks  {seconds:6.2f} s  loop held up for {held * 1000:5.1f} ms at most")


if __name__ == "__main__":
    main()

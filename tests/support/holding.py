"""Jobs that a worker holds until a test ends them, without using the processor."""

import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import anyio
import pyarrow as pa

from rebaser.dvu.planning.planner import plan
from rebaser.dvu.worker.evaluate import evaluate_batches
from rebaser_core.updates import Derive, Set, Update
from tests.support.graphs import Book

_MARK = re.compile(rb"HOLD<(.*?)>")


def holding(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replace `evaluate_batches` in a worker: for a packet with a mark, write the worker's process id to a file, and
    never end."""

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packet in batch.column("packet").to_pylist():
                if mark := _MARK.search(packet):
                    place = Path(mark[1].decode())
                    place.with_suffix(".new").write_text(str(os.getpid()))
                    place.with_suffix(".new").rename(place)
                    time.sleep(600)
            yield batch

    return evaluate_batches(watched())


def held(place: Path) -> list[Update]:
    """Return updates of a change set whose DVU a `holding` worker never ends; the worker writes its process id to
    `place`."""
    return [Set("a", f"HOLD<{place}>"), Derive("b", "concat", {"x": "a"})]


def held_packet(place: Path) -> bytes:
    [packet] = plan(Book(held(place)).state.view()).next_wave()
    return packet


async def holder(place: Path) -> int:
    """Wait until a worker holds the job, and return its process id."""
    path = anyio.Path(place)
    while not await path.exists():  # noqa: ASYNC110 - a worker knows no event of ours
        await anyio.sleep(0.01)
    return int(await path.read_text())

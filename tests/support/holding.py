"""Jobs that a test holds for as long as it likes, without taking the processor from others."""

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
    """`evaluate_batches`, for a worker: a packet with a mark writes down who computes it and is never done."""

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
    """A change set whose update a `holding` worker never ends; it writes its process id to `place`."""
    return [Set("a", f"HOLD<{place}>"), Derive("b", "concat", {"x": "a"})]


def held_packet(place: Path) -> bytes:
    [packet] = plan(Book(held(place)).state.view()).next_wave()
    return packet


async def holder(place: Path) -> int:
    """The process that holds it, once one does."""
    path = anyio.Path(place)
    while not await path.exists():  # noqa: ASYNC110 - a worker knows no event of ours
        await anyio.sleep(0.01)
    return int(await path.read_text())

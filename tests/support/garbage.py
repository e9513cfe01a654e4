"""Finds garbage without Spark: the queries of `rebaser.gc.finding`, implemented with dictionaries and sets."""

import itertools
from collections.abc import Sequence
from typing import TypeAlias

from rebaser.gc.collector import Collector, Run
from rebaser.gc.finding import Found
from rebaser_client.blobs import CollectableBlobs
from rebaser_client.garbage import ReferenceReader
from rebaser_client.jetstream import JetStream
from rebaser_core.blobs.garbage import StoredBlob
from rebaser_core.streams.subjects import Subjects

Rows: TypeAlias = list[StoredBlob] | set[str]


class PlainTables:
    def __init__(self, js: JetStream, subjects: Subjects, blobs: CollectableBlobs) -> None:
        self._blobs = blobs
        self._references = ReferenceReader(js, subjects, blobs)

    async def stored(self) -> Rows:
        return [blob async for blob in self._blobs.stored()]

    async def queued(self) -> Rows:
        return set(await self._references.queued())

    async def newest(self) -> int:
        return await self._references.last()

    async def commits(self, after: int, *, split: bool) -> Rows:
        return set(await self._references.commits(after))

    async def join(self, stored: Rows, needed: Sequence[Rows]) -> Found:
        addresses = set().union(*needed)
        blobs = [one for one in stored if isinstance(one, StoredBlob)]
        return Found(
            tuple(one for one in blobs if one.address not in addresses),
            tuple(one for one in blobs if one.trashed and one.address in addresses),
            len(blobs),
            sum(one.size for one in blobs),
        )


class Collectors:
    """Makes runs, each a grace period after the one before, or at the same time."""

    def __init__(self, js: JetStream, subjects: Subjects, blobs: CollectableBlobs) -> None:
        self.blobs = blobs
        self._ids = (f"run{number}" for number in itertools.count())
        self.given = js, subjects, blobs

    def collector(self, grace: float = 0.0) -> Collector:
        tables = PlainTables(*self.given)
        return Collector(*self.given, tables, owner="test", new_id=lambda: next(self._ids), grace=grace)

    async def run(self, grace: float = 0.0, *, dry: bool = False) -> Run:
        return await self.collector(grace).run(dry=dry)

    async def rest(self) -> set[str]:
        """Run until all garbage is erased, and return the blobs that are stored then."""
        for _ in range(4):
            await self.run()
        return set(await self.stored())

    async def stored(self) -> dict[str, StoredBlob]:
        return {blob.address: blob async for blob in self.blobs.stored()}

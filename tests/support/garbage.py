"""Finds garbage without Spark: the queries of `rebaser.gc.finding`, implemented with dictionaries and sets."""

from collections.abc import Sequence
from typing import TypeAlias

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

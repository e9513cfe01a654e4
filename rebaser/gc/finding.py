"""Finds the blobs that no stored message needs.

Invariant: the list of stored blobs is complete before the first message is read, and the messages are read in the order
of `rebaser_client.garbage`. So no blob counts as garbage merely because its message is younger than the list.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from rebaser_core.garbage import StoredBlob
from rebaser_core.record import record

T = TypeVar("T")


@record
class Found:
    """The blobs that no message needs, and those in the trash that one needs. `blobs`, `size`: of the whole store."""

    unneeded: tuple[StoredBlob, ...]
    needed_in_trash: tuple[StoredBlob, ...]
    blobs: int
    size: int


class Tables(Protocol[T]):
    """Where stored blobs and references are read, and joined. Each method has read everything when it returns.

    The methods raise `TransientError`, or `DvuError` if Spark is not available.
    """

    async def stored(self) -> T:
        """Return the stored blobs."""
        ...

    async def queued(self) -> T:
        """Return what dead letters and queued requests need."""
        ...

    async def newest(self) -> int:
        """Return the log sequence of the newest commit."""
        ...

    async def commits(self, after: int, *, split: bool) -> T:
        """Return what the commits after log sequence `after` need. `split`: they may be read in any order."""
        ...

    async def join(self, stored: T, needed: Sequence[T]) -> Found:
        """Return the blobs of `stored` that none of `needed` has, and those in the trash that one of these has."""
        ...


async def find_garbage(tables: Tables[T]) -> Found:
    """Return what no message needs. Raises the errors of `Tables`."""
    stored = await tables.stored()
    queued = await tables.queued()
    newest = await tables.newest()
    # A new commit may name a blob that only an older commit named, and the older one may be purged before it is read.
    # So the commits that were added meanwhile are read last, in stream order and up to the end.
    commits = await tables.commits(0, split=True)
    added = await tables.commits(newest, split=False)
    return await tables.join(stored, [queued, commits, added])

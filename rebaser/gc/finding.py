"""Finds the blobs that no stored message needs.

Invariant: the list of stored blobs is complete before the first message is read, and the messages are read in the order
of `rebaser_client.garbage`. So no blob counts as garbage merely because its message is younger than the list.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from rebaser_core.blobs.garbage import StoredBlob
from rebaser_core.record import record

T = TypeVar("T")


@record
class Found:
    """The blobs that no message needs, and the blobs in the trash that a message needs. `blobs`, `size`: number and
    bytes of all blobs in the store."""

    unneeded: tuple[StoredBlob, ...]
    needed_in_trash: tuple[StoredBlob, ...]
    blobs: int
    size: int


class Tables(Protocol[T]):
    """Reads which blobs are stored and which blobs messages refer to, and joins the two. Each method has read
    everything when it returns.

    The methods raise `TransientError`, or `DvuError` if Spark is not available.
    """

    async def stored(self) -> T:
        """Return the stored blobs."""
        ...

    async def queued(self) -> T:
        """Return the references to blobs in dead letters and queued requests."""
        ...

    async def newest(self) -> int:
        """Return the log sequence of the newest commit."""
        ...

    async def commits(self, after: int, *, split: bool) -> T:
        """Return the references to blobs in all commits after log sequence `after`. If `split` is true, the commits may
        be read in any order."""
        ...

    async def join(self, stored: T, needed: Sequence[T]) -> Found:
        """Return the blobs of `stored` that are in none of `needed`, and those in the trash that are in one of
        `needed`."""
        ...


async def find_garbage(tables: Tables[T]) -> Found:
    """Return the blobs that no message needs, and the needed blobs in the trash. Raises the errors of `Tables`."""
    stored = await tables.stored()
    queued = await tables.queued()
    newest = await tables.newest()
    # A new commit may name a blob that only an older commit named, and that older commit may be purged before it is
    # read. So the commits that were added meanwhile are read last, in stream order and up to the end.
    commits = await tables.commits(0, split=True)
    added = await tables.commits(newest, split=False)
    return await tables.join(stored, [queued, commits, added])

"""Finds the blobs that no stored message needs.

Invariant: the list of stored blobs is complete before the first message is read, and the messages are read in the order
that `rebaser_client.garbage` requires. Otherwise, a blob could count as garbage merely because the message that needs
it was stored after the list was made.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from rebaser_core.blobs.garbage import StoredBlob
from rebaser_core.record import record

T = TypeVar("T")


@record
class Found:
    """The blobs that no message needs (`unneeded`), and the blobs in the trash that a message needs
    (`needed_in_trash`). `blobs` is the number of all blobs in the store, and `size` is their size in bytes."""

    unneeded: tuple[StoredBlob, ...]
    needed_in_trash: tuple[StoredBlob, ...]
    blobs: int
    size: int


class Tables(Protocol[T]):
    """Reads which blobs are stored and which blobs messages refer to, and joins the two. A method that returns a table
    has read it completely.

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
        """Return the references to blobs in all commits after log sequence `after`. If `split` is true, several readers
        may read parts of the log in any order."""
        ...

    async def join(self, stored: T, needed: Sequence[T]) -> Found:
        """Return the blobs of `stored` to which no item of `needed` refers, and the blobs in the trash to which an item
        refers."""
        ...


async def find_garbage(tables: Tables[T]) -> Found:
    """Return the blobs that no message needs, and the needed blobs in the trash. Raise the errors of `Tables`."""
    stored = await tables.stored()
    queued = await tables.queued()
    newest = await tables.newest()
    # A new commit may refer to a blob to which only an older commit referred before, and that older commit may be
    # purged before it is read. This is why the commits that were added meanwhile are read last, in stream order and up
    # to the end.
    commits = await tables.commits(0, split=True)
    added = await tables.commits(newest, split=False)
    return await tables.join(stored, [queued, commits, added])

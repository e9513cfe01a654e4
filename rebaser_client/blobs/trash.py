"""The protocol of blob stores whose garbage can be collected.

Invariant: garbage collection erases only the version of a blob that it listed (`StoredBlob.version`). A blob that is
stored again after it was listed stays in the store, or is moved to the trash, where every reader finds it.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from rebaser_client.blobs.store import BlobStore
from rebaser_core.blobs.garbage import StoredBlob


class CollectableBlobs(BlobStore, Protocol):
    """A `BlobStore` with a trash. All methods raise `TransientError` if the store is not available."""

    def stored(self) -> AsyncIterator[StoredBlob]:
        """Yield all blobs in the store and in its trash. A blob that is moved meanwhile may be yielded twice."""
        ...

    async def register(self, installation: str) -> None:
        """Write a note into the store that says that `installation` uses it."""
        ...

    async def installations(self) -> dict[str, str]:
        """Return the names of the installations that have a note in the store, by the path of the note."""
        ...

    async def discard(self, blob: StoredBlob) -> bool:
        """Move a blob to the trash. Return False, and do nothing, if it was stored again or moved after `blob` was
        listed."""
        ...

    async def restore(self, blob: StoredBlob) -> bool:
        """Take a blob out of the trash. Return False if it is no longer in the trash."""
        ...

    async def erase(self, blob: StoredBlob) -> bool:
        """Delete a blob in the trash permanently. Return False if it is no longer in the trash."""
        ...

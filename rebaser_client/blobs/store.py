"""The protocol of blob stores: `put` takes content and returns its address; `get` takes an address and returns the
content.

Invariant: a blob whose address `put` returned can be read back, byte for byte. The bytes that `get` returns have the
requested hash. A blob never changes, so writing it twice is the same as writing it once.
"""

from typing import Protocol

from rebaser_core.blobs.address import address_of, check_address
from rebaser_core.errors import TransientError

MAX_BLOB = 2**31  # bytes


class BlobMissing(TransientError):  # noqa: N818 - a state of the store
    """There is no blob at this address. It may appear later, because a store may lag behind its writer."""

    default_code = "blob_missing"


class BlobCorrupt(TransientError):  # noqa: N818 - a state of the blob
    """A stored blob is damaged: its content does not match the hash in its address, or its description cannot be read.
    Another attempt may read it intact."""

    default_code = "blob_corrupt"


class BlobStore(Protocol):
    """A content-addressed store. Addresses are `sha256:<hex>`. Sizes are bytes."""

    async def put(self, data: bytes) -> str:
        """Store `data`, read it back, and return its address. Raises `TransientError` if that fails."""
        ...

    async def has(self, address: str) -> bool:
        """Return whether the blob is stored; its content is not read. If it is in the trash, take it out. Raises
        `TransientError`."""
        ...

    async def get(self, address: str, *, max_bytes: int = MAX_BLOB) -> bytes:
        """Return the blob at `address`.

        Raises `UnprocessableError` for an invalid address (code `invalid_address`) or a blob larger than `max_bytes`
        (`too_large`), `BlobMissing`, `BlobCorrupt`, or `TransientError` if the store is not available.
        """
        ...


def verify(address: str, data: bytes) -> bytes:
    """Return `data` if it has the hash in `address`; otherwise raise `BlobCorrupt`."""
    if address_of(data) != address:
        raise BlobCorrupt(f"the content of blob {address} does not match its hash")
    return data


__all__ = ["MAX_BLOB", "BlobCorrupt", "BlobMissing", "BlobStore", "address_of", "check_address", "verify"]

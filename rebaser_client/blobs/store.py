"""The protocol of blob stores: `put` stores content and returns its address, and `get` returns the content at an
address.

Invariant: a blob whose address `put` returned can be read back, byte for byte. The bytes that `get` returns have the
hash in the address. A blob never changes, so writing it twice has the same effect as writing it once.
"""

from typing import Protocol

from rebaser_core.blobs.address import address_of, check_address
from rebaser_core.errors import TransientError

MAX_BLOB = 2**31  # bytes


class BlobMissing(TransientError):  # noqa: N818 - named after a state of the store
    """There is no blob at this address. It may appear later, because a store may lag behind its writer."""

    default_code = "blob_missing"


class BlobCorrupt(TransientError):  # noqa: N818 - named after a state of the blob
    """A stored blob is damaged: its content does not match the hash in its address, or its description cannot be read.

    A retry may succeed, because another attempt may read the blob intact.
    """

    default_code = "blob_corrupt"


class BlobStore(Protocol):
    """A content-addressed store. An address has the form `sha256:<hex>`. Sizes are in bytes."""

    async def put(self, data: bytes) -> str:
        """Store `data`, read it back, and return its address. Raise `TransientError` if that fails."""
        ...

    async def has(self, address: str) -> bool:
        """Return whether the blob is stored, without reading its content. If the blob is in the trash, move it back.

        Raise `TransientError` if the store is not available.
        """
        ...

    async def get(self, address: str, *, max_bytes: int = MAX_BLOB) -> bytes:
        """Return the blob at `address`.

        Raise `UnprocessableError` for an invalid address (code `invalid_address`) or a blob larger than `max_bytes`
        (`too_large`), `BlobMissing` if there is no blob, `BlobCorrupt` if the blob is damaged, or `TransientError` if
        the store is not available.
        """
        ...


def verify(address: str, data: bytes) -> bytes:
    """Return `data` if it has the hash in `address`; otherwise raise `BlobCorrupt`."""
    if address_of(data) != address:
        raise BlobCorrupt(f"the content of blob {address} does not match its hash")
    return data


__all__ = ["MAX_BLOB", "BlobCorrupt", "BlobMissing", "BlobStore", "address_of", "check_address", "verify"]

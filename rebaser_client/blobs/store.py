"""What every blob store does: content in, address out; address in, the same content out.

Invariant: an address that `put` returned can be read back, byte for byte; what `get` returns has the hash it was asked
for. A blob never changes, so writing it twice is writing it once.
"""

from typing import Protocol

from rebaser_core.blob_address import address_of, check_address
from rebaser_core.errors import TransientError

MAX_BLOB = 2**31  # bytes


class BlobMissing(TransientError):  # noqa: N818 - what it says
    """There is no blob of this address, or not yet: a store may be behind its writer."""

    default_code = "blob_missing"


class BlobCorrupt(TransientError):  # noqa: N818 - as above
    """What is stored under the address is something else. Another try may read it whole."""

    default_code = "blob_corrupt"


class BlobStore(Protocol):
    """A content-addressed store. Addresses are `sha256:<hex>`; sizes are bytes."""

    async def put(self, data: bytes) -> str:
        """Store `data` and return its address, once it was read back. Raises `TransientError` if it cannot be."""
        ...

    async def get(self, address: str, *, max_bytes: int = MAX_BLOB) -> bytes:
        """The blob at `address`. Raises `UnprocessableError` for no address (code `invalid_address`) or a blob larger
        than `max_bytes` (`too_large`), `BlobMissing`, `BlobCorrupt`, or `TransientError` if the store is away.
        """
        ...


def verify(address: str, data: bytes) -> bytes:
    """`data` if it is what `address` names, else raises `BlobCorrupt`."""
    if address_of(data) != address:
        raise BlobCorrupt(f"blob {address} does not have its hash")
    return data


__all__ = ["MAX_BLOB", "BlobCorrupt", "BlobMissing", "BlobStore", "address_of", "check_address", "verify"]

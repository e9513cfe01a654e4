"""A blob store in a map."""

from typing import Any

from rebaser_core.blob_address import address_of


class KeptBlobs:
    """`kept` by address."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def put(self, data: bytes) -> str:
        self.kept[address_of(data)] = data
        return address_of(data)


def kept_blobs() -> Any:
    """For code that takes a `BlobStore` and only puts."""
    return KeptBlobs()

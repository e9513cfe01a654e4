"""Measures calls to the blob store and to the JetStream API, for the metrics of a server process."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

from rebaser.runtime.reading import reading
from rebaser.telemetry.feeds import api_call, blob_operation
from rebaser_client.blobs import BlobStore
from rebaser_client.blobs.store import MAX_BLOB
from rebaser_client.jetstream import JetStream

T = TypeVar("T")


class MeasuredJetStream(JetStream):
    """A `JetStream` that measures its calls to the JetStream API. It does not measure publishing."""

    async def call(
        self,
        subject: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - see Connection.request
    ) -> dict[str, Any]:
        with api_call():
            return await super().call(subject, body, timeout=timeout)


class MeasuredBlobs:
    """A `BlobStore` that measures the operations on `store`."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def put(self, data: bytes) -> str:
        return await _measured("put", self._store.put(data), lambda _: len(data))

    async def has(self, address: str) -> bool:
        return await _measured("has", self._store.has(address), lambda _: 0)

    async def get(self, address: str, *, max_bytes: int = MAX_BLOB) -> bytes:
        with reading(f"blob {address}"):
            return await _measured("get", self._store.get(address, max_bytes=max_bytes), len)


async def _measured(op: Literal["put", "has", "get"], work: Awaitable[T], size: Callable[[T], int]) -> T:
    with blob_operation(op) as moved:
        found = await work
        moved.append(size(found))
        return found

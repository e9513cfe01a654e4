"""The trash of the blob store in NATS: blobs whose chunks are kept, but whose descriptions are marked as deleted.

Invariants: a description is replaced only if it is still the newest description of the blob, so a blob that is stored
again meanwhile is kept. Chunks are removed only after the description that refers to them has been replaced.

Garbage collection is background work, so it must not slow down other clients of NATS: this class reads descriptions in
small batches with rests in between, and moves or erases one blob at a time.
"""

import base64
import binascii
import json
from collections.abc import AsyncIterator

import anyio

from rebaser_client.blobs.description import Description
from rebaser_client.blobs.nats import JetStreamBlobs
from rebaser_client.blobs.store import BlobCorrupt
from rebaser_client.jetstream import JetStream, Message, NoRespondersError, OrderedConsumer
from rebaser_client.jetstream.batched import read_in_batches
from rebaser_client.logs import get_logger
from rebaser_client.nats.errors import NotAllowed
from rebaser_client.pace import Pace
from rebaser_core.blobs.address import is_address
from rebaser_core.blobs.garbage import StoredBlob

log = get_logger(__name__)

SILENCE = 1.0  # seconds without a description, after which the reader asks NATS whether there are more
CHUNK = 512  # number of descriptions that are read before other tasks run
REST = 6.0  # seconds of rest for each second of processor time that reading takes
BITS_PER_SECOND = 16_000_000  # at which NATS sends descriptions to a client without the right to pull


class JetStreamTrash(JetStreamBlobs):
    """The `CollectableBlobs` in NATS. The version of a blob is the stream sequence of its description."""

    def __init__(self, js: JetStream, bucket: str) -> None:
        super().__init__(js, bucket)
        self._turn = anyio.Lock()

    async def stored(self) -> AsyncIterator[StoredBlob]:
        # A description has a subject of its own, on which it is the only message.
        descriptions = self._meta_of("*", plain=True)
        listed = 0
        try:
            async for message in read_in_batches(self._js, self._stream, descriptions, Pace(rest=REST)):
                listed += 1
                if (blob := _stored_blob(message)) is not None:
                    yield blob
        except (NotAllowed, NoRespondersError) as error:
            if listed:
                raise
            log.warning("blobs_listed_at_once", reason=error.message)
            async for message in self._all_at_once(descriptions):
                if (blob := _stored_blob(message)) is not None:
                    yield blob

    async def _all_at_once(self, descriptions: str) -> AsyncIterator[Message]:
        """Yield the messages that match `descriptions`, for a client that has no right to pull."""
        last, read = (await self._js.stream_info(self._stream)).last_sequence, 0
        config = {"rate_limit_bps": BITS_PER_SECOND}
        async with OrderedConsumer(
            self._js, self._stream, descriptions, start="last_per_subject", config=config
        ) as consumer:
            while read < last:
                with anyio.move_on_after(SILENCE):
                    await consumer.wait()
                if not consumer.pending and await self._js.next(self._stream, descriptions, read + 1) is None:
                    return
                for message in consumer.take(CHUNK):
                    read = message.stream_sequence
                    yield message
                await anyio.lowlevel.checkpoint()

    async def register(self, installation: str) -> None:
        """Do nothing: only this installation uses the bucket, whose name contains the prefix of the installation."""

    async def installations(self) -> dict[str, str]:
        return {}

    async def discard(self, blob: StoredBlob) -> bool:
        async with self._turn:
            description = await self._still(blob)
            if description is None:
                return False
            return await self._replace(blob.address, description.sequence, description.in_trash())

    async def restore(self, blob: StoredBlob) -> bool:
        async with self._turn:
            description = await self._still(blob)
            return description is not None and await self._restore(blob.address, description)

    async def erase(self, blob: StoredBlob) -> bool:
        async with self._turn:
            description = await self._still(blob)
            if description is None or not await self._replace(blob.address, description.sequence, _erased(description)):
                return False
            await self._js.purge(self._stream, self._chunks_of(description.nuid))
            erased = await self._js.last(self._stream, self._meta_of(blob.address))
            if erased is not None and json.loads(erased.data).get("deleted") and erased.sequence > description.sequence:
                await self._js.purge(self._stream, self._meta_of(blob.address), sequence=erased.sequence + 1)
            return True

    async def _still(self, blob: StoredBlob) -> Description | None:
        """Return the description of `blob`; None if it was replaced or deleted since `blob` was listed."""
        try:
            description = await self._describe(blob.address)
        except BlobCorrupt:
            return None
        if description is None or (str(description.sequence), description.trashed) != (blob.version, blob.trashed):
            return None
        return description


def _erased(description: Description) -> bytes:
    return json.dumps(description.raw | {"deleted": True, "metadata": {}, "chunks": 0, "size": 0}).encode()


def _stored_blob(message: Message) -> StoredBlob | None:
    """Return the blob that a message describes; None if the message is not the description of a blob of Rebaser."""
    try:
        address = base64.urlsafe_b64decode(message.subject.rpartition(".")[2]).decode()
    except (binascii.Error, ValueError):
        return None
    if not is_address(address):
        return None
    stored_ns, sequence = message.timestamp_ns, message.stream_sequence
    try:
        description = Description.read(address, sequence, stored_ns / 1e9, message.data)
    except BlobCorrupt:
        log.warning("blob_description_damaged", address=address)
        return None
    if description is None:
        return None
    return StoredBlob(address, description.size, stored_ns // 1_000_000, str(sequence), description.trashed)

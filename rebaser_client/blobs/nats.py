"""Blobs in NATS, in the layout of the NATS object store (ADR-20), so that NATS tools can read them.

Invariants: each put writes its chunks under a new name and never changes them, so readers and writers of the same
content cannot interfere with each other. Chunks are read back while they are written. The description is published
after all chunks are stored, and NATS confirms it. A put that failed removes only its own chunks.

The age of a blob is the age of its description. A put that finds an old blob publishes the description again. A get
that finds the blob in the trash publishes its earlier description again. Both publish only if no other client has
replaced the description meanwhile (see `nats_trash`).
"""

import base64
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import anyio

from rebaser_client.backoff import Backoff
from rebaser_client.blobs.description import Description, digest_of, stored_at
from rebaser_client.blobs.store import MAX_BLOB, BlobCorrupt, BlobMissing, address_of, check_address, verify
from rebaser_client.jetstream import ApiError, JetStream, OrderedConsumer
from rebaser_client.jetstream.errors import WRONG_LAST_SEQUENCE
from rebaser_client.load_progress import LOADING
from rebaser_client.logs import get_logger
from rebaser_client.task_groups import flat_task_group
from rebaser_core import thresholds
from rebaser_core.blobs import garbage
from rebaser_core.errors import RebaserError, TransientError, UnprocessableError

log = get_logger(__name__)

CHUNK = 128 * 1024  # the chunk size in bytes, as in ADR-20
READ = 16  # number of chunks that are compared before other tasks run; this takes about a millisecond
ROLLUP = {"Nats-Rollup": "sub"}
TRIES = 5
PUT_RETRY = 0.05  # seconds before the second attempt; doubled each time
DESCRIPTION_RETRY = 0.1  # seconds before the second attempt to publish the description
SILENCE = 10.0  # seconds without a chunk after which the next chunk counts as missing


class JetStreamBlobs:
    """A `BlobStore` on the stream `OBJ_<bucket>`. The address of a blob is its name in the NATS object store."""

    def __init__(self, js: JetStream, bucket: str) -> None:
        self._js = js
        self._bucket = bucket
        self._stream = f"OBJ_{bucket}"

    async def put(self, data: bytes) -> str:
        address = await _address_of(data)
        if await self._is_there(address, len(data)) and await self._renew(address):
            return address
        backoff = Backoff(PUT_RETRY)
        for attempt in range(1, TRIES + 1):
            try:
                await self._write(address, data)
            except TransientError as error:
                if attempt == TRIES:
                    raise
                log.warning("blob_put_failed", address=address, attempt=attempt, reason=error.message)
            else:
                return address
            await anyio.sleep(backoff.next_delay())
        raise AssertionError("the last attempt returns or raises")

    async def get(self, address: str, *, max_bytes: int = MAX_BLOB) -> bytes:
        check_address(address)
        description = await self._describe(address)
        if description is None:
            raise BlobMissing(f"there is no blob {address} in the blob store of NATS")
        if description.trashed:
            await self._restore(address, description)
        if description.size > max_bytes:
            text = f"blob {address} has {description.size} bytes; at most {max_bytes} are allowed"
            raise UnprocessableError(text, code="too_large")
        data = await self._read(address, description)
        if len(data) > thresholds.now.hash_on_loop_max_bytes:
            return await anyio.to_thread.run_sync(verify, address, data)
        return verify(address, data)

    async def has(self, address: str) -> bool:
        description = await self._describe(check_address(address))
        if description is None:
            return False
        return await self._restore(address, description) if description.trashed else True

    async def _is_there(self, address: str, size: int) -> bool:
        try:
            await self.get(address, max_bytes=size)
        except (BlobMissing, BlobCorrupt, UnprocessableError):
            return False
        return True

    async def _renew(self, address: str) -> bool:
        """Store the description again if it is old. Return whether the stored description is now fresh."""
        description = await self._describe(address)
        if description is None or description.trashed:
            return False
        if time.time() - description.stored <= garbage.FRESH_FOR:
            return True
        return await self._replace(address, description.sequence, description.alive())

    async def _restore(self, address: str, description: Description) -> bool:
        """Take a blob out of the trash. Return False if another client has replaced its description meanwhile."""
        restored = await self._replace(address, description.sequence, description.alive())
        log.info("blob_restored", address=address, bytes=description.size, done=restored)
        return restored

    async def _replace(self, address: str, sequence: int, description: bytes) -> bool:
        """Replace the description that is stored at the stream sequence `sequence`.

        Return False, and do nothing, if another client has replaced it meanwhile.
        """
        try:
            await self._js.publish(self._meta_of(address), description, ROLLUP, expected_last_subject_sequence=sequence)
        except ApiError as error:
            if error.err_code != WRONG_LAST_SEQUENCE:
                raise
            return False
        return True

    async def _write(self, address: str, data: bytes) -> None:
        nuid = self._js.connection.new_name()
        subject = self._chunks_of(nuid)
        count = -(-len(data) // CHUNK)
        description = {
            "name": address,
            "bucket": self._bucket,
            "nuid": nuid,
            "size": len(data),
            "chunks": count,
            "digest": digest_of(address),
            "mtime": datetime.now(UTC).isoformat(),
            "options": {"max_chunk_size": CHUNK},
        }
        try:
            await self._store(subject, data)
        except BaseException:
            # No description refers to these chunks yet. If publishing the description fails below, the chunks stay,
            # because NATS may have stored the description.
            self._js.connection.spawn(self._remove, subject)
            raise
        await self._publish_description(address, json.dumps(description).encode())
        stored = await self._describe(address)
        if stored is None or stored.nuid != nuid:  # another put replaced this description, or the blob was deleted
            await self.get(address, max_bytes=len(data))

    async def _store(self, subject: str, data: bytes) -> None:
        """Publish the chunks, read them back and compare them with `data`."""
        if len(data) <= CHUNK:
            await self._js.publish_all(subject, _split(data))
            stored = await self._js.last(self._stream, subject) if data else None
            if (stored.data if stored else b"") != data:
                raise BlobCorrupt("the chunk of a new blob is missing, or differs from the bytes that were written")
            return
        written = anyio.Event()

        async def publish() -> None:
            await self._js.publish_all(subject, _split(data))
            written.set()

        # The consumer is created before anything is published, so that the server delivers every chunk to it.
        async with OrderedConsumer(self._js, self._stream, subject) as consumer, flat_task_group() as group:
            group.start_soon(publish)
            await self._compare(consumer, data, written)
            consumer.close_soon()

    async def _compare(self, consumer: OrderedConsumer, data: bytes, written: anyio.Event) -> None:
        """Return once all of `data` has been read back, chunk by chunk.

        Raise `BlobCorrupt` for a chunk that differs, and `BlobMissing` if all chunks are `written`, but some of them
        do not arrive.
        """
        offset = 0
        while offset < len(data):
            complete = written.is_set()  # read before the wait, so that at least one full wait follows the last ack
            with anyio.move_on_after(SILENCE) as silence:
                await consumer.wait()
            if silence.cancelled_caught and complete:
                text = f"only {offset} of {len(data)} bytes of a new blob could be read back; no further chunk arrived"
                raise BlobMissing(f"{text} within {SILENCE:g} s")
            for message in consumer.take(READ):
                if message.data != data[offset : offset + CHUNK]:
                    raise BlobCorrupt("a chunk of a new blob differs from the bytes that were written")
                offset += CHUNK

    async def _publish_description(self, address: str, description: bytes) -> None:
        """Publish the description, and retry until NATS confirms it. Each attempt stores the same content.

        Raise the error of the last attempt.
        """
        backoff = Backoff(DESCRIPTION_RETRY)
        for attempt in range(1, TRIES + 1):
            try:
                await self._js.publish(self._meta_of(address), description, ROLLUP)
            except TransientError as error:
                if attempt == TRIES:
                    raise
                log.warning("blob_description_unanswered", address=address, attempt=attempt, reason=error.message)
                await anyio.sleep(backoff.next_delay())
            else:
                return

    async def _remove(self, subject: str) -> None:
        try:
            await self._js.purge(self._stream, subject)
        except RebaserError as error:
            log.warning("blob_chunks_not_removed", subject=subject, reason=error.message)

    async def _describe(self, address: str) -> Description | None:
        # The read goes to the leader of the stream, because a replica might not have the description yet.
        stored = await self._js.last(self._stream, self._meta_of(address))
        return None if stored is None else Description.read(address, stored.sequence, stored_at(stored), stored.data)

    async def _read(self, address: str, description: Description) -> bytes:
        if description.chunks == 0:
            return b""
        subject = self._chunks_of(description.nuid)
        if description.chunks == 1:
            stored = await self._js.last(self._stream, subject)
            if stored is None:
                raise BlobMissing(f"the chunk of blob {address} is missing")
            return stored.data
        chunks: list[bytes] = []
        room, progress = description.size, LOADING.get()
        async with OrderedConsumer(self._js, self._stream, subject) as consumer:
            while len(chunks) < description.chunks:
                with anyio.move_on_after(SILENCE) as silence:
                    await consumer.wait()
                if silence.cancelled_caught:
                    raise await self._not_arrived(address, subject, len(chunks), description.chunks)
                for message in consumer.take(description.chunks - len(chunks)):
                    room -= len(message.data)
                    if room < 0:
                        raise BlobCorrupt(f"blob {address} is larger than its description says")
                    chunks.append(message.data)
                    if progress is not None:
                        progress.add(len(message.data))
        return b"".join(chunks)

    async def _not_arrived(self, address: str, subject: str, arrived: int, chunks: int) -> TransientError:
        """Return the error to raise for a blob of which only `arrived` chunks were delivered.

        The error is `BlobMissing` if the other chunks are not stored.
        """
        stored = (await self._js.subject_counts(self._stream, subject)).get(subject, 0)
        if stored < chunks:
            return BlobMissing(f"blob {address} has only {stored} of {chunks} chunks")
        return TransientError(f"only {arrived} of {chunks} chunks of blob {address} arrived", code="blob_timeout")

    def _chunks_of(self, nuid: str) -> str:
        return f"$O.{self._bucket}.C.{nuid}"

    def _meta_of(self, address: str, *, plain: bool = False) -> str:
        """Return the subject of a description. If `plain` is true, `address` is a wildcard, and is not encoded."""
        name = address if plain else base64.urlsafe_b64encode(address.encode()).decode()
        return f"$O.{self._bucket}.M.{name}"


def _split(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


async def _address_of(data: bytes) -> str:
    if len(data) > thresholds.now.hash_on_loop_max_bytes:
        return await anyio.to_thread.run_sync(address_of, data)
    return address_of(data)

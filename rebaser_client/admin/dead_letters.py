"""Finds, redrives and drops the dead letters of an installation.

Invariant: a redrive deletes the dead letter only after NATS has confirmed that the request is stored again, and after
its task is published. After a crash in between, the dead letter can be redriven a second time. The second redrive
changes nothing, because the log already has the outcome of the request.
"""

from collections.abc import AsyncIterator

import anyio

from rebaser_client.backoff import Backoff
from rebaser_client.blobs import BlobStore
from rebaser_client.blobs.store import MAX_BLOB
from rebaser_client.jetstream import ApiError, JetStream, NoAnswerError, StoredMessage
from rebaser_client.jetstream.errors import is_full
from rebaser_client.requests.backpressure import Backpressure
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import check_token
from rebaser_core.messages.dead_letter import DeadLetter, read_letter, redriven_headers
from rebaser_core.streams.subjects import Subjects

ATTEMPTS = 5
RETRY_MIN = 0.1  # seconds, before jitter


class DeadLetterBox:
    """The dead letters of an installation. All methods raise `TransientError` if NATS or the blob store is not
    available."""

    def __init__(self, js: JetStream, subjects: Subjects, blobs: BlobStore, backpressure: Backpressure) -> None:
        self._js = js
        self._backpressure = backpressure
        self._subjects = subjects
        self._blobs = blobs

    async def find(
        self,
        workspace: str | None = None,
        change_set: str | None = None,
        *,
        code: str | None = None,
        request_id: str | None = None,
        after: int = 0,
    ) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters that match all given arguments, oldest first.

        To continue an earlier call, pass the `sequence` of its last dead letter as `after`.

        Dead letters that arrive during the iteration may be included. Raise `UnprocessableError` for an invalid name.
        """
        tokens = ["*" if name is None else check_token(name, "name") for name in (workspace, change_set)]
        subject = ".".join((self._subjects.root, "dlq", *tokens))
        sequence = after + 1
        while (stored := await self._js.next(self._subjects.dlq_stream, subject, sequence)) is not None:
            sequence = stored.sequence + 1
            letter = self._letter(stored)
            if letter is not None and code in (None, letter.code) and request_id in (None, letter.request_id):
                yield letter

    async def get(self, sequence: int) -> DeadLetter | None:
        """Return the dead letter with this sequence, or None if it no longer exists."""
        stored = await self._js.get(self._subjects.dlq_stream, sequence)
        return None if stored is None else self._letter(stored)

    async def payload(self, letter: DeadLetter, *, max_bytes: int = MAX_BLOB) -> bytes | None:
        """Return the payload of the request, if necessary from the blob store; None if the dead letter no longer
        exists.

        Raise `UnprocessableError`, with code `too_large`, for a blob of more than `max_bytes`, and `BlobMissing` if the
        blob does not exist.
        """
        stored = await self._js.get(self._subjects.dlq_stream, letter.sequence)
        if stored is None:
            return None
        if not letter.payload_address:
            return stored.data
        return await self._blobs.get(letter.payload_address, max_bytes=max_bytes)

    async def redrive(self, letter: DeadLetter) -> bool:
        """Append the request to the queue of its change set, with its original id, and drop the dead letter.

        Return False, and send nothing, if the dead letter no longer exists. Raise `QueueFull` if the queue is full.

        A request that servers could not read has an id that begins with `@`, or one from its header `Nats-Msg-Id`.
        Redriving such a request helps only once servers can read it.
        """
        payload = await self.payload(letter)
        if payload is None:
            return False
        await self._publish(letter, payload)
        await publish_task(self._js, self._subjects, letter.key)
        await self.drop(letter)
        return True

    async def drop(self, letter: DeadLetter) -> None:
        """Delete the dead letter permanently. If it no longer exists, do nothing."""
        await self._js.delete_message(self._subjects.dlq_stream, letter.sequence)

    async def _publish(self, letter: DeadLetter, payload: bytes) -> None:
        headers = redriven_headers(letter)
        backoff = Backoff(RETRY_MIN)
        while True:
            try:
                await self._js.publish(self._subjects.requests(letter.key), payload, headers)
            except ApiError as error:
                if is_full(error):
                    raise self._backpressure.refused(letter.key, error) from error
                raise
            except NoAnswerError:
                if backoff.attempt == ATTEMPTS - 1:
                    raise
            else:
                self._backpressure.accepted(letter.key)
                return
            await anyio.sleep(backoff.next_delay())

    def _letter(self, stored: StoredMessage) -> DeadLetter | None:
        try:
            _, key = self._subjects.parse(stored.subject)
        except UnprocessableError:
            return None  # Rebaser did not write this message
        return read_letter(stored.sequence, key, stored.headers, len(stored.data))


__all__ = ["DeadLetter", "DeadLetterBox"]

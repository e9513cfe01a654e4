"""The dead letters of an installation: to look through, to send again, to drop.

Invariant: a dead letter is deleted only after its request is stored again, confirmed, and its change set was woken.
What a crash leaves in between is redriven a second time, which changes nothing: by then the log knows the request.
"""

from collections.abc import AsyncIterator

import anyio

from rebaser_client.blobs import BlobStore
from rebaser_client.jetstream import ApiError, JetStream, RequestTimeoutError, StoredMessage
from rebaser_client.jetstream.errors import is_full
from rebaser_client.requests.backpressure import Backpressure
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.dead_letter import DeadLetter, read_letter, redriven_headers
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import check_token
from rebaser_core.subjects import Subjects

TRIES = 5


class DeadLetterBox:
    """All methods raise `TransientError` if NATS or the blob store cannot be asked."""

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
    ) -> AsyncIterator[DeadLetter]:
        """Dead letters, oldest first, of all or one workspace, change set, reason code, request id.

        Those that come while this runs may be among them. Raises `UnprocessableError` for a name that cannot be one.
        """
        tokens = ["*" if name is None else check_token(name, "name") for name in (workspace, change_set)]
        subject = ".".join((self._subjects.root, "dlq", *tokens))
        sequence = 1
        while (stored := await self._js.next(self._subjects.dlq_stream, subject, sequence)) is not None:
            sequence = stored.sequence + 1
            letter = self._letter(stored)
            if letter is not None and code in (None, letter.code) and request_id in (None, letter.request_id):
                yield letter

    async def payload(self, letter: DeadLetter) -> bytes | None:
        """What the request carried, from the blob store if it was large; None if the dead letter is gone."""
        stored = await self._js.get(self._subjects.dlq_stream, letter.sequence)
        if stored is None:
            return None
        return await self._blobs.get(letter.payload_address) if letter.payload_address else stored.data

    async def redrive(self, letter: DeadLetter) -> bool:
        """Put the request at the end of its change set's queue, under its own id, and drop the dead letter.

        Returns False, with nothing sent, if the dead letter is gone. Raises `QueueFull` if there is no room. Where the
        request could not be read (its id is `@…`, or only that of its `Nats-Msg-Id`), it is decided anew like any other
        message: that helps once servers can read it.
        """
        payload = await self.payload(letter)
        if payload is None:
            return False
        await self._publish(letter, payload)
        await publish_task(self._js, self._subjects, letter.key)
        await self.drop(letter)
        return True

    async def drop(self, letter: DeadLetter) -> None:
        """Delete the dead letter for good; one that is gone already is no error."""
        await self._js.delete_message(self._subjects.dlq_stream, letter.sequence)

    async def _publish(self, letter: DeadLetter, payload: bytes) -> None:
        headers = redriven_headers(letter)
        for attempt in range(1, TRIES + 1):
            try:
                await self._js.publish(self._subjects.requests(letter.key), payload, headers)
            except ApiError as error:
                if is_full(error):
                    raise self._backpressure.refused(letter.key, error) from error
                raise
            except RequestTimeoutError:
                if attempt == TRIES:
                    raise
            else:
                self._backpressure.accepted(letter.key)
                return
            await anyio.sleep(0.05 * 2**attempt)

    def _letter(self, stored: StoredMessage) -> DeadLetter | None:
        try:
            _, key = self._subjects.parse(stored.subject)
        except UnprocessableError:
            return None  # nothing a Rebaser wrote
        return read_letter(stored.sequence, key, stored.headers, len(stored.data))


__all__ = ["DeadLetter", "DeadLetterBox"]

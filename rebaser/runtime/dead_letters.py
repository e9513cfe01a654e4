"""Publishes dead letters: copies of requests that cannot be processed, with the reason in their headers.

Invariant: the copy is confirmed before the original is answered and deleted, so a dead request is always in at least
one of the two streams. In the copy, the `Nats-*` headers of the original are renamed, because the stream could refuse a
copy with the original names.
"""

from dataclasses import dataclass, field

import anyio

from rebaser_client.blobs import BlobStore
from rebaser_client.jetstream import JetStream, Message
from rebaser_core.commit import Decision
from rebaser_core.errors import RebaserError, TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages.dead_letter import HEADER_ROOM, PAYLOAD_ADDRESS, dead_headers
from rebaser_core.streams.subjects import Subjects

MAX_CONCURRENT = 64  # maximum copies in flight; with no maximum, a flood of bad requests could make all copies time out


@dataclass(frozen=True, slots=True)
class PendingDeadLetter:
    """A request with the outcome `dead` that is not yet copied to the dead letters, answered and deleted.

    `commit` is the log sequence of the commit that decided the request. If the request reuses the id of an earlier
    request, `commit` is the one that decided the earlier request. `duplicates` are the messages that repeat the
    request. They are answered only after the copy is stored.
    """

    message: Message
    decision: Decision
    commit: int
    duplicates: list[Message] = field(default_factory=list)


def dead_letter_refused(error: RebaserError) -> TransientError:
    """Return the error that reports a dead letter which was not stored because of `error`."""
    return TransientError(f"a dead letter was not stored: {error.message}", code="dead_letter_refused")


class DeadLetterPublisher:
    """Publishes dead letters of one installation. A header of each dead letter contains `server_id`."""

    def __init__(self, js: JetStream, subjects: Subjects, blobs: BlobStore, server_id: str) -> None:
        self._js = js
        self._subjects = subjects
        self._blobs = blobs
        self._server_id = server_id
        self._room = anyio.Semaphore(MAX_CONCURRENT, fast_acquire=True)

    async def publish(self, key: ChangeSetKey, message: Message, decision: Decision, at_ms: int) -> None:
        """Store a copy of `message`, and wait until NATS confirms the copy. Raise `TransientError` if it does not."""
        async with self._room:
            headers = dead_headers(
                message.headers, decision, key=key, subject=message.subject, server=self._server_id, at_ms=at_ms
            )
            data = message.data
            if len(data) + HEADER_ROOM > self._js.connection.max_payload:
                headers[PAYLOAD_ADDRESS] = await self._blobs.put(data)
                data = b""
            await self._js.publish(self._subjects.dlq(key), data, headers)

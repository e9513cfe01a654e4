"""Moves unroutable messages to the dead letters. These are requests whose subject identifies no change set, so no owner
would ever read them.

NATS stores every message that matches the subjects of the stream, even if its tokens are wildcards, too long, or not
text. The sweeper moves such a message to the dead letters of the change set `UNROUTABLE_KEY`, with the reason why the
subject identifies no change set, and then deletes the message.

Invariant: the copy is confirmed before the message is deleted. A message is examined again only if moving it failed.
"""

from collections.abc import Callable

import anyio
import structlog
from anyio import lowlevel

from rebaser.runtime.concurrency import run_concurrently
from rebaser.runtime.dead_letters import DeadLetterPublisher
from rebaser_client.jetstream import JetStream, Message, OrderedConsumer
from rebaser_core.commit import Decision, Outcome
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, sequence_id
from rebaser_core.streams.subjects import Subjects

log = structlog.get_logger(__name__)

UNROUTABLE_KEY = ChangeSetKey("-", "-")
MAX_MOVED = 256  # number of moved messages after which a sweep ends its search, so that it does not take too long
MAX_CONCURRENT = 32  # number of messages that are moved concurrently
CHUNK = 256  # number of subjects that are examined before other tasks may run
SILENCE = 1.0  # seconds without a message until the sweeper asks NATS whether there are more


class UnroutableMessages:
    """Moves the unroutable messages of one installation; `now_ms` returns Unix milliseconds."""

    def __init__(
        self, js: JetStream, subjects: Subjects, letters: DeadLetterPublisher, now_ms: Callable[[], int]
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._letters = letters
        self._now_ms = now_ms
        self._created = ""
        self._examined = 0  # request sequence up to which no unroutable messages remain

    async def move(self) -> int:
        """Move unroutable messages out of the stream of requests, about `MAX_MOVED` at most; return their number.

        Raise `TransientError` if NATS does not answer.
        """
        stream = self._subjects.requests_stream
        info = await self._js.stream_info(stream)
        if info.created != self._created or info.last_sequence < self._examined:
            self._created, self._examined = info.created, 0
        moved = 0
        # Subjects may contain wildcards, or bytes that are not text. Only the pattern `>` matches a subject that ends
        # in `>`, so the consumer has to read the whole stream.
        pattern, first = ">", max(self._examined + 1, info.first_sequence)
        async with OrderedConsumer(self._js, stream, pattern, start=first, headers_only=True) as consumer:
            while self._examined < info.last_sequence and moved < MAX_MOVED:
                with anyio.move_on_after(SILENCE):
                    await consumer.wait()
                if not consumer.pending and await self._js.next(stream, pattern, self._examined + 1) is None:
                    self._examined = info.last_sequence
                messages = consumer.take(CHUNK)
                unroutable = [(message, error) for message in messages if (error := self._problem(message))]
                await run_concurrently(unroutable, self._move_one, MAX_CONCURRENT)
                moved += len(unroutable)
                self._examined = messages[-1].stream_sequence if messages else self._examined
                await lowlevel.checkpoint()
        if moved:
            log.error("requests_without_change_set", count=moved, dlq=str(UNROUTABLE_KEY))
        return moved

    def _problem(self, message: Message) -> UnprocessableError | None:
        """Return the reason why the subject of `message` identifies no change set; None if it identifies one."""
        try:
            self._subjects.parse(message.subject)
        except UnprocessableError as error:
            return error
        return None

    async def _move_one(self, unroutable: tuple[Message, UnprocessableError]) -> None:
        message, error = unroutable
        stream, sequence = self._subjects.requests_stream, message.stream_sequence
        stored = await self._js.get(stream, sequence)
        if stored is None:
            return
        whole = Message(message.subject, message.reply, stored.data, stored.headers)
        decision = Decision(sequence, sequence_id(sequence), Outcome.DEAD, 0, error.code, error.message)
        await self._letters.publish(UNROUTABLE_KEY, whole, decision, self._now_ms())
        await self._js.delete_message(stream, sequence)

"""UnroutableMessages: messages in REQUESTS whose subject names no change set, so that nobody can ever own them.

NATS stores what matches the stream's subjects whatever a token is made of: a wildcard, bytes that are no text, too many
letters. The sweeper moves such a message to the dead letters of the change set `UNROUTABLE_KEY`, with its subject as
the reason, and deletes it.
Invariant: the copy is confirmed first; a message is looked at once, unless moving it failed.
"""

from collections.abc import Callable

import anyio
import structlog
from anyio.lowlevel import checkpoint

from rebaser.runtime.concurrency import run_concurrently
from rebaser.runtime.dead_letters import DeadLetterPublisher
from rebaser_client.jetstream import JetStream, Message, OrderedConsumer
from rebaser_core.commit import Decision, Outcome
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, sequence_id
from rebaser_core.subjects import Subjects

log = structlog.get_logger(__name__)

UNROUTABLE_KEY = ChangeSetKey("-", "-")
MOST = 256  # and the rest of a chunk, moved in one sweep: stranded change sets wait for the next
AT_ONCE = 32
CHUNK = 256  # subjects that are looked at before others get a turn
SILENCE = 1.0  # seconds without a message until the rest was deleted meanwhile


class UnroutableMessages:
    """Moves the strays of one installation; `now_ms` gives Unix time."""

    def __init__(
        self, js: JetStream, subjects: Subjects, letters: DeadLetterPublisher, now_ms: Callable[[], int]
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._letters = letters
        self._now_ms = now_ms
        self._created = ""
        self._seen = 0  # request sequence up to which there are none

    async def move(self) -> int:
        """Move those that there are now, some of them if they are many; returns how many. Raises `TransientError`."""
        stream = self._subjects.requests_stream
        info = await self._js.stream_info(stream)
        if info.created != self._created or info.last_sequence < self._seen:
            self._created, self._seen = info.created, 0
        moved = 0
        # By their subjects they cannot be asked for: one may hold bytes that are no text, or a wildcard, and what ends
        # in `>` is found by no pattern but this.
        pattern, first = ">", max(self._seen + 1, info.first_sequence)
        async with OrderedConsumer(self._js, stream, pattern, start=first, headers_only=True) as consumer:
            while self._seen < info.last_sequence and moved < MOST:
                with anyio.move_on_after(SILENCE):
                    await consumer.wait()
                if not consumer.pending and await self._js.next(stream, pattern, self._seen + 1) is None:
                    self._seen = info.last_sequence
                messages = consumer.take(CHUNK)
                strays = [(message, error) for message in messages if (error := self._problem(message))]
                await run_concurrently(strays, self._move_one, AT_ONCE)
                moved += len(strays)
                self._seen = messages[-1].stream_sequence if messages else self._seen
                await checkpoint()
        if moved:
            log.error("requests_without_change_set", count=moved, dlq=str(UNROUTABLE_KEY))
        return moved

    def _problem(self, message: Message) -> UnprocessableError | None:
        """What is wrong with the subject, if anything is."""
        try:
            self._subjects.parse(message.subject)
        except UnprocessableError as error:
            return error
        return None

    async def _move_one(self, stray: tuple[Message, UnprocessableError]) -> None:
        message, error = stray
        stream, sequence = self._subjects.requests_stream, message.stream_sequence
        stored = await self._js.get(stream, sequence)
        if stored is None:
            return
        whole = Message(message.subject, message.reply, stored.data, stored.headers)
        decision = Decision(sequence, sequence_id(sequence), Outcome.DEAD, 0, error.code, error.message)
        await self._letters.publish(UNROUTABLE_KEY, whole, decision, self._now_ms())
        await self._js.delete_message(stream, sequence)

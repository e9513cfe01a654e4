"""Reads the messages of a stream as background work: in small batches, with rests in between.

An `OrderedConsumer` gets messages as fast as NATS can send them, in bursts of megabytes, during which NATS serves other
clients more slowly. If the consumer limits its rate, NATS and the reader wake up for almost every message. A batch is a
short burst, and the reader decides when it gets the next one.

Invariants: messages are yielded in stream order, and none is left out. A message counts as read only if its *consumer*
sequence directly follows the previous one. After a gap or an error, a new consumer continues after the last message
that was read.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio

from rebaser_client.backoff import Backoff
from rebaser_client.jetstream.context import JetStream
from rebaser_client.jetstream.errors import STREAM_NOT_FOUND, ApiError
from rebaser_client.jetstream.infos import StreamInfo
from rebaser_client.jetstream.messages import Message
from rebaser_client.jetstream.names import subject_tokens
from rebaser_client.logs import get_logger
from rebaser_client.nats.connection import Connection
from rebaser_client.nats.errors import ClientClosedError, NoAnswerError, NoRespondersError
from rebaser_client.nats.messages import STATUS, Msg
from rebaser_client.pace import Pace
from rebaser_core.errors import RebaserError, TransientError

log = get_logger(__name__)

BATCH = 48  # number of messages that NATS sends at once; others notice more
EXPIRES = 5.0  # seconds after which a batch ends that is not complete
GRACE = 5.0  # seconds by which the end of a batch may be late
INACTIVE = 60  # seconds after which the server removes a consumer that nobody uses; longer than any rest
TRIES = 8  # number of attempts to read the next messages
RETRY_MIN, RETRY_MAX = 0.1, 5.0  # seconds between attempts
DELETE_BOUND = 2.0  # the maximum number of seconds that deleting a consumer may take
STREAM_LOST = "stream_lost"  # the code of an error
NANOS = 1_000_000_000


async def read_in_batches(js: JetStream, stream: str, pattern: str, pace: Pace) -> AsyncIterator[Message]:
    """Yield the messages of `stream` whose subjects match `pattern`, up to the message that is now the newest.

    Rest after each batch as `pace` says. Raise the errors of `JetStream`; `NotAllowed` or `NoRespondersError`, before
    the first message, if the client has no right to pull; and `TransientError` with code `stream_lost` if the stream is
    replaced meanwhile. After other errors, up to `TRIES` attempts are made to read the next messages.
    """
    begun = await js.stream_info(stream)
    read, backoff = 0, Backoff(RETRY_MIN, RETRY_MAX)
    while read < begun.last_sequence:
        try:
            start = await _next_start(js, stream, pattern, read, begun)
            if start is None:
                return
            async with _temporary_consumer(js, stream, pattern, start) as consumer:
                while batch := await consumer.next_batch():
                    for message in batch:
                        if message.stream_sequence > begun.last_sequence:
                            return
                        yield message
                        read = message.stream_sequence
                    backoff.reset()
                    await pace.rest()
        except TransientError as error:
            if backoff.attempt == TRIES - 1 or _is_final(error, read):
                raise
            log.warning("batch_failed", stream=stream, seq=read, attempt=backoff.attempt + 1, reason=error.message)
            await anyio.sleep(backoff.next_delay())


async def _next_start(js: JetStream, stream: str, pattern: str, read: int, begun: StreamInfo) -> int | None:
    """Return the sequence of the first message after `read` that was there at `begun`; None if there is none."""
    info = await js.stream_info(stream)
    if info.created != begun.created or info.last_sequence < begun.last_sequence:
        raise TransientError(f"stream {stream} was replaced or set back while it was read", code=STREAM_LOST)
    following = await js.next(stream, pattern, read + 1)
    return following.sequence if following is not None and following.sequence <= begun.last_sequence else None


class _TemporaryConsumer:
    """A consumer without acks. `answers` yields the answers to its pulls, which NATS sends to `inbox`."""

    def __init__(self, connection: Connection, api: str, inbox: str, answers: AsyncIterator[Msg], pending: int) -> None:
        self._connection = connection
        self._api = api
        self._inbox = inbox
        self._answers = answers
        self._pending = pending  # number of messages that NATS has not delivered yet
        self._delivered = 0

    async def next_batch(self) -> list[Message]:
        """Return the next messages; none if all of them were delivered. Raise `TransientError` if some were lost."""
        count = min(self._pending, BATCH)
        if not count:
            if not self._delivered:
                raise TransientError("a new consumer has no messages, although there are some")
            return []
        request = json.dumps({"batch": count, "expires": int(EXPIRES * NANOS)}).encode()
        await self._connection.publish(self._api, request, reply=self._inbox)
        messages: list[Message] = []
        try:
            with anyio.fail_after(EXPIRES + GRACE):
                while len(messages) < count and (message := await self._next()) is not None:
                    messages.append(message)
        except TimeoutError:
            raise NoAnswerError(f"{len(messages)} of {count} messages arrived in time") from None
        if not messages:
            raise TransientError(f"NATS sent none of {count} messages")
        self._pending = messages[-1].pending
        return messages

    async def _next(self) -> Message | None:
        """Return the next message of the pull; None if NATS has ended it."""
        answer = await anext(self._answers, None)
        if answer is None:
            raise ClientClosedError
        headers = answer.headers or {}
        if STATUS in headers and not answer.reply.startswith("$JS.ACK."):
            if headers[STATUS] == "503":
                raise NoRespondersError("nothing answers pulls: the consumer or the right to use it is missing")
            return None
        message = Message(answer.subject, answer.reply, answer.data, answer.headers)
        self._delivered += 1
        if message.consumer_sequence != self._delivered:
            raise TransientError(f"message {self._delivered} of the consumer was lost")
        return message


@asynccontextmanager
async def _temporary_consumer(
    js: JetStream, stream: str, pattern: str, start: int
) -> AsyncIterator[_TemporaryConsumer]:
    connection = js.connection
    name, inbox = connection.new_name(), connection.new_inbox()
    api = f"{js.prefix}CONSUMER.MSG.NEXT.{subject_tokens(stream, name)}"
    config = {
        "name": name,
        "filter_subject": pattern,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": start,
        "ack_policy": "none",
        "inactive_threshold": INACTIVE * NANOS,
        "mem_storage": True,
        "num_replicas": 1,
    }
    consumer = await js.create_consumer(stream, config)
    try:
        async with connection.subscribe(inbox, max_pending=2 * BATCH, request_subject=api) as answers:
            yield _TemporaryConsumer(connection, api, inbox, answers, consumer.cached_info.num_pending)
    finally:
        with anyio.move_on_after(DELETE_BOUND, shield=True), suppress(RebaserError):
            await consumer.delete()


def _is_final(error: TransientError, read: int) -> bool:
    """Return whether another attempt would not help. `read` is the sequence up to which the stream was read."""
    if isinstance(error, ApiError):
        return error.err_code == STREAM_NOT_FOUND
    return error.code == STREAM_LOST or (not read and isinstance(error, NoRespondersError))

"""An ordered consumer (push, ephemeral, in memory, no acks) with the guarantees of ADR-17, some of which nats-py does
not keep.

A generation is one consumer on the server. A generation that misses a message is discarded. The next generation starts
after the last message that was queued or needless, or at the original start if there was none (`position`).

Invariants: a message is accepted only if its *consumer* sequence directly follows the previous one of its generation.
(The stream sequence has gaps where messages were deleted.) Messages of different generations cannot be confused,
because each generation has its own inbox (`requests`). Therefore, no message is lost, repeated or reordered, even if
NATS drops messages on their way to the client.

The code runs in the callbacks of the connection (read loop and ticks). It needs a task only to replace a consumer.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio

from rebaser_client.backoff import Backoff
from rebaser_client.jetstream.context import JetStream
from rebaser_client.jetstream.messages import Message
from rebaser_client.jetstream.ordered.buffer import MessageBuffer
from rebaser_client.jetstream.ordered.position import Position, Start
from rebaser_client.jetstream.ordered.requests import RETRY_MAX, RETRY_MIN, ConsumerRequests, Generation
from rebaser_client.logs import get_logger
from rebaser_client.nats.errors import ClientClosedError, NotAllowed
from rebaser_client.nats.hooks import MAX_EVERY, TICK
from rebaser_client.nats.messages import DESCRIPTION, STATUS, as_int, parse_headers
from rebaser_client.nats.parser import RawHandler
from rebaser_core.errors import RebaserError, TransientError

log = get_logger(__name__)

MAX_COUNT = 65_536
MAX_BYTES = 32 * 1024 * 1024


class OrderedConsumer:
    """Delivers the messages of `filter_subject` in `stream`, beginning at `start`, in order, and each message once.

    At most `max_count` messages and about `max_bytes` bytes are queued for a slow reader; further messages wait in the
    stream. `config` contains further fields of JetStream's `ConsumerConfig`; fields that ADR-17 forbids raise
    `ConfigError`. `on_ready` is called in the read loop when the first message enters an empty queue, and when the
    consumer ends.

    `is_needless` is called in the read loop, with the subject and the raw headers, for each message that arrives while
    the queue is empty, unless it is the last one that there is to deliver. If it returns true, the message counts as
    delivered, but is not queued and does not wake `wait`, which halves its time. `is_needless` is not called while
    messages are queued, because it may depend on what the reader makes of them. It must not raise.

    Opening raises `ApiError` (error 10059 if the stream does not exist). The consumer ends with an error if the stream
    is deleted, recreated or set back (`TransientError` with code `stream_lost`), if NATS no longer allows the client to
    read it (`NotAllowed`), and if the connection is closed (`ClientClosedError`). Once the queue is empty, `wait` and
    iteration raise this error.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        filter_subject: str,
        *,
        start: Start = "all",
        headers_only: bool = False,
        idle_heartbeat: float = 5.0,
        max_count: int = MAX_COUNT,
        max_bytes: int = MAX_BYTES,
        on_ready: Callable[[], None] | None = None,
        is_needless: Callable[[str, bytes], bool] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.pending = 0  # the number of messages in the queue
        self.failure: RebaserError | None = None  # the error that ended the consumer; messages may still be queued
        self._requests = ConsumerRequests(js, stream, filter_subject, idle_heartbeat, headers_only, config or {})
        self._js = js
        self._connection = js.connection
        self._stream = stream
        self._filter = filter_subject
        self._position = Position(start)
        self._queue = MessageBuffer(max_count, max_bytes)
        self._created = ""
        self._generation: Generation | None = None
        self._generations = 0
        self._readable: asyncio.Event | None = None  # exists once a task has waited
        self._on_ready = on_ready
        self._is_needless = is_needless
        self._full = False
        self._received = False
        self._silent_checks = 0
        ticks = max(int(2 * idle_heartbeat / TICK), 2)  # silence of so many ticks means that heartbeats are missing
        self._check_every = min(max(ticks // 4, 1), MAX_EVERY)
        self._max_silent_checks = -(-ticks // self._check_every)
        self._replacing: anyio.CancelScope | None = None
        self._hooks: list[Any] = []
        self._closed = False

    async def __aenter__(self) -> Self:
        # Read the creation time of the stream before the consumer is created, to notice if another stream replaces this
        # one. The time is cached, so only the first consumer of a stream needs an additional round trip for it.
        if self._position.wants_end:
            info = await self._js.stream_info(self._stream)
            self._created, self._position.snapshot = info.created, info.last_sequence
        else:
            self._created = await self._js.stream_created(self._stream)
        self._replacing = anyio.CancelScope()  # the first generation must not be replaced before its start is known
        await self._begin()
        self._replacing = None
        if self._generation is None and not self._full:
            self._replace()
        self._hooks = [
            self._connection.on_tick(self._tick, self._check_every),
            self._connection.on_reconnect(self._reconnected),
            self._connection.on_close(self._connection_closed),
        ]
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        generation = self._close()
        if generation is not None:
            await self._requests.discard_now(generation)

    def close_soon(self) -> None:
        """Close without waiting. A background task deletes the consumer on the server."""
        generation = self._close()
        if generation is not None:
            self._connection.spawn(self._requests.discard, generation)

    def _close(self) -> Generation | None:
        """Close, and return the generation to discard."""
        self._closed = True
        for remove in self._hooks:
            remove()
        self._hooks = []
        self._on_ready = None
        if self._replacing is not None:
            self._replacing.cancel()
        generation, self._generation = self._generation, None
        return generation

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def created(self) -> str:
        """The creation time of the stream that is read (`StreamInfo.created`)."""
        return self._created

    @property
    def delivered(self) -> int:
        """The stream sequence of the newest message that entered the queue or was needless; 0 before the first."""
        return self._position.last

    async def wait(self) -> None:
        """Wait until the queue is not empty. Raise `failure` if the queue is empty and the consumer has ended."""
        while not self.pending:
            if self.failure is not None:
                raise self.failure
            if self._readable is None:
                self._readable = asyncio.Event()
            self._readable.clear()
            await self._readable.wait()

    def take(self, max_count: int, max_bytes: int = MAX_BYTES) -> list[Message]:
        """Remove and return the oldest messages within both bounds. Return at least one unless the queue is empty."""
        taken = self._queue.take(max_count, max_bytes)
        self._after_take()
        return taken

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        await self.wait()
        message = self._queue.pop()
        self._after_take()
        return message

    def _after_take(self) -> None:
        self.pending = len(self._queue.messages)
        generation = self._generation
        if generation is None:
            if self._full and self._queue.half_empty():
                self._full = False
                self._replace()
        elif generation.flow and not self.pending:
            self._connection.post(generation.flow)
            generation.flow = ""

    # -- messages from the server ----------------------------------------------------------------------------------

    def _on_message(self, generation: Generation, subject: str, reply: str, data: bytes, raw_headers: bytes) -> None:
        if generation is not self._generation:
            return
        self._received = True
        if not reply.startswith("$JS.ACK.") and STATUS in (headers := parse_headers(raw_headers)):
            self._on_status(generation, reply, headers)
            return
        try:
            message = Message(subject, reply, data, None)
        except ValueError:
            log.warning("ordered_foreign_message", **self._names(), subject=subject[:120])
            return
        if message.consumer_sequence != generation.sequence + 1:
            self._reset(f"message {generation.sequence + 1} was missed")
            return
        queue, waiting = self._queue, self.pending
        if waiting and not queue.fits(message):
            self._full = True
            self._reset("the queue is full")
            return
        generation.sequence += 1
        position = self._position
        if message.stream_sequence <= position.last:
            return
        if position.snapshot is not None and not position.accepts(message, position.snapshot, again=generation.again):
            self._reset("the newest message of each subject was delivered")
            return
        position.last = message.stream_sequence
        if (
            self._is_needless is not None
            and not waiting
            and message.pending
            and self._is_needless(subject, raw_headers)
        ):
            return
        message.headers = parse_headers(raw_headers)
        queue.add(message)
        self.pending = waiting + 1
        if not waiting:
            self._notify()

    def _notify(self) -> None:
        if self._readable is not None:
            self._readable.set()
        if self._on_ready is not None:
            self._on_ready()

    def _on_status(self, generation: Generation, reply: str, headers: dict[str, str]) -> None:
        status = headers[STATUS]
        if status != "100":
            self._reset(f"status {status} {headers.get(DESCRIPTION, '')}".strip())
            return
        if reply:  # flow control: the server continues once the client confirms that the messages were taken
            flow = reply
        else:
            delivered = headers.get("Nats-Last-Consumer")
            if delivered is not None and as_int(delivered) != generation.sequence:
                self._reset(f"the server delivered {delivered} messages, {generation.sequence} arrived")
                return
            flow = headers.get("Nats-Consumer-Stalled", "")
        if flow:
            if self.pending:
                generation.flow = flow
            else:
                self._connection.post(flow)

    # -- replacing consumers ---------------------------------------------------------------------------------------

    def replace(self, reason: str) -> None:
        """Replace the consumer on the server, because it does not deliver what it should. `reason` is logged."""
        if self._replacing is None:
            self._reset(reason)

    def _tick(self) -> None:
        if self._received:
            self._received = False
            self._silent_checks = 0
        elif self._generation is not None and self._replacing is None:
            self._silent_checks += 1
            if self._silent_checks >= self._max_silent_checks:
                self._reset("heartbeats were missed")

    def _reconnected(self) -> None:
        if self._generation is not None:
            self._reset("reconnected")

    def _connection_closed(self) -> None:
        self.failure = self.failure or ClientClosedError()
        self._notify()

    def _reset(self, reason: str) -> None:
        """Discard the generation, and start the next one. If the queue is full, first wait until it is half empty."""
        generation, self._generation = self._generation, None
        if generation is None or self._closed:
            return
        log.info("ordered_reset", **self._names(), reason=reason, seq=self._position.last)
        self._connection.spawn(self._requests.discard, generation)
        if not self._full:
            self._replace()

    def _replace(self) -> None:
        if self._replacing is None and not self._closed and self.failure is None:
            self._replacing = anyio.CancelScope()
            self._connection.spawn(self._run_replace, self._replacing)

    async def _run_replace(self, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await self._try_replace()
            except Exception as error:
                log.exception("ordered_failed", **self._names())
                self.failure = TransientError(f"reading the stream {self._stream} failed unexpectedly: {error!r}")
                self._notify()
        self._replacing = None

    async def _try_replace(self) -> None:
        backoff = Backoff(RETRY_MIN, RETRY_MAX)
        # A new generation may be discarded before the server confirms its creation; the loop then creates another.
        while self._generation is None and not self._full:
            try:
                await self._connection.wait_connected()
                self.failure = await self._requests.find_loss(self._created, self._position.last)
                if self.failure is not None:
                    log.error("ordered_stream_lost", **self._names(), reason=self.failure.message)
                    self._notify()
                    return
                await self._begin()
            except NotAllowed as error:
                self.failure = error
                self._notify()
                return
            except RebaserError as error:
                delay = backoff.next_delay()
                log.warning("ordered_reset_failed", **self._names(), attempt=backoff.attempt, reason=error.message)
                await anyio.sleep(delay)

    async def _begin(self) -> None:
        self._generations += 1
        generation = Generation(self._connection, again=self._generations > 1)
        handle = RawHandler(partial(self._on_message, generation))
        self._silent_checks = 0
        self._generation = generation
        try:
            info = await self._requests.create(generation, handle, self._position.policy())
        except BaseException:
            if self._generation is generation:
                self._generation = None
            raise
        self._position.created_consumer(info)
        if self._generation is not generation:
            await self._requests.discard(generation)  # it was discarded before it existed on the server

    def _names(self) -> dict[str, str]:
        return {"stream": self._stream, "filter": self._filter}

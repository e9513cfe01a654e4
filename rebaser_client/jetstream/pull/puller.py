"""Pulls messages: carries out the actions of `PullState`, and queues messages until a reader takes them.

Invariant: if a pull expires or is refused, if its heartbeats stop, or if the connection breaks, another pull requests
the amount that was not delivered. After `stop`, no message is queued: messages that still arrive are returned to the
server at once.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import anyio

from rebaser_client.backoff import jittered
from rebaser_client.jetstream.api_calls import ApiCalls
from rebaser_client.jetstream.messages import PIN_ID
from rebaser_client.jetstream.names import subject_tokens
from rebaser_client.jetstream.priority_groups import PriorityGroup
from rebaser_client.jetstream.pull.actions import (
    Action,
    CheckConsumer,
    EndPulling,
    NotifyPinned,
    NotifyUnpinned,
    PullWarning,
    RenewInbox,
    ResumeAfter,
    SendPull,
)
from rebaser_client.jetstream.pull.message import PullMessage
from rebaser_client.jetstream.pull.state import BACKOFF_MIN, PullState
from rebaser_client.logs import get_logger
from rebaser_client.nats.messages import DESCRIPTION, STATUS, as_int
from rebaser_client.nats.parser import AnyHandler
from rebaser_client.nats.subscription import Subscription
from rebaser_core.errors import RebaserError, TransientError

log = get_logger(__name__)

NANOS = 1_000_000_000
STOP_BOUND = 5.0  # the maximum number of seconds that closing takes


class Puller:
    """The base class of all pullers: one subscription for all pulls, a queue, and one reader.

    A puller opens when its `with` block is entered, or when the first message is requested. It stays open until pulling
    ends, `stop` is called, or the `with` block ends. `on_warning` is called with each problem that is not raised to the
    reader. The callbacks run in the read loop of the connection and must be quick.
    """

    def __init__(
        self,
        js: ApiCalls,
        stream: str,
        consumer: str,
        state: PullState,
        *,
        expires: float,
        idle_heartbeat: float,
        group: PriorityGroup,
        on_warning: Callable[[PullWarning], None] | None = None,
        on_pinned: Callable[[str], None] | None = None,
        on_unpinned: Callable[[], None] | None = None,
        is_gone: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._js = js
        self._connection = js.connection
        self._state = state
        self._names = {"stream": stream, "consumer": consumer}
        self._api = f"{js.prefix}CONSUMER.MSG.NEXT.{subject_tokens(stream, consumer)}"
        self._request: dict[str, Any] = {"expires": int(expires * NANOS), **group.request}
        if idle_heartbeat:
            self._request["idle_heartbeat"] = int(idle_heartbeat * NANOS)
        self._grouped = group.name is not None
        self._on_warning = on_warning
        self._on_pinned = on_pinned
        self._on_unpinned = on_unpinned
        self._is_gone = is_gone  # None: never check whether the consumer exists, and keep pulling
        self._loop = asyncio.get_running_loop()
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._handler: AnyHandler = self._on_message
        self._queue: deque[PullMessage] = deque()
        self._unwanted: deque[PullMessage] = deque()  # delivered messages that no reader will take
        self._readable = asyncio.Event()  # set when a message is queued, and when no more messages will be queued
        self._jobs: deque[SendPull | RenewInbox | CheckConsumer] = deque()
        self._job_added = asyncio.Event()
        self._job_running = False  # whether a job is running; it may replace the inbox
        self._timer: asyncio.TimerHandle | None = None
        self._scope = anyio.CancelScope()
        self._hooks: list[Callable[[], object]] = []
        self._opened = False
        self._stopped = False  # messages that still arrive are returned to the server
        self._draining = False  # pulling has ended, but more messages may be on their way
        self._closed = asyncio.Event()
        self._error: RebaserError | None = None

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        with anyio.move_on_after(STOP_BOUND, shield=True):
            await self.stop()

    @property
    def outstanding(self) -> int:
        """The number of messages (or bytes) that pulls have requested but the server has not yet delivered."""
        return self._state.outstanding

    @property
    def buffered(self) -> int:
        """The number of messages that were delivered and that the reader has not taken yet."""
        return len(self._queue)

    async def stop(self) -> None:
        """Give up the pulls, return to the server the messages that the reader has not taken, and end the iteration."""
        self._stopped = True
        self._unwanted += self._queue
        self._queue.clear()
        await self._finish()
        self._return_unwanted()

    async def _finish(self) -> None:
        self._draining |= not self._state.ended
        self._act(self._state.stop())
        if self._opened:
            await self._closed.wait()
        self._closed.set()
        self._readable.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PullMessage:
        if not self._queue:
            await self._wait()
        return self._queue.popleft()

    async def _wait(self) -> None:
        """Wait until a message is queued. After pulling has ended, raise its error once, then `StopAsyncIteration`."""
        if not self._opened:
            await self._open()
        while not self._queue:
            if self._state.ended and (self._closed.is_set() or not self._draining):
                error, self._error = self._error, None
                raise error or StopAsyncIteration
            self._readable.clear()
            await self._readable.wait()

    async def _open(self) -> None:
        if self._opened or self._state.ended:
            return
        await self._listen()
        self._opened = True
        connection = self._connection
        self._hooks = [connection.on_tick(self._tick), connection.on_reconnect(self._reconnected)]
        connection.spawn(self._run)
        if not connection.connected:
            self._act(self._state.disconnected())
        self._act(self._state.start(self._loop.time()))

    def _return_unwanted(self) -> None:
        """Return the unwanted messages to the server.

        Call this only when no pull is waiting. Otherwise, the server would at once deliver the messages to that pull.
        """
        while self._unwanted:
            self._connection.post(self._unwanted.popleft().reply, b"-NAK")

    # -- messages from the server ----------------------------------------------------------------------------------

    def _on_message(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        message = self._parse(subject, reply, data, headers)
        if message is not None:
            self._deliver(message, 1)

    def _parse(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> PullMessage | None:
        """Return a delivery as a `PullMessage`. Return None for any other message; if it is a status, handle it."""
        if headers is not None and STATUS in headers and not reply.startswith("$JS.ACK."):
            pending = headers.get("Nats-Pending-Bytes" if self._state.by_bytes else "Nats-Pending-Messages")
            token = as_int(subject[len(self._inbox) :])
            status, description = headers[STATUS], headers.get(DESCRIPTION, "")
            self._act(self._state.status(token, status, description, None if pending is None else as_int(pending)))
            return None
        try:
            return PullMessage(subject, reply, data, headers, self._js)
        except ValueError:
            log.warning("pull_foreign_message", **self._names, subject=subject[:120])
            return None

    def _deliver(self, message: PullMessage, amount: int) -> None:
        if self._stopped:
            self._unwanted.append(message)
            return
        queue = self._queue
        queue.append(message)
        if len(queue) == 1:
            self._readable.set()
        # The pin is recorded first, because counting the message may send the next pull, which must contain the pin.
        if self._grouped and PIN_ID in message.headers:
            self._act(self._state.pinned(message.headers[PIN_ID]))
        actions = self._state.message(amount)
        if actions:
            self._act(actions)

    def _tick(self) -> None:
        if not self._connection.connected:
            self._act(self._state.disconnected())
        self._act(self._state.tick(self._loop.time()))

    def _reconnected(self) -> None:
        self._act(self._state.reconnected())
        self._check_consumer_soon()

    def _resume(self) -> None:
        self._act(self._state.resume())

    # -- carrying out actions --------------------------------------------------------------------------------------

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case SendPull() if not self._jobs and not self._job_running and self._send_now(action):
                    # `_send_now` sends the pull at once. If a task sent it later, all outstanding messages might arrive
                    # before that, and the reader would have to wait.
                    pass
                case SendPull() | RenewInbox():
                    self._add_job(action)
                case PullWarning(event, status, reason):
                    level = logging.ERROR if event == "pull_failed" else logging.WARNING
                    log.log(level, event, **self._names, status=status, reason=reason)
                    self._call(self._on_warning, action)
                    if status == "503":
                        self._check_consumer_soon()
                case ResumeAfter(seconds):
                    self._stop_timer()
                    self._timer = self._loop.call_later(jittered(seconds), self._resume)
                case NotifyPinned(pin):
                    log.info("pull_pinned", **self._names, pin=pin)
                    self._call(self._on_pinned, pin)
                case NotifyUnpinned():
                    log.info("pull_unpinned", **self._names)
                    self._call(self._on_unpinned)
                case EndPulling(error):
                    self._error = error
                    self._scope.cancel()
                    self._readable.set()

    def _add_job(self, job: SendPull | RenewInbox | CheckConsumer) -> None:
        self._jobs.append(job)
        self._job_added.set()

    def _check_consumer_soon(self) -> None:
        if self._is_gone is not None and CheckConsumer() not in self._jobs:
            self._add_job(CheckConsumer())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _call(self, callback: Callable[..., None] | None, *args: object) -> None:
        try:
            if callback is not None:
                callback(*args)
        except Exception:
            # This runs in the read loop or in a tick of the connection. An exception would end the loop or the ticks
            # for all subscriptions.
            log.exception("pull_callback_failed", **self._names)

    async def _run(self) -> None:
        try:
            with self._scope:
                while True:
                    await self._job_added.wait()
                    self._job_added.clear()
                    while self._jobs:
                        job = self._jobs.popleft()
                        self._job_running = True
                        await self._do(job)
                        self._job_running = False
        except Exception as error:
            log.exception("pull_broken", **self._names)
            self._state.stop()
            name = self._names["consumer"]
            self._error = TransientError(f"pulling from the consumer {name} failed unexpectedly: {error!r}")
        finally:
            await self._close()

    async def _do(self, job: SendPull | RenewInbox | CheckConsumer) -> None:
        match job:
            case SendPull():
                await self._send(job)
            case RenewInbox():
                await self._renew_inbox()
            case CheckConsumer():
                await self._check_consumer()

    async def _check_consumer(self) -> None:
        try:
            gone = self._is_gone is not None and await self._is_gone()
        except RebaserError as error:
            log.warning("pull_check_failed", **self._names, reason=error.message)
            return  # the next unanswered pull leads to another check
        if gone:
            self._act(self._state.gone())

    async def _send(self, pull: SendPull) -> None:
        if not self._state.is_current(pull.token):
            return  # the pull was given up when the connection was lost; the next pull requests the same amount
        try:
            await self._connection.publish(self._api, self._encode(pull), reply=f"{self._inbox}{pull.token}")
        except RebaserError as error:
            if not self._connection.connected:
                self._act(self._state.disconnected())
            else:
                log.warning("pull_not_sent", **self._names, reason=error.message)
                self._act(self._state.failed(pull.token, error))

    def _send_now(self, pull: SendPull) -> bool:
        return self._connection.publish_now(self._api, self._encode(pull), reply=f"{self._inbox}{pull.token}")

    def _encode(self, pull: SendPull) -> bytes:
        fields = {**self._request, "batch": pull.batch}
        if pull.max_bytes:
            fields["max_bytes"] = pull.max_bytes
        if pull.pin:
            fields["id"] = pull.pin
        return json.dumps(fields).encode()

    async def _listen(self) -> None:
        self._inbox = f"{self._connection.new_inbox()}."
        self._subscription = await self._connection.listen(self._inbox + "*", self._handler)

    async def _renew_inbox(self) -> None:
        """Replace the inbox of all pulls, so that the server drops the old pulls instead of serving them."""
        if self._subscription is not None:
            await self._subscription.drain()  # messages in transit are counted before their pulls are given up
        try:
            await self._listen()
        except RebaserError as error:
            log.warning("pull_not_renewed", **self._names, reason=error.message)
            await anyio.sleep(jittered(BACKOFF_MIN))
            self._jobs.append(RenewInbox())
        else:
            self._act(self._state.renewed())

    async def _close(self) -> None:
        for remove in self._hooks:
            remove()
        self._stop_timer()
        try:
            with anyio.move_on_after(STOP_BOUND, shield=True):
                if self._subscription is not None:
                    # Without a subscriber, the server drops the pulls. `drain` also waits for messages in transit.
                    await (self._subscription.drain() if self._draining else self._subscription.close())
            self._return_unwanted()
        finally:
            self._closed.set()
            self._readable.set()

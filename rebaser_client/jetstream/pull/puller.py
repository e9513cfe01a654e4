"""Pulls messages of a consumer: carries out what `PullState` decides, and keeps what came until a reader takes it.

Invariant: whatever happens to a pull (it expires, is refused, its heartbeats stop, the connection breaks), what it did
not bring is pulled for again. After `stop` nothing is kept: what still comes goes back to the server at once.
"""

import asyncio
import json
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
from rebaser_client.nats.parser import Handler, SizedHandler
from rebaser_client.nats.subscription import Subscription
from rebaser_core.errors import RebaserError, TransientError

log = get_logger(__name__)

NANOS = 1_000_000_000
STOP_BOUND = 5.0  # seconds


class Puller:
    """What all ways to pull have in common: one subscription for all pulls, a queue, an end. One reader.

    It opens when it is entered, or when it is first read from; it is open until it ends, `stop` or the `with` block.
    `on_warning` is told what the reader is not; it and the others are called in the read loop, and must be quick.
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
        self._is_gone = is_gone  # asked when the consumer may be, if it is of interest
        self._loop = asyncio.get_running_loop()
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._handler: Handler | SizedHandler = self._on_message
        self._queue: deque[PullMessage] = deque()
        self._unwanted: deque[PullMessage] = deque()  # came and nobody will take them
        self._filled = asyncio.Event()
        self._todo: deque[SendPull | RenewInbox | CheckConsumer] = deque()
        self._due = asyncio.Event()
        self._busy = False  # with one of `_todo`: the inbox may be another soon
        self._timer: asyncio.TimerHandle | None = None
        self._scope = anyio.CancelScope()
        self._hooks: list[Callable[[], object]] = []
        self._opened = False
        self._stopped = False  # nothing is kept any more
        self._draining = False  # what is on its way is still to come
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
        """Messages (bytes, where they are the limit) that were asked for and have not come."""
        return self._state.outstanding

    @property
    def buffered(self) -> int:
        """Messages that came and were not taken."""
        return len(self._queue)

    async def stop(self) -> None:
        """Give up waiting pulls, give back what was not taken yet, end the iteration."""
        self._stopped = True
        self._unwanted += self._queue
        self._queue.clear()
        await self._finish()
        self._give_back()

    async def _finish(self) -> None:
        self._draining |= not self._state.ended
        self._act(self._state.stop())
        if self._opened:
            await self._closed.wait()
        self._closed.set()
        self._filled.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PullMessage:
        if not self._queue:
            await self._wait()
        return self._queue.popleft()

    async def _wait(self) -> None:
        """Return when something is queued; raises what ended it, the first time, or `StopAsyncIteration`."""
        if not self._opened:
            await self._open()
        while not self._queue:
            if self._state.ended and (self._closed.is_set() or not self._draining):
                error, self._error = self._error, None
                raise error or StopAsyncIteration
            self._filled.clear()
            await self._filled.wait()

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

    def _give_back(self) -> None:
        """To be called when no pull waits any more: it would be served again at once, on a way that is being closed."""
        while self._unwanted:
            self._connection.post(self._unwanted.popleft().reply, b"-NAK")

    # -- what the server sends -------------------------------------------------------------------------------------

    def _on_message(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        message = self._message(subject, reply, data, headers)
        if message is not None:
            self._arrived(message, 1)

    def _message(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> PullMessage | None:
        """The delivery, unless it is a status, or nothing of ours."""
        if headers is not None and STATUS in headers and not reply.startswith("$JS.ACK."):
            left = headers.get("Nats-Pending-Bytes" if self._state.by_bytes else "Nats-Pending-Messages")
            token = as_int(subject[len(self._inbox) :])
            status, description = headers[STATUS], headers.get(DESCRIPTION, "")
            self._act(self._state.status(token, status, description, None if left is None else as_int(left)))
            return None
        try:
            return PullMessage(subject, reply, data, headers, self._js)
        except ValueError:
            log.warning("pull_foreign_message", **self._names, subject=subject[:120])
            return None

    def _arrived(self, message: PullMessage, amount: int) -> None:
        if self._stopped:
            self._unwanted.append(message)
            return
        queue = self._queue
        queue.append(message)
        if len(queue) == 1:
            self._filled.set()
        if self._grouped and PIN_ID in message.headers:  # before the message is counted: the next pull has to name it
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
        self._look_soon()

    def _resume(self) -> None:
        self._act(self._state.resume())

    # -- carrying out ----------------------------------------------------------------------------------------------

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case SendPull() if not self._todo and not self._busy and self._pull_now(action):
                    pass  # half the window is still to come, and what hurries now need not wait for it
                case SendPull() | RenewInbox():
                    self._todo.append(action)
                    self._due.set()
                case PullWarning(event, status, reason):
                    log.log(40 if event == "pull_failed" else 30, event, **self._names, status=status, reason=reason)
                    self._tell(self._on_warning, action)
                    if status == "503":
                        self._look_soon()
                case ResumeAfter(seconds):
                    self._stop_timer()
                    self._timer = self._loop.call_later(jittered(seconds), self._resume)
                case NotifyPinned(pin):
                    log.info("pull_pinned", **self._names, pin=pin)
                    self._tell(self._on_pinned, pin)
                case NotifyUnpinned():
                    log.info("pull_unpinned", **self._names)
                    self._tell(self._on_unpinned)
                case EndPulling(error):
                    self._error = error
                    self._scope.cancel()
                    self._filled.set()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self, callback: Callable[..., None] | None, *args: object) -> None:
        try:
            if callback is not None:
                callback(*args)
        except Exception:
            # Out of here it would end what others live on, too: the read loop or the connection's ticks.
            log.exception("pull_callback_failed", **self._names)

    async def _run(self) -> None:
        try:
            with self._scope:
                while True:
                    await self._due.wait()
                    self._due.clear()
                    while self._todo:
                        action = self._todo.popleft()
                        self._busy = True
                        await self._do(action)
                        self._busy = False
        except Exception as error:
            log.exception("pull_broke", **self._names)
            self._state.stop()
            self._error = TransientError(f"pulling from {self._names['consumer']} broke: {error!r}")
        finally:
            await self._close()

    async def _do(self, action: SendPull | RenewInbox | CheckConsumer) -> None:
        match action:
            case SendPull():
                await self._pull(action)
            case RenewInbox():
                await self._renew()
            case CheckConsumer():
                await self._look()

    def _look_soon(self) -> None:
        if self._is_gone is not None and CheckConsumer() not in self._todo:
            self._todo.append(CheckConsumer())
            self._due.set()

    async def _look(self) -> None:
        try:
            gone = self._is_gone is not None and await self._is_gone()
        except RebaserError as error:
            log.warning("pull_look_failed", **self._names, reason=error.message)
            return  # a pull that nobody answers brings us back
        if gone:
            self._act(self._state.gone())

    async def _pull(self, pull: SendPull) -> None:
        if not self._state.is_current(pull.token):
            return  # given up before it was sent: the connection was lost, and its successor asks for as much
        try:
            await self._connection.publish(self._api, self._wanted(pull), reply=f"{self._inbox}{pull.token}")
        except RebaserError as error:
            if not self._connection.connected:
                self._act(self._state.disconnected())
            else:
                log.warning("pull_not_sent", **self._names, reason=error.message)
                self._act(self._state.failed(pull.token, error))

    def _pull_now(self, pull: SendPull) -> bool:
        return self._connection.publish_now(self._api, self._wanted(pull), reply=f"{self._inbox}{pull.token}")

    def _wanted(self, pull: SendPull) -> bytes:
        fields = {**self._request, "batch": pull.batch}
        if pull.max_bytes:
            fields["max_bytes"] = pull.max_bytes
        if pull.pin:
            fields["id"] = pull.pin
        return json.dumps(fields).encode()

    async def _listen(self) -> None:
        self._inbox = f"{self._connection.new_inbox()}."
        self._subscription = await self._connection.listen(self._inbox + "*", self._handler)

    async def _renew(self) -> None:
        """Take the interest in all pulls away, so that none is served beside its successor."""
        if self._subscription is not None:
            await self._subscription.drain()  # what was on its way is counted before the rest is given up
        try:
            await self._listen()
        except RebaserError as error:
            log.warning("pull_not_renewed", **self._names, reason=error.message)
            await anyio.sleep(jittered(BACKOFF_MIN))
            self._todo.append(RenewInbox())
        else:
            self._act(self._state.renewed())

    async def _close(self) -> None:
        for remove in self._hooks:
            remove()
        self._stop_timer()
        try:
            with anyio.move_on_after(STOP_BOUND, shield=True):
                if self._subscription is not None:
                    # Without interest the server drops the pulls; what it sent before reaches the handler.
                    await (self._subscription.drain() if self._draining else self._subscription.close())
            self._give_back()
        finally:
            self._closed.set()
            self._filled.set()

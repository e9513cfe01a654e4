"""Pulls messages of a durable consumer for the credits its reader gives, and for no more.

Invariant: whatever happens to a pull (it expires, is refused, its heartbeats stop, the connection breaks), its credits
come back and are pulled for again. After `stop` nothing is kept: what still comes goes back to the server at once.
"""

import json
import random
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio
import structlog

from rebaser_client.jetstream.api import JetStream
from rebaser_client.jetstream.connection import TICK
from rebaser_client.jetstream.groups import Group
from rebaser_client.jetstream.interest import Interest
from rebaser_client.jetstream.messages import DESCRIPTION, PIN_ID, STATUS, PullMessage, as_int
from rebaser_client.jetstream.pull_state import PullState
from rebaser_core.errors import RebaserError

log = structlog.get_logger(__name__)

NANOS = 1_000_000_000
BACKOFF_MIN, BACKOFF_MAX = 0.05, 5.0  # seconds between pulls that are refused
ENDED_WELL = ("404", "408", "423")  # nothing there; time is over; another is pinned
STOP_BOUND = 5.0  # seconds


class PullConsumer:
    """Messages of the durable `consumer` of `stream`, to be acknowledged through `JetStream`.

    async with PullConsumer(js, stream, consumer) as pull:
        pull.add_credit(10)
        async for message in pull: ...

    One reader. Iteration ends after `stop`. `expires` and `idle_heartbeat` are seconds.
    `group` and what goes with it: see `Group`; raises `ConfigError` for what no server takes.
    `on_pinned` (with the pin's id) is called, in the read loop, when the first message of a pin came, `on_unpinned`
    when a pull was refused because the pin is gone. Nobody tells a client that loses its pin while it does not pull.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        consumer: str,
        *,
        expires: float = 30.0,
        idle_heartbeat: float = 5.0,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
        on_pinned: Callable[[str], None] | None = None,
        on_unpinned: Callable[[], None] | None = None,
    ) -> None:
        self._js = js
        self._connection = js.connection
        self._stream = stream
        self._consumer = consumer
        self._api = f"{js.prefix}CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._request = {"expires": int(expires * NANOS), "idle_heartbeat": int(idle_heartbeat * NANOS)}
        self._request |= Group.of(group, min_pending, min_ack_pending, priority).request
        self._on_pinned = on_pinned
        self._on_unpinned = on_unpinned
        self._pin = ""
        self._silence = max(int(2 * idle_heartbeat / TICK), 2)
        self._silent_ticks = 0
        self._heard = False
        self._state = PullState()
        self._inbox = ""
        self._silent = False
        self._pulls = 0
        self._interest: Interest | None = None
        self._queue: deque[PullMessage] = deque()
        self._filled = anyio.Event()
        self._due = anyio.Event()
        self._backoff = 0.0
        self._scope = anyio.CancelScope()
        self._hooks: list[Any] = []
        self._stopped = False

    async def __aenter__(self) -> Self:
        await self._listen()
        self._hooks = [self._connection.on_tick(self._tick), self._connection.on_reconnect(self._reconnected)]
        self._connection.spawn(self._run)
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        with anyio.move_on_after(STOP_BOUND, shield=True):
            await self.stop()

    def add_credit(self, count: int = 1) -> None:
        """The reader can take `count` messages more."""
        self._state.grant(count)
        self._due.set()

    @property
    def outstanding(self) -> int:
        """Messages that were asked for and have not come."""
        return self._state.outstanding

    async def stop(self) -> None:
        """Give up waiting pulls, give back what was not taken yet, end the iteration."""
        if self._stopped:
            return
        self._stopped = True
        self._scope.cancel()
        for remove in self._hooks:
            remove()
        self._filled.set()
        while self._queue:
            self._give_back(self._queue.popleft())
        if self._interest is not None:
            # Without interest the server drops the pulls; what it sent before reaches the handler.
            await self._interest.drain()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PullMessage:
        while not self._queue:
            if self._stopped:
                raise StopAsyncIteration
            self._filled = anyio.Event()
            await self._filled.wait()
        return self._queue.popleft()

    # -- what the server sends -------------------------------------------------------------------------------------

    def _on_message(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        self._heard = True
        if headers is not None and STATUS in headers and not reply.startswith("$JS.ACK."):
            self._on_status(subject, headers)
            return
        try:
            message = PullMessage(subject, reply, data, headers)
        except ValueError:
            log.warning("pull_foreign_message", **self._names(), subject=subject[:120])
            return
        if self._stopped:
            self._give_back(message)
            return
        self._backoff = 0.0
        self._state.delivered()
        if PIN_ID in message.headers:
            self._pinned(message.headers[PIN_ID])
        self._queue.append(message)
        self._filled.set()
        if self._state.wanted():
            self._due.set()

    def _on_status(self, subject: str, headers: dict[str, str]) -> None:
        status = headers[STATUS]
        if status == "100":
            return
        left = headers.get("Nats-Pending-Messages")
        token = subject[len(self._inbox) :]
        if status == "423":
            self._unpinned()
        if not self._state.ended(token, None if left is None else as_int(left)):
            return
        if status in ENDED_WELL:
            self._backoff = 0.0
        else:
            self._backoff = min(max(self._backoff * 2, BACKOFF_MIN), BACKOFF_MAX)
            log.warning("pull_refused", **self._names(), status=status, reason=headers.get(DESCRIPTION, ""))
        self._due.set()

    def _pinned(self, pin: str) -> None:
        if pin != self._pin:
            self._pin = pin
            log.info("pull_pinned", **self._names(), pin=pin)
            if self._on_pinned is not None:
                self._on_pinned(pin)

    def _unpinned(self) -> None:
        """A pull named, or had been given, a pin that is not the consumer's any more."""
        if self._pin:
            self._pin = ""
            log.info("pull_unpinned", **self._names())
            if self._on_unpinned is not None:
                self._on_unpinned()

    def _tick(self) -> None:
        if self._heard or not self._state.outstanding:
            self._heard = False
            self._silent_ticks = 0
            return
        self._silent_ticks += 1
        if self._silent_ticks >= self._silence:
            log.warning("pull_heartbeats_missed", **self._names(), outstanding=self._state.outstanding)
            self._silent_ticks = 0
            self._silent = True
            self._due.set()

    def _reconnected(self) -> None:
        """The server forgot our pulls with the connection they came on."""
        self._silent_ticks = 0
        self._state.lost()
        self._due.set()

    def _give_back(self, message: PullMessage) -> None:
        self._connection.post(message.reply, b"-NAK")

    # -- pulling ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        with self._scope:
            while True:
                await self._due.wait()
                self._due = anyio.Event()
                if self._backoff:
                    await anyio.sleep(self._backoff * (0.5 + random.random()))  # noqa: S311 - jitter
                await self._connection.wait_connected()
                if self._silent:
                    await self._start_anew()
                await self._pull()

    async def _listen(self) -> None:
        self._inbox = f"{self._connection.new_inbox()}."
        self._interest = await self._connection.listen(self._inbox + "*", self._on_message)

    async def _start_anew(self) -> None:
        """Take the interest in all pulls away, so that none is served beside its successor."""
        if self._interest is not None:
            await self._interest.drain()  # what was on its way is counted before the rest is given up
        self._silent = False
        self._state.lost()
        await self._listen()

    async def _pull(self) -> None:
        count = self._state.wanted()
        if not count:
            return
        self._pulls += 1
        token = str(self._pulls)
        self._state.sent(token, count)
        pin = {"id": self._pin} if self._pin else {}
        body = json.dumps({"batch": count, **self._request, **pin}).encode()
        try:
            await self._connection.publish(self._api, body, reply=self._inbox + token)
        except RebaserError as error:
            log.warning("pull_failed", **self._names(), reason=error.message)
            self._state.ended(token, None)
            self._backoff = BACKOFF_MIN
            self._due.set()

    def _names(self) -> dict[str, str]:
        return {"stream": self._stream, "consumer": self._consumer}

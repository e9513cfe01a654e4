"""The network between simulated processes and the model of nats-server: latency, order, and faults.

`SimLink` replaces `rebaser_client.nats.link.Link`, so all code above it is the real one (`Connection` with its
reconnects, requests, consumers). Messages of a link arrive in order, unless a fault delays one.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import anyio

from rebaser_client.nats.errors import NotConnectedError
from rebaser_client.nats.header_lines import encode_headers
from rebaser_client.nats.messages import DESCRIPTION, STATUS, parse_headers
from rebaser_client.nats.parser import Handler, RawHandler
from tests.simulation.loop import PROCESS, Process, SimLoop, State
from tests.simulation.model.connections import Client
from tests.simulation.model.server import NatsModel
from tests.simulation.model.store import Headers

STEP = 1e-7  # seconds between messages that are sent at the same time


@dataclass(slots=True)
class Fate:
    """What happens to a message. Its sender may be struck `before` or `after` the message took effect."""

    copies: int = 1
    late: float = 0.0  # seconds; later messages overtake it
    lose_answer: bool = False
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None


SAFE = Fate()


class Faults(Protocol):
    def sending(self, process: Process, subject: str, data: bytes) -> Fate: ...

    def receiving(self, process: Process, subject: str, headers: Headers | None) -> Fate: ...


class NoFaults:
    def sending(self, process: Process, subject: str, data: bytes) -> Fate:
        return SAFE

    def receiving(self, process: Process, subject: str, headers: Headers | None) -> Fate:
        return SAFE


class Network:
    """Connects processes to `model`. `latency` returns the seconds that a message takes."""

    def __init__(
        self,
        loop: SimLoop,
        model: NatsModel,
        latency: Callable[[], float],
        faults: Faults,
        *,
        max_payload: int = 1024 * 1024,
        tap: Callable[[str, str, bytes, Headers | None], None] = lambda who, subject, data, headers: None,
    ) -> None:
        self.loop = loop
        self.model = model
        self.latency = latency
        self.faults = faults
        self.max_payload = max_payload
        self.down = False
        self.tap = tap
        # Called for each message that a process sends, before it travels, and for each that reaches a process.
        self.sent: Callable[[Process, str, bytes, str], None] = lambda process, subject, data, reply: None
        self.heard: Callable[[str], None] = lambda subject: None
        self.links: dict[SimLink, None] = {}
        self._unanswered: set[str] = set()

    async def open(self, options: Any, servers: object, timeout: float, denied: object) -> "SimLink":  # noqa: ASYNC109 - as `Link.open`
        """Replace `Link.open` during a run."""
        process = PROCESS.get()
        assert process is not None, "only simulated processes have connections"
        await anyio.sleep(self.latency() * 2)
        if self.down or process.state is State.REAPED:
            raise NotConnectedError("no connection to NATS: nobody listens")
        return SimLink(self, process)

    def links_of(self, process: Process) -> list["SimLink"]:
        return [link for link in self.links if link.process is process]

    async def send(self, link: "SimLink", subject: str, data: bytes, reply: str, headers: Headers | None) -> None:
        process = link.process
        fate = self.faults.sending(process, subject, data)
        if fate.before is not None:
            fate.before()
            await asyncio.sleep(0)  # a paused process continues later, a dead one never
            if not link.up:
                return
        self.sent(process, subject, data, reply)
        if fate.lose_answer and reply:
            self._unanswered.add(reply)
        for _ in range(fate.copies):
            link.post(fate.late, self._arrive, process.name, subject, reply, data, headers)
        if fate.after is not None:
            fate.after()
            await asyncio.sleep(0)

    def _arrive(self, who: str, subject: str, reply: str, data: bytes, headers: Headers | None) -> None:
        self.tap(who, subject, data, headers)
        self.model.publish(subject, reply, data, headers)

    def lost_answer(self, subject: str) -> bool:
        if subject in self._unanswered:
            self._unanswered.discard(subject)
            return True
        return False


class SimLink:
    """A connection of one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self.process = process
        self.closed = anyio.Event()
        self.reason = "closed"
        self.rtt = 0.0
        self.client = SimpleNamespace(
            max_payload=network.max_payload, clustered=False, version="0.0.0", known_servers={}, connected_url=None
        )
        self._network = network
        self._peer = Client(self._on_sent)
        self._handlers: dict[int, Handler | RawHandler] = {}
        self._sids = itertools.count(1)
        self._broken = False  # if true, messages that are on their way do not arrive
        self._unsent: list[tuple[str, bytes, str, Headers | None]] = []
        self._out = self._in = 0.0
        network.links[self] = None
        network.model.attach(self._peer)

    @property
    def up(self) -> bool:
        return not self.closed.is_set() and self.process.state is not State.REAPED

    async def watch(self, ping_interval: float) -> None:
        await self.closed.wait()

    async def round_trip(self) -> None:
        """Return at once: the model denies no permission."""

    async def close(self) -> None:
        if not self.closed.is_set():
            self.post(0.0, self._network.model.detach, self._peer)
        self.shut("closed")

    def shut(self, reason: str) -> None:
        """Stop sending and receiving."""
        self._network.links.pop(self, None)
        self._handlers.clear()
        if not self.closed.is_set():
            self.reason = reason
            self.closed.set()

    def cut(self) -> None:
        """Break the connection; messages on their way are lost."""
        self._broken = True
        self._network.model.detach(self._peer)
        self.shut("the connection was cut")

    def publish(self, subject: str, payload: bytes, reply: str, headers: Headers | bytes | None) -> bool:
        """Queue a message. The caller has to flush afterwards, which is where faults can stop the process."""
        if not self.up:
            raise NotConnectedError("the connection to NATS is down")
        sent = parse_headers(headers) if isinstance(headers, bytes) else dict(headers or {})
        self._unsent.append((subject, payload, reply, sent or None))
        return False

    def publish_all(self, messages: Iterable[tuple[str, bytes]]) -> bool:
        for subject, payload in messages:
            self.publish(subject, payload, "", None)
        return False

    async def flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            await self._network.send(self, *message)

    def publish_now(self, subject: str, payload: bytes, reply: str) -> bool:
        """Send a message like any other, so that faults can strike it."""
        del subject, payload, reply
        return False

    async def subscribe(self, subject: str, handler: Handler | RawHandler) -> int:
        if not self.up:
            raise NotConnectedError("the connection to NATS is down")
        sid = next(self._sids)
        self._handlers[sid] = handler
        self.post(0.0, self._network.model.subscribe, self._peer, sid, subject)
        await asyncio.sleep(0)
        return sid

    async def unsubscribe(self, sid: int) -> None:
        self._handlers.pop(sid, None)
        if self.up:
            self.post(0.0, self._network.model.unsubscribe, self._peer, sid)
            await asyncio.sleep(0)

    async def drain(self, sid: int) -> None:
        if self.up:
            done = anyio.Event()

            def unsubscribed() -> None:
                self._network.model.unsubscribe(self._peer, sid)
                self._travel_back(done.set)

            self.post(0.0, unsubscribed)
            async with anyio.create_task_group() as group:
                for event in (done, self.closed):
                    group.start_soon(_cancel_after, event, group.cancel_scope)
        self._handlers.pop(sid, None)

    # -- delivery in both directions -------------------------------------------------------------------------------

    def post(self, late: float, arrive: Callable[..., object], *args: Any) -> None:
        """Call `arrive` at the server: in order if `late` is 0, otherwise `late` seconds later and out of order."""
        network = self._network
        if self.process.state is State.REAPED:
            return
        self._out = max(self._out + STEP, network.loop.time() + network.latency())
        network.loop.call_at(self._out + late, self._unless_broken, arrive, args, context=NOBODY)

    def _unless_broken(self, arrive: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self._broken:
            arrive(*args)

    def _on_sent(self, sid: int, subject: str, reply: str, data: bytes, headers: Headers | None) -> None:
        network = self._network
        if network.lost_answer(subject):
            return
        fate = network.faults.receiving(self.process, subject, headers)
        for _ in range(fate.copies):
            self._travel_back(self._receive, sid, subject, reply, data, headers, late=fate.late)

    def _travel_back(self, arrive: Callable[..., object], *args: Any, late: float = 0.0) -> None:
        network = self._network
        self._in = max(self._in + STEP, network.loop.time() + network.latency())
        network.loop.call_at(self._in + late, arrive, *args, context=self.process.context)

    def _receive(self, sid: int, subject: str, reply: str, data: bytes, headers: Headers | None) -> None:
        handler = self._handlers.get(sid)
        if handler is not None and self.up:
            self._network.heard(subject)
            if isinstance(handler, RawHandler):
                handler.handle(subject, reply, data, b"" if headers is None else _encoded(headers))
            else:
                handler(subject, reply, data, None if headers is None else dict(headers))


def _encoded(headers: Headers) -> bytes:
    """Return headers as NATS sends them."""
    lines = {name: value for name, value in headers.items() if name not in (STATUS, DESCRIPTION)}
    status = f" {headers[STATUS]} {headers[DESCRIPTION]}" if STATUS in headers else ""
    return encode_headers(lines, f"NATS/1.0{status}\r\n".encode())


async def _cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


NOBODY = Context()  # for the network and the server, which belong to no process


def jitter(rng: random.Random, low: float, high: float) -> Callable[[], float]:
    """Return a function that draws latencies, most of them near `low`."""
    return lambda: low + (high - low) * rng.random() ** 3

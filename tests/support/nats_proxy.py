"""A proxy between a client and nats-server that loses and delays messages, statuses and connections as a test
decides."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import anyio
from anyio.abc import SocketStream

Direction: TypeAlias = Literal["to_client", "to_server"]


@dataclass(frozen=True)
class Frame:
    """A message on its way to the client. `headers` begins with the status line; `raw` is the whole frame, to send it
    later."""

    subject: str
    reply: str
    headers: bytes
    payload: bytes
    raw: bytes

    @property
    def delivery(self) -> bool:
        """Return whether the message is a delivery of a consumer, with a stored message."""
        return self.reply.startswith("$JS.ACK.")

    @property
    def consumer_sequence(self) -> int:
        return int(self.reply.split(".")[6])

    @property
    def status(self) -> bool:
        """Return whether the server reports on a subscription: a heartbeat, flow control, the end of a pull, or an
        error."""
        return self.headers.startswith(b"NATS/1.0 ") and not self.delivery

    @property
    def heartbeat(self) -> bool:
        return self.headers.startswith(b"NATS/1.0 100 Idle")


class Faults:
    """Random faults from one seed: of each kind of frame, a share (`shares`) is lost, and some frames are late.
    `counts` has the numbers of both."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shares = {"delivery": 0.001, "heartbeat": 0.3, "status": 0.3}
        self.counts: Counter[str] = Counter()

    def lose(self, frame: Frame) -> bool:
        if not (frame.delivery or frame.status):
            return False
        kind = "delivery" if frame.delivery else "heartbeat" if frame.heartbeat else "status"
        if self.random.random() >= self.shares[kind]:
            return False
        self.counts[kind] += 1
        return True

    def delay(self, direction: Direction) -> float:
        if self.random.random() >= 0.2:
            return 0.0
        self.counts[direction] += 1
        return self.random.uniform(0.001, 0.01)


class Proxy:
    """A proxy with faults. `lose` decides which frames are lost, and `delay` for how many seconds the next frame is
    held.

    Delays never change the order: later data of the same connection in the same direction waits as well.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.lose: Callable[[Frame], bool] = lambda _: False
        self.delay: Callable[[Direction], float] = lambda _: 0.0
        self._open: set[SocketStream] = set()
        self._clients: dict[SocketStream, anyio.Lock] = {}

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def cut(self) -> None:
        """Break all connections."""
        for stream in list(self._open):
            await anyio.aclose_forcefully(stream)

    async def say(self, data: bytes) -> None:
        """Send `data` to all clients as if it came from the server."""
        for client, lock in list(self._clients.items()):
            async with lock:
                await client.send(data)

    async def serve(self, client: SocketStream, target: int) -> None:
        async with client, await anyio.connect_tcp("127.0.0.1", target) as server, anyio.create_task_group() as group:
            locks = {client: anyio.Lock(), server: anyio.Lock()}
            self._open |= locks.keys()
            self._clients[client] = locks[client]

            async def pump(frames: AsyncIterator[bytes], to: SocketStream, direction: Direction) -> None:
                try:
                    async for data in frames:
                        if held := self.delay(direction):
                            await anyio.sleep(held)
                        async with locks[to]:
                            await to.send(data)
                except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    pass
                group.cancel_scope.cancel()

            group.start_soon(pump, client, server, "to_server")
            group.start_soon(pump, self._filtered(server), client, "to_client")
        self._open -= locks.keys()
        self._clients.pop(client, None)

    async def _filtered(self, server: SocketStream) -> AsyncIterator[bytes]:
        buffer = bytearray()
        async for data in server:
            buffer += data
            kept = bytearray()
            while (end := buffer.find(b"\r\n")) >= 0:
                line = bytes(buffer[:end])
                size = end + 2
                verb, *words = line.split(b" ")
                if verb in (b"MSG", b"HMSG"):
                    size += int(words[-1]) + 2
                    if len(buffer) < size:
                        break
                    if self.lose(_frame(verb, words, bytes(buffer[end + 2 : size - 2]), bytes(buffer[:size]))):
                        del buffer[:size]
                        continue
                kept += buffer[:size]
                del buffer[:size]
            if kept:
                yield bytes(kept)


def _frame(verb: bytes, words: list[bytes], body: bytes, raw: bytes) -> Frame:
    head = int(words[-2]) if verb == b"HMSG" else 0
    numbers = 2 if verb == b"HMSG" else 1
    reply = words[2].decode() if len(words) > 2 + numbers else ""
    return Frame(words[0].decode(), reply, body[:head], body[head:], raw)


@asynccontextmanager
async def proxied(target: int) -> AsyncIterator[Proxy]:
    """Run a proxy to the nats-server on port `target`."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        proxy = Proxy(listener.extra(anyio.abc.SocketAttribute.local_port))

        async def serve(client: SocketStream) -> None:
            try:
                await proxy.serve(client, target)
            except OSError:
                await client.aclose()  # nats-server does not accept connections

        group.start_soon(listener.serve, serve)
        try:
            yield proxy
        finally:
            group.cancel_scope.cancel()

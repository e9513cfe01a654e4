"""A proxy between a client and nats-server that loses and delays what a test wants: messages, statuses, connections."""

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
    """A message on its way to the client. `headers` starts with the status line; `raw` is all of it, to send later."""

    subject: str
    reply: str
    headers: bytes
    payload: bytes
    raw: bytes

    @property
    def delivery(self) -> bool:
        """Whether it comes from a consumer and carries a stored message."""
        return self.reply.startswith("$JS.ACK.")

    @property
    def consumer_sequence(self) -> int:
        return int(self.reply.split(".")[6])

    @property
    def status(self) -> bool:
        """Whether the server says something about a subscription: heartbeats, flow control, ends of pulls, errors."""
        return self.headers.startswith(b"NATS/1.0 ") and not self.delivery

    @property
    def heartbeat(self) -> bool:
        return self.headers.startswith(b"NATS/1.0 100 Idle")


class Faults:
    """What goes wrong, from one seed: a share of what passes is lost (by kind: `shares`) or late. `counts` what did."""

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
    """`lose` decides which frames never arrive; `delay`, how long (seconds) what is to be sent next is held.

    Delays change no order: what comes behind, in that direction of that connection, waits as well.
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
        """Send `data` to all clients, as if the server did."""
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
    """A proxy to the nats-server on port `target`."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        proxy = Proxy(listener.extra(anyio.abc.SocketAttribute.local_port))

        async def serve(client: SocketStream) -> None:
            try:
                await proxy.serve(client, target)
            except OSError:
                await client.aclose()  # the server is away

        group.start_soon(listener.serve, serve)
        try:
            yield proxy
        finally:
            group.cancel_scope.cancel()

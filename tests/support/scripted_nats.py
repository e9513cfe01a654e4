"""A NATS server that is played by a test: it accepts connections and pulls, and sends what the test decides."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketStream

from rebaser_client.jetstream import Connection, Consumer, JetStream
from rebaser_client.jetstream.infos import ConsumerInfo

NEXT = "$JS.API.CONSUMER.MSG.NEXT."


class Wire:
    """A connection on which the test and the task that answers pings can both send."""

    def __init__(self, client: SocketStream) -> None:
        self._client = client
        self._turn = anyio.Lock()
        self.receive = client.receive

    async def send(self, data: bytes) -> None:
        async with self._turn:
            await self._client.send(data)


@dataclass(frozen=True)
class Pulled:
    """A pull that has arrived: its body, and the subject for its answers."""

    body: dict[str, Any]
    reply: str
    sid: bytes
    client: Wire

    async def status(self, line: str, **headers: int) -> None:
        """Answer with a status line such as `409 Consumer Deleted`. Headers are arguments: `pending_messages=3`."""
        lines = [f"{'-'.join(['Nats', *name.title().split('_')])}: {value}\r\n" for name, value in headers.items()]
        block = f"NATS/1.0 {line}\r\n{''.join(lines)}\r\n".encode()
        await self.client.send(
            b"HMSG %b %b %d %d\r\n%b\r\n" % (self.reply.encode(), self.sid, *[len(block)] * 2, block)  # type: ignore[str-format]
        )

    async def message(self, sequence: int, data: bytes = b"", headers: bytes = b"") -> None:
        """Deliver a message."""
        to = b"%b $JS.ACK.S.C.1.%d.%d.1700000000000000000.0" % (self.sid, sequence, sequence)
        if headers:
            block = b"NATS/1.0\r\n%b\r\n\r\n" % headers
            sizes = b"%d %d" % (len(block), len(block) + len(data))
            await self.client.send(b"HMSG s.a %b %b\r\n%b%b\r\n" % (to, sizes, block, data))
        else:
            await self.client.send(b"MSG s.a %b %d\r\n%b\r\n" % (to, len(data), data))


@dataclass
class ScriptedNats:
    """A server played by a test. `subscriptions` has all subjects of subscriptions; `published` all messages but
    pulls."""

    port: int
    subscriptions: list[str] = field(default_factory=list)
    published: list[tuple[str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pulls: asyncio.Queue[Pulled] = asyncio.Queue()
        self._clients: set[SocketStream] = set()
        self._refusing = False
        # Sends the last messages before an unsubscription; called once.
        self.before_unsubscribed: Callable[[], Awaitable[None]] | None = None

    async def pull(self) -> Pulled:
        """Return the next pull that arrives."""
        with anyio.fail_after(60):
            return await self._pulls.get()

    @property
    def waiting_pulls(self) -> int:
        return self._pulls.qsize()

    async def cut(self) -> None:
        for client in list(self._clients):
            await anyio.aclose_forcefully(client)

    async def refuse(self) -> None:
        """Break all connections, and refuse new ones."""
        self._refusing = True
        await self.cut()

    async def serve(self, client: SocketStream) -> None:
        if self._refusing:
            return await anyio.aclose_forcefully(client)
        self._clients.add(client)
        try:
            async with client:
                await self._serve(Wire(client))
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            pass
        finally:
            self._clients.discard(client)

    async def _serve(self, client: Wire) -> None:
        info = {"server_id": "X", "version": "2.15.0", "max_payload": 1048576, "headers": True, "proto": 1}
        await client.send(b"INFO %b\r\n" % json.dumps(info).encode())
        subjects: dict[str, bytes] = {}
        buffer = b""
        while True:
            while b"\r\n" not in buffer:
                buffer += await client.receive()
            line, _, buffer = buffer.partition(b"\r\n")
            words = line.split()
            match words[0].upper() if words else b"":
                case b"PING":
                    await client.send(b"PONG\r\n")
                case b"UNSUB" if self.before_unsubscribed is not None:
                    send, self.before_unsubscribed = self.before_unsubscribed, None
                    await send()
                case b"SUB":
                    self.subscriptions.append(words[1].decode())
                    subjects[words[1].decode().removesuffix("*")] = words[-1]
                case b"PUB" | b"HPUB":
                    size = int(words[-1]) + 2
                    while len(buffer) < size:
                        buffer += await client.receive()
                    payload, buffer = buffer[: size - 2], buffer[size:]
                    self._published(client, [word.decode() for word in words], payload, subjects)

    def _published(self, client: Wire, words: list[str], payload: bytes, subjects: dict[str, bytes]) -> None:
        subject = words[1]
        if subject.startswith(NEXT):
            sid = next(sid for prefix, sid in subjects.items() if words[2].startswith(prefix))
            self._pulls.put_nowait(Pulled(json.loads(payload), words[2], sid, client))
        else:
            self.published.append((subject, payload))


@asynccontextmanager
async def scripted(**config: Any) -> AsyncIterator[tuple[ScriptedNats, Consumer]]:
    """Run a scripted server, and yield it with the consumer C of its stream S; `config` is that of the consumer."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        server = ScriptedNats(listener.extra(SocketAttribute.local_port))
        group.start_soon(listener.serve, server.serve)
        info = ConsumerInfo.of({"stream_name": "S", "name": "C", "config": config})
        async with Connection.connect(f"nats://127.0.0.1:{server.port}") as connection:
            yield server, Consumer(JetStream(connection), info)
        group.cancel_scope.cancel()

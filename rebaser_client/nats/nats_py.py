"""nats-py beyond its public interface: what it keeps to itself and Rebaser uses is used here.

Invariant: no other module touches a private name of nats-py, and each name that this one touches is in `PRIVATE`, which
a test compares with the installed release. `pyproject.toml` pins its minor version: private names may change with it.
"""

import asyncio
import json
import re
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import ParseResult

import nats.errors
from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Srv
from nats.aio.subscription import Subscription as NatsSubscription
from nats.aio.transport import TcpTransport
from nats.protocol.command import hpub_cmd, pub_cmd

from rebaser_client.errors import NotAllowed
from rebaser_client.nats.parser import ProtocolParser

PRIVATE = {
    "Client": {
        "_connect_to_server", "_current_server", "_flush_pending", "_flush_queue", "_flusher_task", "_pending",
        "_pending_data_size", "_pongs", "_process_err", "_process_info", "_process_ping", "_process_pong", "_ps",
        "_reading_task", "_send_command", "_server_info", "_server_pool", "_transport",
    },
    "TcpTransport": {"_io_reader", "_io_writer"},
    "Subscription": {"_id"},
}  # fmt: skip


_DENIED = re.compile(r"Permissions Violation for (Publish|Subscription)(?: to| with Reply of) (\".*?\")", re.IGNORECASE)


class NoTlsError(nats.errors.Error):
    """The server offers no TLS, and is to be talked to with TLS only."""

    def __str__(self) -> str:
        return "the server offers no TLS"


class NatsClient(Client):
    """A nats-py client. `secure`: it says nothing to a server before the connection is encrypted."""

    def __init__(self, *, secure: bool = False) -> None:
        super().__init__()
        self.parser = ProtocolParser(self)
        self.secure = secure
        self.on_denied: Callable[[NotAllowed], None] = lambda _: None
        self._ps = self.parser  # type: ignore[assignment] # see there

    @property
    def clustered(self) -> bool:
        """Whether the server says that it belongs to a cluster."""
        return bool(self._server_info.get("cluster"))

    @property
    def known_servers(self) -> dict[str, str | None]:
        """URLs of all servers that are known, each with the name in its certificate if that is not its own."""
        current = self._current_server
        if current is None:
            return {}
        login = current.uri.netloc.rpartition("@")[0]
        known: dict[str, str | None] = {}
        for one in self._server_pool:
            uri = one.uri
            if one.discovered:  # told by a server, which knows neither its scheme nor our login
                host = f"{login}@{uri.netloc}" if login else uri.netloc
                uri = uri._replace(scheme=current.uri.scheme, netloc=host)
            known[uri.geturl()] = one.tls_name
        return known

    @property
    def io_tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that read and write, once it is connected."""
        return [task for task in (self._flusher_task, self._reading_task) if task is not None]

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were handed to it and have not left this process."""
        writer = getattr(self._transport, "_io_writer", None)
        return self.pending_data_size + (0 if writer is None else writer.transport.get_write_buffer_size())

    def write_ping(self) -> asyncio.Future[bool]:
        """Write a PING behind all that waits; what is returned gets its answer."""
        answer = asyncio.get_running_loop().create_future()
        self._pongs.append(answer)
        self._write_now(b"PING\r\n")
        return answer

    def abort(self) -> None:
        """Drop the socket and what waits in it: a peer that comes back to life must not read it."""
        writer = getattr(self._transport, "_io_writer", None)  # a WebSocket has none
        if writer is not None:
            writer.transport.abort()
        waiting = self._flush_queue
        while waiting is not None and not waiting.empty():  # who publishes more than fits waits here for its turn
            turn = waiting.get_nowait()
            if not turn.done():
                turn.set_result(None)

    async def publish_block(self, subject: str, reply: str, block: bytes, payload: bytes) -> None:
        """As `publish`, for headers that are encoded and checked."""
        await self._send_command(hpub_cmd(subject, reply, block, payload))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    def publish_now(self, subject: str, reply: str, payload: bytes) -> bool:
        """Write a message to the socket, behind what waits to be written; False if it is not sent.

        The flusher takes its turns in the event loop, and while a lot comes in a turn is hundreds of messages.
        """
        if not self.is_connected or self._transport is None:
            return False
        self._write_now(pub_cmd(subject, reply, payload))
        return True

    def _write_now(self, command: bytes) -> None:
        self._pending.append(command)
        if not isinstance(self._transport, TcpTransport):  # a WebSocket sends when its flusher waits for it
            self._pending_data_size += len(command)
            if self._flush_queue is not None and self._flush_queue.empty():
                self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())
            return
        waiting, self._pending, self._pending_data_size = self._pending, [], 0
        with suppress(OSError, RuntimeError):  # a socket that is closed: who reads it finds out
            self._transport.writelines(waiting)  # type: ignore[no-untyped-call]

    # -- what the reader tells ---------------------------------------------------------------------------------------

    async def on_ping(self) -> None:
        await self._process_ping()

    async def on_pong(self) -> None:
        with suppress(asyncio.InvalidStateError):  # who asked may have given up
            await self._process_pong()

    async def on_error(self, text: str) -> None:
        found = _DENIED.search(text)
        if found is None:
            await self._process_err(text.lower())
        else:
            self.on_denied(NotAllowed("publish" if found[1].lower() == "publish" else "subscribe", _unquoted(found[2])))

    async def on_info(self, info: dict[str, Any]) -> None:
        await self._process_info(info)

    # -- in place of nats-py's own -----------------------------------------------------------------------------------

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """The first INFO is the last thing that comes before CONNECT, and the secrets in it, are sent."""
        if initial_connection and self.secure and not info.get("tls_required"):
            current = self._current_server
            if current is None or current.uri.scheme != "wss":  # which is encrypted by now
                if not info.get("tls_available"):
                    raise NoTlsError
                info["tls_required"] = True  # by us: nats-py looks here for whether to begin with TLS
        await super()._process_info(info, initial_connection)

    async def _connect_to_server(self, s: Srv) -> None:
        if s.uri.scheme in ("ws", "wss"):
            if self.secure and s.uri.scheme == "ws":
                raise NoTlsError
            await super()._connect_to_server(s)
            return
        s.last_attempt = time.monotonic()
        transport = SafeTransport()
        await transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])
        self._transport = transport


class SafeTransport(TcpTransport):
    """What asyncio needs and nats-py's does not do."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held = b""

    def write(self, payload: bytes) -> None:
        """CONNECT leaves together with the PING behind it.

        A server that refuses it closes the socket; what it said is lost where that is found by writing to it.
        """
        if payload.startswith(b"CONNECT "):
            self._held = payload
        elif self._io_writer is not None:
            held, self._held = self._held, b""
            self._io_writer.write(held + payload)

    def writelines(self, payload: list[bytes]) -> None:
        """Raises `ConnectionResetError` for a socket that is closed.

        From Python 3.12 on, asyncio would watch its file descriptor again, which may be another socket's by now.
        """
        if self._io_writer is None or self._io_writer.is_closing():
            raise ConnectionResetError("Connection lost")
        self._io_writer.writelines(payload)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Go on with TLS. What came before the handshake is dropped: anybody may have sent it."""
        plain, self._io_writer = self._io_writer, None  # what fails below leaves nothing to wait for
        if plain is None:
            raise ConnectionResetError("Connection lost")
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=buffer_size, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        host = uri if isinstance(uri, str) else uri.hostname
        try:
            async with asyncio.timeout(connect_timeout):
                transport = await loop.start_tls(plain.transport, protocol, ssl_context, server_hostname=host)
        except BaseException:
            plain.transport.abort()
            raise
        if transport is None:  # closed meanwhile
            raise ConnectionResetError("Connection lost")
        protocol.connection_made(transport)  # so that it knows of TLS: it would answer the end of the stream wrongly
        self._io_reader, self._io_writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def subscription_id(subscription: NatsSubscription) -> int:
    """The number that comes with each message of `subscription`."""
    return subscription._id  # noqa: SLF001 - see the top


def _unquoted(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:  # Go and JSON differ in what no subject of ours has
        return quoted.strip('"')

"""The part of the NATS client that depends on private names of nats-py.

Invariant: no other module uses a private name of nats-py, and each private name used here is in `PRIVATE`, which a test
compares with the installed release. `pyproject.toml` pins the minor version of nats-py, because private names may
change with it.
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
from nats.aio.transport import TcpTransport
from nats.protocol.command import pub_cmd, sub_cmd, unsub_cmd

from rebaser_client.nats.errors import NotAllowed
from rebaser_client.nats.parser import ProtocolParser

PRIVATE = {
    "Client": {
        "_connect_to_server", "_current_server", "_flush_queue", "_flusher_task", "_max_payload", "_max_pending_size",
        "_pending", "_pending_data_size", "_pongs", "_process_err", "_process_info", "_process_ping", "_process_pong",
        "_ps", "_reading_task", "_server_info", "_server_pool", "_sid", "_status", "_transport",
    },
    "TcpTransport": {"_io_reader", "_io_writer"},
}  # fmt: skip

CONNECTED = Client.CONNECTED

_DENIED = re.compile(r"Permissions Violation for (Publish|Subscription)(?: to| with Reply of) (\".*?\")", re.IGNORECASE)


class NoTlsError(nats.errors.Error):
    """The server offers no TLS, but TLS is required."""

    def __str__(self) -> str:
        return "the server offers no TLS"


class NatsClient(Client):
    """A nats-py client with the parser of this package.

    If `secure` is true, nothing is sent to a server before the connection is encrypted.
    """

    def __init__(self, *, secure: bool = False) -> None:
        super().__init__()
        self.parser = ProtocolParser(self)
        self.secure = secure
        self.on_denied: Callable[[NotAllowed], None] = lambda _: None
        self._writing_soon = False  # whether a call of `_write_waiting` is scheduled
        self._ps = self.parser  # type: ignore[assignment] # this parser has the methods that nats-py calls

    @property
    def clustered(self) -> bool:
        """Whether the server reports that it belongs to a cluster."""
        return bool(self._server_info.get("cluster"))

    @property
    def version(self) -> str:
        """The version that the server reports."""
        return str(self._server_info.get("version", ""))

    @property
    def known_servers(self) -> dict[str, str | None]:
        """The URLs of all known servers, each with the name to expect in its certificate (None: its host name)."""
        current = self._current_server
        if current is None:
            return {}
        login = current.uri.netloc.rpartition("@")[0]
        known: dict[str, str | None] = {}
        for server in self._server_pool:
            uri = server.uri
            if server.discovered:  # another server announced this server, without the scheme and the credentials
                host = f"{login}@{uri.netloc}" if login else uri.netloc
                uri = uri._replace(scheme=current.uri.scheme, netloc=host)
            known[uri.geturl()] = server.tls_name
        return known

    @property
    def io_tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that read and write the socket, once the client is connected."""
        return [task for task in (self._flusher_task, self._reading_task) if task is not None]

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that were published, but are still in this process."""
        writer = getattr(self._transport, "_io_writer", None)
        return self.pending_data_size + (0 if writer is None else writer.transport.get_write_buffer_size())

    def write_ping(self) -> asyncio.Future[bool]:
        """Write a PING after all unsent messages. The returned future completes when the PONG arrives."""
        answer = asyncio.get_running_loop().create_future()
        self._pongs.append(answer)
        self._write_now(b"PING\r\n")
        return answer

    def abort(self) -> None:
        """Close the socket and drop its unsent bytes, so that a server that starts to respond again does not receive
        them."""
        writer = getattr(self._transport, "_io_writer", None)  # the transport of a WebSocket has no writer
        if writer is not None:
            writer.transport.abort()
        queue = self._flush_queue
        while queue is not None and not queue.empty():  # the queue contains futures of publishers that await a flush
            flushed = queue.get_nowait()
            if not flushed.done():
                flushed.set_result(None)

    def publish_soon(self, command: bytes, size: int) -> bool:
        """Write `command`, which publishes `size` bytes. Return what `write_soon` returns.

        Raise `MaxPayloadError`, or `ConnectionClosedError` without a connection. The properties of nats-py that have
        this information take longer than the rest of this method.
        """
        if self._status != CONNECTED:
            raise nats.errors.ConnectionClosedError
        if size > self._max_payload:
            raise nats.errors.MaxPayloadError
        return self.write_soon(command)

    def write_soon(self, command: bytes) -> bool:
        """Write `command`, after all unsent bytes, in the next iteration of the event loop.

        Return False if many bytes are unsent, so that the caller should await `flushed`.
        """
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._writing_soon:
            self._writing_soon = True
            asyncio.get_running_loop().call_soon(self._write_waiting)
        return self._pending_data_size <= self._max_pending_size

    def subscribe_soon(self, subject: str) -> tuple[int, bool]:
        """Subscribe to `subject` with the next bytes that are written. Return the id that the server sends with each
        message, and what `write_soon` returns.

        The method `subscribe` of nats-py keeps three queues for each subscription, and waits until the command has been
        written.
        """
        self._sid += 1
        return self._sid, self.write_soon(sub_cmd(subject, "", self._sid))

    def unsubscribe_soon(self, subscription_id: int) -> bool:
        """Unsubscribe with the next bytes that are written. Return what `write_soon` returns."""
        return self.write_soon(unsub_cmd(subscription_id, 0))

    def _write_waiting(self) -> None:
        """Write the pending bytes, or leave them to the flusher if the socket still holds earlier bytes."""
        self._writing_soon = False
        if isinstance(self._transport, SafeTransport) and self._transport.is_drained:
            self._write_pending()
            return
        queue = self._flush_queue
        if queue is not None and queue.empty():
            queue.put_nowait(asyncio.get_running_loop().create_future())

    def _write_pending(self) -> None:
        waiting, self._pending, self._pending_data_size = self._pending, [], 0
        if waiting and self._transport is not None:
            with suppress(OSError, RuntimeError):  # the socket is closed, which the reading task will notice
                self._transport.writelines(waiting)

    async def flushed(self) -> None:
        """Wait until the flusher has written all bytes that are unsent now, or until `abort` is called.

        The method `flush` of nats-py cannot be used, because it suppresses cancellation.
        """
        if self._flush_queue is not None:
            future = asyncio.get_running_loop().create_future()
            await self._flush_queue.put(future)
            await future

    def publish_now(self, subject: str, reply: str, payload: bytes) -> bool:
        """Write a message to the socket at once, after all unsent messages. Return False if it could not be sent.

        The flusher would send the message later: it is a task of the event loop, and hundreds of incoming messages may
        be handled before it runs.
        """
        if not self.is_connected or self._transport is None:
            return False
        self._write_now(pub_cmd(subject, reply, payload))
        return True

    def _write_now(self, command: bytes) -> None:
        if not isinstance(self._transport, TcpTransport):  # only the flusher writes to a WebSocket
            self.write_soon(command)
            return
        self._pending.append(command)
        self._write_pending()

    # -- methods that the parser calls (`ControlHandler`) --------------------------------------------------------------

    async def on_ping(self) -> None:
        await self._process_ping()

    async def on_pong(self) -> None:
        with suppress(asyncio.InvalidStateError):  # the future may have been cancelled
            await self._process_pong()

    async def on_error(self, text: str) -> None:
        denial = _DENIED.search(text)
        if denial is None:
            await self._process_err(text.lower())
        else:
            self.on_denied(
                NotAllowed("publish" if denial[1].lower() == "publish" else "subscribe", _unquoted(denial[2]))
            )

    async def on_info(self, info: dict[str, Any]) -> None:
        await self._process_info(info)

    # -- overrides of nats-py ----------------------------------------------------------------------------------------

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Refuse a server without TLS if `secure` is true.

        This has to happen at the first INFO, because nats-py then sends CONNECT, which contains the credentials.
        """
        if initial_connection and self.secure and not info.get("tls_required"):
            current = self._current_server
            if current is None or current.uri.scheme != "wss":  # a wss connection is already encrypted
                if not info.get("tls_available"):
                    raise NoTlsError
                info["tls_required"] = True  # makes nats-py start TLS
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
    """A TCP transport that corrects mistakes in how nats-py's transport uses asyncio."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held = b""

    @property
    def is_drained(self) -> bool:
        """Whether the socket is open, and has accepted all bytes that were written to it."""
        writer = self._io_writer
        return writer is not None and not writer.is_closing() and not writer.transport.get_write_buffer_size()

    def write(self, payload: bytes) -> None:
        """Write `payload`, but hold back CONNECT, and send it together with the PING that follows.

        A server that refuses CONNECT sends the reason and closes the socket. If PING were written to the closed socket,
        the reason would be lost.
        """
        if payload.startswith(b"CONNECT "):
            self._held = payload
        elif self._io_writer is not None:
            held, self._held = self._held, b""
            self._io_writer.write(held + payload)

    def writelines(self, payload: list[bytes]) -> None:
        """Write `payload`. Raise `ConnectionResetError` if the socket is closed.

        Without this check, asyncio (since Python 3.12) would watch the file descriptor again, although it may belong to
        another socket by now.
        """
        if self._io_writer is None or self._io_writer.is_closing():
            raise ConnectionResetError("Connection lost")
        self._io_writer.writelines(payload)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Start TLS. Bytes received before the handshake are dropped, because they may not come from the server."""
        plain, self._io_writer = self._io_writer, None  # None, so that no caller waits for the writer if this fails
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
        if transport is None:  # the socket was closed meanwhile
            raise ConnectionResetError("Connection lost")
        protocol.connection_made(transport)  # the protocol handles the end of the stream differently with TLS
        self._io_reader, self._io_writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _unquoted(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:  # Go quotes some characters differently from JSON, but Rebaser's subjects have none of these
        return quoted.strip('"')

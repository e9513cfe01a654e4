"""Runs a console: HTTP on a listening socket, and a connection to NATS that is made, and made again, beside it.

Invariants: there are at most `MAX_CONNECTIONS` connections. Each sends the head of a request within `HEAD` seconds, and
takes what was sent to it within `TAKING` seconds; otherwise it ends.
HTTP is served before NATS is connected, so that pages can tell what is wrong.
"""

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import structlog
import uvicorn
from anyio import to_thread
from uvicorn.protocols.http.h11_impl import H11Protocol

from rebaser.console.access.options import ConsoleOptions, other_names
from rebaser.console.app import make_app
from rebaser.console.files import read_files
from rebaser.console.live.hub import Hub
from rebaser.console.reading.states import import_reader
from rebaser.console.resources import Console
from rebaser_client import RebaserClient

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 512
MAX_HEAD = 16 * 1024  # bytes
HEAD = 20.0  # seconds
TAKING = 30.0  # seconds
CLOSING = 2  # seconds for sending the remaining answers


class BoundedProtocol(H11Protocol):  # type: ignore[misc]
    """A connection that ends if no request arrives on it in time, or if the other side does not take the answer."""

    _end: Any = None
    _slow: Any = None  # ends the connection unless all was taken before; also while it is being closed

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # `pause_writing` and `resume_writing` tell whether all was taken
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._begin_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel()
        elif self._end is None:
            self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel()
        self._taken()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._slow = self.loop.call_later(TAKING, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()

    def _taken(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _begin_head(self) -> None:
        self._end = self.loop.call_later(HEAD, self.transport.abort)

    def _cancel(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None


@asynccontextmanager
async def console(
    connect: Callable[[], AbstractAsyncContextManager[RebaserClient]],
    listener: socket.socket,
    options: ConsoleOptions,
    version: str,
) -> AsyncIterator[None]:
    """Serve a console on `listener` until the caller leaves the context.

    `connect` opens the client that reads. It is called again if it fails.
    """
    hub = Hub(connect)
    files = await to_thread.run_sync(read_files)
    server = _make_server(make_app(Console(hub, options, version), files))
    host, port = listener.getsockname()[:2]
    names = other_names(options.hosts) if options.is_local else []
    async with anyio.create_task_group() as group:
        group.start_soon(hub.run)
        group.start_soon(_serve, server, listener)
        group.start_soon(partial(to_thread.run_sync, import_reader, abandon_on_cancel=True))
        log.info("console_listening", host=host, port=port, actions=options.actions)
        if names:
            log.warning("console_without_login", hosts=names)  # a name that is not a loopback name suggests a proxy
        try:
            yield
        finally:
            hub.close()
            server.should_exit = True
            with anyio.CancelScope(shield=True):
                await _stopped(server)
            group.cancel_scope.cancel()


async def _serve(server: Any, listener: socket.socket) -> None:
    with anyio.CancelScope(shield=True):
        try:
            await server.serve(sockets=[listener])
        finally:
            server.stopped.set()


async def _stopped(server: Any) -> None:
    await server.stopped.wait()


def _make_server(app: Any) -> Any:
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        log_level="critical",  # any client can cause uvicorn's log messages; `app` logs failures
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEAD,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=CLOSING,
    )
    config.load()
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # the command handles signals
    server.stopped = anyio.Event()
    return server

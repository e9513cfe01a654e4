"""Opens the ops port in the server's event loop, so that probes get no answer if the loop is blocked.

Invariant: the port opens before the server connects to NATS, and stays open until the server has returned its tasks to
NATS.
"""

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import anyio
import structlog
from anyio import to_thread

from rebaser.ops.address import listen
from rebaser.snapshot import Observed
from rebaser_core.errors import ConfigError

log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def ops_port(address: str | None, state: Observed) -> AsyncIterator[int]:
    """Serve HTTP at `address`, which has the form `HOST:PORT`, until the caller leaves the context. A cancellation does
    not stop the HTTP server before that.

    Yield the port number. If `address` is None, nothing is served, and the number is 0.

    Raise `ConfigError` if the address cannot be used, or if the required packages are not installed.
    """
    if address is None:
        yield 0
        return
    listener = await listen(address)
    with contextlib.closing(listener):
        server = await to_thread.run_sync(_make_server, state)
        host, port = listener.getsockname()[:2]
        async with anyio.create_task_group() as group:
            group.start_soon(_serve, server, listener)
            log.info("http_listening", host=host, port=port)
            try:
                yield port
            finally:
                server.should_exit = True


async def _serve(server: Any, listener: socket.socket) -> None:
    with anyio.CancelScope(shield=True):
        await server.serve(sockets=[listener])


def _make_server(state: Observed) -> Any:
    try:
        from rebaser.ops.web import make_server  # noqa: PLC0415 - takes 0.2 s, and needs packages of an extra
    except ImportError as error:
        raise ConfigError(f"--http needs the package {error.name}: pip install 'rebaser[server]'") from None
    return make_server(state)

"""The HTTP server of the ops port: Starlette on uvicorn.

Invariants: there are at most `MAX_CONNECTIONS` connections. Each lasts for at most `LIFETIME` seconds, and serves one
request of at most `MAX_REQUEST` bytes. Only GET and HEAD are answered.
"""

import contextlib
from typing import Any

import structlog
import uvicorn
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from rebaser.ops.metrics import render
from rebaser.ops.probes import CHECKS, REQUIRABLE, Probe, judge, workload
from rebaser.snapshot import Observed
from rebaser.telemetry.catalogue import read_all

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 64
MAX_REQUEST = 8 * 1024  # maximum number of bytes that a connection may send in total
LIFETIME = 10.0  # maximum seconds from the start of a connection to its end
CLOSING = 2  # seconds for sending the remaining answers when the port is closed


class OneRequest(H11Protocol):  # type: ignore[misc]
    """A connection for one request. It ends even if the client never sends the whole request."""

    _end: Any = None
    _received = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._end = self.loop.call_later(LIFETIME, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > MAX_REQUEST:  # uvicorn's own limit applies only to a head that arrives in parts
            self.transport.abort()
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._end is not None:
            self._end.cancel()


def make_server(state: Observed) -> Any:
    """Return a uvicorn server, to run in the event loop of `state`."""
    config = uvicorn.Config(
        _application(state),
        http=OneRequest,
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        log_level="critical",  # any client can cause uvicorn's log messages; `failed` logs failures
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=[("connection", "close"), ("cache-control", "no-store")],
        timeout_graceful_shutdown=CLOSING,
    )
    config.load()
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # the command handles signals
    return server


def _application(state: Observed) -> Any:
    def route(probe: Probe) -> Any:
        async def answer(request: Any) -> Any:
            query = request.query_params
            require, exclude = (_names(query.getlist(name)) for name in ("require", "exclude"))
            for name, known, given in (("require", REQUIRABLE, require), ("exclude", CHECKS, exclude)):
                if not given <= set(known):
                    return PlainTextResponse(f"unknown name in {name}=; use {', '.join(known)}\n", 400)
            answer = judge(probe, state.snapshot(), require=require, exclude=exclude)
            status = 200 if answer.passes else 503
            if "verbose" in query:
                return JSONResponse(answer.details(), status)
            return PlainTextResponse(answer.text() + "\n", status)

        return Route(f"/{probe}", answer, methods=["GET"])  # Starlette adds HEAD itself

    async def scale(_: Any) -> Any:
        snapshot = state.snapshot()
        answer = judge("readyz", snapshot)
        if not answer.passes:  # the numbers are old or missing; an autoscaler does nothing without an answer
            return PlainTextResponse(answer.text() + "\n", 503)
        return JSONResponse(workload(snapshot))

    scrapes = CapacityLimiter(1)

    async def metrics(request: Any) -> Any:
        families = read_all(state.snapshot(), state.census())
        accept = request.headers.get("accept", "")
        body, content_type = await to_thread.run_sync(render, families, accept, limiter=scrapes)
        return Response(body, media_type=content_type)

    def failed(request: Any, error: Exception) -> Any:
        log.error("http_failed", path=request.url.path[:80], exc_info=error)
        return PlainTextResponse("the server failed to answer; its log says why\n", 500)

    return Starlette(
        routes=[
            route("livez"),
            route("readyz"),
            Route("/scale", scale, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
        ],
        exception_handlers={Exception: failed},
    )


def _names(given: list[str]) -> set[str]:
    return {name for one in given for name in one.split(",") if name}

"""Runs a server process: opens the ops port, then the parts that all owners share, then the server itself."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import structlog

from rebaser.embedded.spark import Jvm
from rebaser.ops.port import ops_port
from rebaser.pings import about_change_set, answer_pings, describe
from rebaser.runtime.context import Context, open_context
from rebaser.runtime.python_gc import short_collections
from rebaser.runtime.watchdog import watched_loop
from rebaser.server import Server
from rebaser.settings import Settings
from rebaser.snapshot import Census, Snapshot
from rebaser_core.messages import REGISTRY

MAX_FILES = 65_536  # open files that a server allows itself, if the system does
MAX_FILES_MACOS = 10_240  # macOS may accept no more, although its hard limit is unlimited

log = structlog.get_logger(__name__)


class _Process:
    """The process as the ops port sees it. `server` is None until the server has been created."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.server: Server | None = None
        self.connected = False
        self.problem = ""

    def nats_awaited(self, reason: str) -> None:
        """Note why NATS could not be reached."""
        self.problem = reason

    def streams_awaited(self, reason: str) -> None:
        """Note that there is a connection, and why the streams cannot be used yet."""
        self.connected, self.problem = True, reason

    def snapshot(self) -> Snapshot:
        if self.server is not None:
            return self.server.snapshot()
        settings = self.settings
        given = Snapshot(settings.server_id, "connecting", settings.ack_wait, settings.ping_interval)
        if self.connected:
            return replace(given, stage="starting", missing=self.problem)
        return replace(given, nats_problem=self.problem)

    def census(self) -> Census:
        return Census() if self.server is None else self.server.census()


def _raise_file_limit() -> None:
    """Raise this process's limit of open files to its hard limit, at most `MAX_FILES`.

    Many systems set a low limit for programs that use `select`; the server does not.
    """
    try:
        import resource  # noqa: PLC0415 - Windows does not have it

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError) as error:
        log.debug("file_limit_not_raised", reason=str(error))
        return
    for most in (MAX_FILES, MAX_FILES_MACOS):
        wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.debug("file_limit_not_raised", wanted=wanted, reason=str(error))
        else:
            return


async def serve(
    settings: Settings,
    *,
    ready: Callable[[], None] = lambda: None,
    warm: Callable[[], None] = lambda: None,
    jvm: Jvm | None = None,
    engine: AbstractAsyncContextManager[Any] | None = None,
    traced: bool = True,
) -> None:
    """Run a server until cancelled.

    `ready` is called once the server accepts requests, and `warm` once Spark is ready for the first DVU. `jvm` is the
    embedded Spark, if it was started already. `engine` is an engine to use instead of Spark. If `traced` is false,
    there are no traces, even if the environment requests them.

    Raise `ConfigError` if the configuration is wrong, and `NotConnectedError` if NATS cannot be reached at the start.
    """
    REGISTRY.build()
    _raise_file_limit()
    process = _Process(settings)
    with watched_loop(settings.loop_blocked_after), short_collections():
        async with ops_port(settings.http, process):
            opening = open_context(
                settings,
                jvm,
                engine,
                traced=traced,
                nats_awaited=process.nats_awaited,
                streams_awaited=process.streams_awaited,
            )
            await _serve(process, opening, ready, warm)


async def _serve(
    process: _Process,
    opening: AbstractAsyncContextManager[Context],
    ready: Callable[[], None],
    warm: Callable[[], None],
) -> None:
    settings = process.settings
    async with opening as context, anyio.create_task_group() as group:
        server = process.server = Server(context)

        async def report_warm() -> None:
            await context.engine.ready.wait()
            log.info("dvu_ready", spark=settings.spark_shown())
            warm()

        def report_ready() -> None:
            log.info("server_ready", server=settings.server_id, slots=server.snapshot().slots)
            ready()

        group.start_soon(report_warm)
        group.start_soon(answer_pings, context, partial(describe, server), partial(about_change_set, context, server))
        await server.run(report_ready)

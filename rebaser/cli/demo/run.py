"""Runs the demo on a real system: starts nats-server, a server and Spark, and stops them at the end.

Invariant: no process or task that is started here outlives the demo, even after an error or a signal.
"""

import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from rebaser.cli.connect import client_for
from rebaser.cli.demo.check import Facts
from rebaser.cli.demo.environment import Distribution, read_environment
from rebaser.cli.demo.player import TIME_LIMIT, WORKSPACE, Player
from rebaser.cli.demo.screen import Screen
from rebaser.cli.errors import CommandFailed
from rebaser.embedded.nats import embedded_nats
from rebaser.embedded.spark import Jvm
from rebaser.serving import serve
from rebaser.settings import Settings


async def play(data: Path, settings: Settings, jvm: Jvm | None, screen: Screen) -> int:
    """Run the demo, and return the exit code. `jvm` is the Spark on which the demo runs; it may still be starting.

    Raise `ConfigError` if a package that the demo needs is not installed.
    """
    started = time.perf_counter()
    screen.opening(data)
    try:
        with anyio.fail_after(TIME_LIMIT):
            async with AsyncExitStack() as stack:
                nats = await stack.enter_async_context(embedded_nats(data / "nats"))
                group = await stack.enter_async_context(anyio.create_task_group())
                settings = settings.embedded(nats.url)
                warm = await _start_server(group, settings, jvm)
                screen.ready(time.perf_counter() - started)
                environment, facts = await read_inputs()
                screen.environment(environment)
                client = await stack.enter_async_context(client_for(settings))
                player = Player(client, screen, warm, environment, facts)
                all_right = await player.play()
                group.cancel_scope.cancel()
    except TimeoutError:
        raise CommandFailed(
            f"the demo did not end within {TIME_LIMIT:.0f} s; try again when this machine is less busy"
        ) from None
    screen.closing(data, WORKSPACE, player.change_set, next(iter(environment)), time.perf_counter() - started)
    return 0 if all_right else 1


async def read_inputs() -> tuple[dict[str, Distribution], Facts]:
    """Read the installed distributions twice: once for the edits of the demo, and once for the independent check.

    Reading opens thousands of files, so it runs in a thread and does not block the server, which runs on this event
    loop.
    """
    return await to_thread.run_sync(read_environment), await to_thread.run_sync(Facts.read)


async def _start_server(group: TaskGroup, settings: Settings, jvm: Jvm | None) -> anyio.Event:
    """Start a server and wait until it accepts requests. Return an event that is set when Spark is warm."""
    ready, warm = anyio.Event(), anyio.Event()

    async def run() -> None:
        await serve(settings, ready=ready.set, warm=warm.set, jvm=jvm)

    group.start_soon(run)
    await ready.wait()
    return warm

"""Starts an installation for tests: a real NATS server, and a Rebaser server in a thread of this process."""

import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.from_thread import start_blocking_portal
from pydantic import ValidationError

from rebaser.dvu.functions.base import Function, ScalarForm
from rebaser.dvu.functions.registry import added
from rebaser.embedded.nats import EmbeddedNats, embedded_nats
from rebaser.serving import serve
from rebaser.settings import Settings
from rebaser.testing.functions import as_function
from rebaser.testing.in_process import InProcessEngine
from rebaser.testing.workspace_clients import no_change_set
from rebaser_client import BlockingRebaserClient
from rebaser_client.task_groups import flat_task_group
from rebaser_core.errors import ConfigError

START_TIMEOUT = 60.0  # seconds
# Settings that differ from the defaults of `rebaser serve`. The grace period is short because, after `crash`, the
# server may wait for NATS until the grace period ends.
TEST_DEFAULTS: dict[str, Any] = {"server_id": "local", "shutdown_grace": 1.0}


class LocalRebaser:
    """A running installation. `url` is the address of its NATS server, and `prefix` the prefix of its streams, for
    clients of any kind.

    `client` connects on first use; threads can share it. Programs that use asyncio connect with
    `RebaserClient.connect(url)`.
    """

    def __init__(
        self, url: str, prefix: str, clients: ExitStack, functions: ExitStack | None, crash: Callable[[], None]
    ) -> None:
        self.url = url
        self.prefix = prefix
        self._clients = clients
        self._functions = functions  # None if Spark computes
        self._crash = crash

    @cached_property
    def client(self) -> BlockingRebaserClient:
        """Return a client that is closed together with the installation."""
        return self._clients.enter_context(BlockingRebaserClient.connect(self.url, prefix=self.prefix))

    def settle(self, workspace: str, change_set: str, *, timeout: float = 60.0) -> None:
        """Wait until all requests sent so far are decided, and all derived values are up to date.

        To find out, send an empty request, which is decided after the others. Raise `UnprocessableError` if there is no
        such change set, and `RequestTimeout` after `timeout` seconds.
        """
        if not self.client.exists(workspace, change_set):
            raise no_change_set(workspace, change_set)
        self.client.enqueue_updates_with_reply(workspace, change_set, (), wait="derived", timeout=timeout)

    def functions(self, *functions: Function | ScalarForm) -> AbstractContextManager[object]:
        """Register `functions`, as if an installed plug-in had them: each is a `Function`, or a callable
        `(inputs, params)`, which is known by its `__name__`.

        The functions are available at once. Used as a context manager, the result removes them at the end of the
        `with` block; otherwise, they are removed when the installation ends. All installations of this process have
        them. Raise `ValueError` if there is another function with the same name, and `ConfigError` if this
        installation computes on Spark, because Spark's workers load functions from installed plug-ins only.
        """
        made = [as_function(function) for function in functions]
        if self._functions is None:
            raise _not_on_spark(made)
        registered = ExitStack()
        registered.enter_context(added(made))
        return self._functions.enter_context(registered)

    def crash(self) -> None:
        """Crash both servers, and start them again with the same data, at the same address.

        NATS is killed first. The Rebaser server is stopped after that, so it can neither commit nor hand over its
        change sets. Stored data is kept. Clients reconnect automatically. If a function is running, the call waits for
        it.
        """
        self._crash()


@contextmanager
def local_rebaser(
    *,
    data: Path | str | None = None,
    spark: bool = False,
    functions: Iterable[Function | ScalarForm] = (),
    **settings: Any,
) -> Generator[LocalRebaser, None, None]:
    """Run an installation on free loopback ports until the end of the `with` block.

    - `data`: the folder for the data of NATS; a later call with the same folder finds the stored data. Default: a
      temporary folder, which is deleted at the end.
    - `spark`: compute derived values on an embedded Spark, like `rebaser dev`; Spark takes seconds to start. Otherwise,
      the code that Spark's workers run computes them in this process. Plug-ins are found in both cases if they are
      installed, for instance the project under test.
    - `functions`: functions to register, see `LocalRebaser.functions`.
    - `settings`: settings of `rebaser serve`, under their names in `rebaser.settings.Settings`. `shutdown_grace` is 1 s
      by default.

    Environment variables are ignored, including those that turn on traces. Raise `ConfigError` for an unknown or
    invalid setting, and if a server cannot start.
    """
    made = [as_function(function) for function in functions]
    if spark and made:
        raise _not_on_spark(made)
    with ExitStack() as stack:
        registered = stack.enter_context(ExitStack())
        registered.enter_context(added(made))
        if data is None:
            data = stack.enter_context(tempfile.TemporaryDirectory(prefix="rebaser-"))
        portal = stack.enter_context(start_blocking_portal(name="rebaser"))
        servers = stack.enter_context(
            portal.wrap_async_context_manager(_installation(Path(data), spark=spark, settings=settings))
        )
        with ExitStack() as clients:
            prefix = str(settings.get("prefix", ""))
            crash = partial(portal.call, servers.crash)
            yield LocalRebaser(servers.url, prefix, clients, None if spark else registered, crash)


def _not_on_spark(functions: Sequence[Function]) -> ConfigError:
    names = ", ".join(function.name for function in functions)
    return ConfigError(
        f"Spark's workers cannot run the functions of a test ({names}), because they load functions from installed "
        "plug-ins: install these functions as a plug-in, or start the installation without spark=True"
    )


class _Servers:
    """A nats-server, and the Rebaser server beside it. Everything runs on one event loop."""

    def __init__(self, nats: EmbeddedNats, settings: Settings, group: TaskGroup, *, spark: bool) -> None:
        self.url = nats.url
        self._nats = nats
        self._settings = settings
        self._group = group
        self._spark = spark
        self._running = anyio.CancelScope()
        self._ended = anyio.Event()

    async def start(self) -> None:
        """Start the Rebaser server, and wait until it is ready."""
        ready, self._running, self._ended = anyio.Event(), anyio.CancelScope(), anyio.Event()
        self._group.start_soon(self._run, ready, self._running, self._ended)
        with anyio.fail_after(START_TIMEOUT):
            await ready.wait()

    async def _run(self, ready: anyio.Event, running: anyio.CancelScope, ended: anyio.Event) -> None:
        try:
            with running:
                engine = None if self._spark else InProcessEngine()
                await serve(self._settings, ready=ready.set, engine=engine, traced=False)
        finally:
            ended.set()

    async def crash(self) -> None:
        """Kill NATS before the Rebaser server is stopped, so that the Rebaser server can neither commit nor hand over
        its change sets."""
        await self._nats.kill()
        self._running.cancel()
        await self._ended.wait()
        await self._nats.start()
        await self.start()


@asynccontextmanager
async def _installation(data: Path, *, spark: bool, settings: dict[str, Any]) -> AsyncGenerator[_Servers, None]:
    async with embedded_nats(data) as nats, flat_task_group() as group:
        servers = _Servers(nats, _settings(nats.url, settings), group, spark=spark)
        await servers.start()
        yield servers
        group.cancel_scope.cancel()


def _settings(url: str, given: dict[str, Any]) -> Settings:
    """Return the settings of the server. Environment variables are ignored, because they may configure a production
    server."""
    for name in given:
        if name not in Settings.model_fields or name == "nats_url":
            raise ConfigError(f"there is no setting {name}; deploy/docs/reference/settings.md lists all of them")
    defaults = {name: field.get_default(call_default_factory=True) for name, field in Settings.model_fields.items()}
    try:
        return Settings(**{**defaults, **TEST_DEFAULTS, **given}).embedded(url)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"invalid setting {'.'.join(map(str, first['loc']))}: {first['msg']}") from None

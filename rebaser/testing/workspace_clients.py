"""The clients of the fixtures `rebaser` and `rebaser_sync`. Each test has a workspace of its own."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import wraps
from types import TracebackType
from typing import Any, Protocol

from rebaser_client import BlockingRebaserClient, DeadLetterBox, RebaserClient, UnprocessableError
from rebaser_client.admin.fleet_watch import FleetWatch


class BlockingWorkspaceClient(BlockingRebaserClient):
    """A `BlockingRebaserClient` with the name of a workspace of its own: `workspace`."""

    workspace: str

    def settle(self, change_set: str = "main", *, timeout: float = 60.0) -> None:
        """Wait until all requests sent so far to `change_set` of this workspace are decided, and all derived values are
        up to date.

        To find out, send an empty request, which is decided after the others. Raise `UnprocessableError` if there is no
        such change set, and `RequestTimeout` after `timeout` seconds.
        """
        if not self.exists(self.workspace, change_set):
            raise no_change_set(self.workspace, change_set)
        self.enqueue_updates_with_reply(self.workspace, change_set, (), wait="derived", timeout=timeout)


def no_change_set(workspace: str, change_set: str) -> UnprocessableError:
    return UnprocessableError(f"there is no change set {workspace}/{change_set}", code="no_such_change_set")


class WorkspaceClient(RebaserClient):
    """A `RebaserClient` with the name of a workspace of its own: `workspace`.

    The first call on an event loop connects. So it does not matter which plug-in of pytest runs the event loop, and
    fixtures may use another loop than the test.
    """

    def __init__(self, url: str, prefix: str, workspace: str) -> None:
        # `RebaserClient.__init__` is not called: each event loop has a `RebaserClient` of its own.
        self.workspace = workspace
        self.dead_letters = _DeadLetters(self)
        self._url, self._streams_prefix = url, prefix
        self._opened: dict[asyncio.AbstractEventLoop, asyncio.Task[RebaserClient]] = {}

    async def settle(self, change_set: str = "main", *, timeout: float = 60.0) -> None:  # noqa: ASYNC109 - as the client
        if not await self.exists(self.workspace, change_set):
            raise no_change_set(self.workspace, change_set)
        await self.enqueue_updates_with_reply(self.workspace, change_set, (), wait="derived", timeout=timeout)

    settle.__doc__ = BlockingWorkspaceClient.settle.__doc__

    def fleet(self, workspace: str | None = None) -> FleetWatch:
        return _Fleet(self, workspace)

    async def aclose(self) -> None:
        """Close the connection of the running event loop. The next call connects again."""
        opened = self._opened.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await (await opened).aclose()

    def close(self) -> None:
        """Close the connections of all event loops that still exist. They must not be running."""
        for loop in tuple(self._opened):
            if not loop.is_closed():
                loop.run_until_complete(self.aclose())

    async def _on_this_loop(self) -> RebaserClient:
        loop = asyncio.get_running_loop()
        if loop not in self._opened:
            open_ = RebaserClient.open(self._url, prefix=self._streams_prefix)
            self._opened[loop] = loop.create_task(open_)
        return await asyncio.shield(self._opened[loop])


class _DeadLetters(DeadLetterBox):
    def __init__(self, client: WorkspaceClient) -> None:
        self._client = client

    async def _on_this_loop(self) -> DeadLetterBox:
        return (await self._client._on_this_loop()).dead_letters  # noqa: SLF001 - a class of this module


class _Fleet(FleetWatch):
    """Becomes a `FleetWatch` when it is entered."""

    def __init__(self, client: WorkspaceClient, workspace: str | None) -> None:
        self._client, self._of = client, workspace

    async def __aenter__(self) -> Any:
        client = await self._client._on_this_loop()  # noqa: SLF001 - a class of this module
        self._entered = client.fleet(self._of)
        return await self._entered.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.__aexit__(kind, error, trace)


class _Delegating(Protocol):
    async def _on_this_loop(self) -> Any: ...


def _delegated(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return `method` for a class that has the real object in `_on_this_loop`."""
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def call(self: _Delegating, *args: Any, **options: Any) -> Any:
            return await getattr(await self._on_this_loop(), name)(*args, **options)

        return call

    @wraps(method)
    async def iterate(self: _Delegating, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with aclosing(getattr(await self._on_this_loop(), name)(*args, **options)) as items:
            async for item in items:
                yield item

    return iterate


def _delegate(own: type, of: type) -> None:
    """Give `own` the asynchronous methods of `of` that it does not define itself."""
    for name in dir(of):
        method = getattr(of, name)
        if not name.startswith("_") and name not in vars(own) and inspect.isfunction(method):
            setattr(own, name, _delegated(name, method))


_delegate(WorkspaceClient, RebaserClient)
_delegate(_DeadLetters, DeadLetterBox)

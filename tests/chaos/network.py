"""The network between processes: each process reaches the others through its own links, which tests can break.

Links forward bytes without reading them, so they carry NATS and gRPC alike.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc
from anyio.abc import SocketAttribute, SocketStream


class Link:
    """A port on loopback that forwards to another port. `delay` (seconds) is added to each chunk, in both
    directions."""

    def __init__(self, port: int, target: Callable[[], int]) -> None:
        self.port = port
        self.target = target
        self.refusing = False
        self.delay = 0.0
        self._flows = anyio.Event()
        self._flows.set()
        self._open: set[SocketStream] = set()

    async def cut(self) -> int:
        """Break all connections, and return their number. New ones are accepted, unless `refusing`."""
        broken = list(self._open)
        for stream in broken:
            await anyio.aclose_forcefully(stream)
        return len(broken) // 2

    def stall(self) -> None:
        """Keep connections open, but forward nothing any more."""
        self._flows = anyio.Event()

    def heal(self) -> None:
        self.refusing = False
        self.delay = 0.0
        self._flows.set()

    async def serve(self, client: SocketStream) -> None:
        async with client:
            if self.refusing:
                return
            try:
                server = await anyio.connect_tcp("127.0.0.1", self.target())
            except OSError:
                return  # no process listens there at present
            pair = {client, server}
            self._open |= pair
            try:
                async with server, anyio.create_task_group() as group:
                    group.start_soon(self._pump, client, server, group.cancel_scope)
                    group.start_soon(self._pump, server, client, group.cancel_scope)
            finally:
                self._open -= pair

    async def _pump(self, source: SocketStream, to: SocketStream, both: anyio.CancelScope) -> None:
        try:
            async for data in source:
                if self.delay:
                    await anyio.sleep(self.delay)
                await self._flows.wait()
                await to.send(data)
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        both.cancel()


class Network:
    """Makes links. Use `network` to create one."""

    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self._group = group

    async def link(self, target: Callable[[], int]) -> Link:
        """Make a link to the port `target()` on loopback, which is asked for each connection."""
        link: Link = await self._group.start(self._listen, target)
        return link

    async def _listen(self, target: Callable[[], int], *, task_status: anyio.abc.TaskStatus[Link]) -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        async with listener:
            link = Link(listener.extra(SocketAttribute.local_port), target)
            task_status.started(link)
            await listener.serve(link.serve)


@asynccontextmanager
async def network() -> AsyncIterator[Network]:
    async with anyio.create_task_group() as group:
        yield Network(group)
        group.cancel_scope.cancel()

"""Reads the description of a stream for many callers at once: owners that load at the same time share one call."""

import asyncio
from collections import deque

from rebaser_client.jetstream import JetStream
from rebaser_client.jetstream.infos import StreamInfo
from rebaser_client.nats.errors import ClientClosedError
from rebaser_core.errors import RebaserError

MAX_SHARED = 128  # maximum number of callers that share a call; if thousands of owners start at once, they form groups


class SharedStreamInfo:
    """Reads the description of `stream`. Concurrent reads share one request to NATS. A description is never older than
    the call to `start` that returned its future."""

    def __init__(self, js: JetStream, stream: str) -> None:
        self._js = js
        self._stream = stream
        self._waiting: deque[asyncio.Future[StreamInfo]] = deque()
        self._running = False

    def start(self) -> asyncio.Future[StreamInfo]:
        """Begin to read the description of the stream. The caller awaits or cancels the returned future, which raises
        the errors of `JetStream.stream_info`."""
        self._js.connection.check_open()
        future: asyncio.Future[StreamInfo] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if not self._running:
            self._running = True
            self._js.connection.spawn(self._run)
        return future

    async def _run(self) -> None:
        group: list[asyncio.Future[StreamInfo]] = []
        try:
            while self._waiting:
                group = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_SHARED))]
                await self._answer([future for future in group if not future.done()])
        finally:
            self._running = False
            for future in [*group, *self._waiting]:  # callers only remain here if the connection is being closed
                if not future.done():
                    _fail(future, ClientClosedError())
            self._waiting.clear()

    async def _answer(self, group: list[asyncio.Future[StreamInfo]]) -> None:
        if not group:
            return
        try:
            info = await self._js.stream_info(self._stream)
        except RebaserError as error:
            for future in group:
                if not future.done():
                    _fail(future, error)
        else:
            for future in group:
                if not future.done():
                    future.set_result(info)


def _fail(future: asyncio.Future[StreamInfo], error: RebaserError) -> None:
    future.set_exception(error)
    future.exception()  # a caller that has failed meanwhile no longer asks, and asyncio would log that nobody did

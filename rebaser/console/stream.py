"""The live stream: server-sent events that keep a page up to date.

A page names the resource that it shows. The stream sends what a GET of this resource would answer, at once and whenever
that changes. So a page needs no code to merge events, and a stream that was cut just begins anew.

Invariant: there are at most `MAX_STREAMS` streams. None of them holds more than one answer, and one that cannot be sent
within `SEND` seconds ends the stream.
"""

import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
from starlette.responses import StreamingResponse

from rebaser.console.guard import Receive, Scope, Send
from rebaser.console.resources import Answer, Console, Given, Resource, error_answer
from rebaser_core.encoding.envelope import JSON, dumps
from rebaser_core.errors import RebaserError

MAX_STREAMS = 200
HEARTBEAT = 15.0  # seconds after which a comment shows that the stream is alive
SEND = 30.0  # seconds
RETRY = 2000  # milliseconds until a browser connects again


class LiveStream:
    """The live streams of one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = 0

    @property
    def is_full(self) -> bool:
        return self._open >= MAX_STREAMS

    async def events(self, resource: Resource, given: Given) -> AsyncIterator[bytes]:
        """Yield the events of `resource`, until the console closes."""
        hub = self._console.hub
        self._open += 1
        try:
            yield b"retry: %d\n\n" % RETRY
            before = b""
            while not hub.closing.is_set():
                version = hub.version
                name, body = await self._read(resource, given)
                digest = hashlib.sha256(name + body).digest()
                if digest != before:
                    yield b"event: %s\ndata: %s\n\n" % (name, body)
                    before = digest
                while version == hub.version and not hub.closing.is_set():
                    with anyio.move_on_after(HEARTBEAT):
                        await hub.newer(version)
                    if version == hub.version:
                        yield b": alive\n\n"
        finally:
            self._open -= 1

    async def _read(self, resource: Resource, given: Given) -> tuple[bytes, bytes]:
        answer: Answer
        try:
            answer, name = await resource.read(self._console, given), b"state"
        except RebaserError as error:
            (_, answer), name = error_answer(error), b"trouble"
        return name, dumps(JSON, answer)


class EventResponse(StreamingResponse):  # type: ignore[misc]
    """Sends events, and gives up on a browser that does not take them."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(_closing(events), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: dict[str, object]) -> None:
            with anyio.fail_after(SEND):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            return


async def _closing(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(events) as all_events:  # type: ignore[type-var]
        async for event in all_events:
            yield event

"""The live stream: server-sent events that keep a page up to date.

A page names the resource that it shows. The stream sends what a GET of this resource would answer, at once and whenever
that changes. So a page needs no code to merge events, and a stream that was cut just begins anew.

Invariants: there are at most `MAX_STREAMS` streams, at most `MAX_OWN` of them of one session, user or address, and none
of them holds more than one answer. Viewers without a login who come from a loopback address share it, so for them only
the first limit holds. `server` ends a stream whose browser does not take it. After the end of a viewer's session,
nothing is sent to them.
"""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager

import anyio
import structlog
from starlette.responses import StreamingResponse

from rebaser.console.access.rules import Viewer
from rebaser.console.resources import FAILED, Console, Given, Resource, error_answer
from rebaser_core.encoding.envelope import JSON, dumps
from rebaser_core.errors import RebaserError

log = structlog.get_logger(__name__)

MAX_STREAMS = 200
MAX_OWN = 50  # streams of one session, user or address; a browser closes those of pages that nobody sees
HEARTBEAT = 15.0  # seconds after which a comment shows that the stream is alive
RETRY = 2000  # milliseconds until a browser connects again


class LiveStream:
    """The live streams of one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = Counter[str]()  # streams, by the name of their viewer; empty for all who have none

    def refusal(self, viewer: Viewer) -> str:
        """Return why `viewer` cannot open one more stream; empty if they can."""
        if viewer.name and self._open[viewer.name] >= MAX_OWN:
            return f"you have {MAX_OWN} live pages open: close some of them; this page then becomes live by itself"
        if self._open.total() >= MAX_STREAMS:
            return "too many live pages are open; this page becomes live by itself as soon as others are closed"
        return ""

    @contextmanager
    def slot(self, viewer: Viewer) -> Iterator[None]:
        """Count a stream of `viewer`, until it has ended."""
        self._open[viewer.name] += 1
        try:
            yield
        finally:
            self._open[viewer.name] -= 1
            if not self._open[viewer.name]:
                del self._open[viewer.name]  # so that viewers who have left take no memory

    async def events(self, resource: Resource, given: Given, viewer: Viewer) -> AsyncIterator[bytes]:
        """Yield the events of `resource`, until the console closes, or the viewer's session ends."""
        hub = self._console.hub
        yield b"retry: %d\n\n" % RETRY
        before = b""
        while not hub.closing.is_set() and viewer.left > 0:
            version = hub.version
            name, body = await self._read(resource, given)
            digest = hashlib.sha256(name + body).digest()
            if digest != before and viewer.left > 0:
                yield b"event: %s\ndata: %s\n\n" % (name, body)
                before = digest
            while version == hub.version and not hub.closing.is_set() and viewer.left > 0:
                with anyio.move_on_after(max(0.0, min(HEARTBEAT, viewer.left))):
                    await hub.newer(version)
                if version == hub.version:
                    yield b": alive\n\n"

    async def _read(self, resource: Resource, given: Given) -> tuple[bytes, bytes]:
        try:
            return b"state", await resource.body(self._console, given)
        except RebaserError as error:
            _, answer = error_answer(error)
        except Exception as error:  # the stream has begun, so nothing above could answer or log it
            log.exception("http_failed", path=resource.path, exc_info=error)
            answer = FAILED
        return b"trouble", dumps(JSON, answer)


class EventResponse(StreamingResponse):  # type: ignore[misc]
    """Sends events."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(_closing(events), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _closing(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(events) as all_events:  # type: ignore[type-var]
        async for event in all_events:
            yield event

"""Watches over the streams: makes again what disappears, and says loudly what went with it.

A stream goes when somebody deletes it, when the store is wiped, or when nats-server ends and it was in memory. That may
show as an error anywhere, or nowhere: so the streams are looked at now and then, after each reconnect, when NATS says
that one was deleted (if we may hear it), and when anybody suspects so.

Invariants: the server is unready from when a stream is seen gone until all are there; a stream that is made again
begins far behind the end of the one before, so that what was said of a message of that one hits none of its own; who
holds anything of a stream that is another now is told, also if it was another server that made it.
"""

from collections import deque
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import anyio
import structlog

from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.jetstream.errors import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from rebaser_core import topology
from rebaser_core.errors import RebaserError
from rebaser_core.subjects import Subjects

log = structlog.get_logger(__name__)

DELETED = "$JS.EVENT.ADVISORY.STREAM.DELETED.*"  # where NATS tells
LOOK = 5.0  # seconds between two looks, if nobody suspects anything
PAUSE = 0.25  # seconds between two looks, however many do
TOLD = 12  # losses that are told of, the newest ones


class StreamLossListener(Protocol):
    """Who holds anything of streams. The names are those of streams."""

    def streams_lost(self, streams: frozenset[str]) -> None:
        """What `streams` held is gone; they may not be there again yet."""
        ...

    def streams_recreated(self, streams: frozenset[str]) -> None:
        """`streams`, which were lost, are there again, empty."""
        ...


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """A stream as it was `at` (UTC) a look: when it was made, what it held, the sequence of its newest message."""

    created: str
    messages: int
    last: int
    at: str


NEVER = StreamSnapshot("", 0, 0, "no time")


class StreamWatch:
    """The streams of one installation; call `make` to have them, then `run` in a task group.

    `problem`: why the server is not ready, or empty. `losses`: what disappeared while this server ran, for people.
    """

    def __init__(self, js: JetStream, subjects: Subjects, options: topology.TopologyOptions) -> None:
        self._js = js
        self._subjects = subjects
        self._options = options
        self._names = [config["name"] for config in topology.streams(subjects, options)]
        self._seen: dict[str, StreamSnapshot] = {}
        self._lost: frozenset[str] = frozenset()  # and not made again yet
        self._suspected = anyio.Event()
        self.problem = ""
        self.losses: deque[str] = deque(maxlen=TOLD)

    async def ensure(self) -> None:
        """Make sure of streams and consumers; raises as `ensure_topology`."""
        await ensure_topology(self._js, self._subjects, self._options)
        self._seen = await self._look()

    def check_soon(self) -> None:
        """Something failed as it would if a stream were gone: look soon."""
        self._suspected.set()

    async def run(self, listener: StreamLossListener) -> None:
        """Look after the streams until cancelled."""
        connection = self._js.connection
        async with AsyncExitStack() as stack:
            stack.callback(connection.on_reconnect(self.check_soon))
            stack.push_async_callback((await connection.listen(DELETED, lambda *_: self.check_soon())).close)
            while True:
                with anyio.move_on_after(LOOK):
                    await self._suspected.wait()
                self._suspected = anyio.Event()
                try:
                    await self._look_after(listener)
                    self._set_problem("")
                except RebaserError as error:
                    self._set_problem(f"the streams cannot be made sure of: {error.message}")
                    self.check_soon()
                await anyio.sleep(PAUSE)

    async def _look_after(self, listener: StreamLossListener) -> None:
        found = await self._look()
        gone = [name for name in self._names if name not in found]
        others = [name for name in found if name in self._seen and found[name].created != self._seen[name].created]
        without = [] if gone else await self._without_consumer()
        if lost := frozenset([*gone, *others]) - self._lost:
            self._tell_lost(lost)
            self._lost |= lost
            listener.streams_lost(lost)
        if gone or without:
            self._set_problem(self.problem or f"not there: {', '.join([*gone, *without])}")
            ends = {name: self._seen.get(name, NEVER).last for name in gone}
            await ensure_topology(self._js, self._subjects, self._options, ends)
            found = await self._look()
            log.warning("streams_made", streams=gone, consumers=without)
        self._seen |= found
        if self._lost and len(found) == len(self._names):
            made, self._lost = self._lost, frozenset()
            listener.streams_recreated(made)

    async def _look(self) -> dict[str, StreamSnapshot]:
        """Those that are there."""
        found = {}
        for name in self._names:
            try:
                info = await self._js.stream_info(name)
            except ApiError as error:
                if error.err_code != STREAM_NOT_FOUND:
                    raise
            else:
                found[name] = StreamSnapshot(info.created, info.messages, info.last_sequence, _now())
        return found

    async def _without_consumer(self) -> list[str]:
        missing = []
        for stream, consumer in topology.consumers(self._subjects, self._options):
            try:
                await self._js.consumer_info(stream, consumer["name"])
            except ApiError as error:
                if error.err_code != CONSUMER_NOT_FOUND:
                    raise
                missing.append(f"consumer {consumer['name']} of {stream}")
        return missing

    def _tell_lost(self, lost: Iterable[str]) -> None:
        for name in sorted(lost):
            seen = self._seen.get(name, NEVER)
            log.error("stream_lost", stream=name, messages=seen.messages, last=seen.last, seen=seen.at)
            held = f"{seen.messages:,} messages, the newest was {seen.last}"
            self.losses.append(f"{_now()} stream {name} was gone with what it held (at {seen.at}: {held})")

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.error("server_unready", reason=problem)
        elif self.problem and not problem:
            log.warning("server_ready_again")
        self.problem = problem


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""Deletes decided requests from the stream, in the background, for all owners of a server.

Invariant: only sequences of requests that were answered are added here. Their outcome is in a commit, except that a
request that reuses the id of another request is refused without one. Deleting late, twice or never is harmless, because
the next owner answers such a request again, from the log, and deletes it.

A delete costs NATS as much as storing the request. If this server has decided all of the oldest requests in the stream,
which is usual with a single server, one purge deletes them for a quarter to a tenth of that cost. It deletes no other
message, because each sequence from the first one in the stream up to the end of the purge was added here.
"""

from collections.abc import Callable, Iterable

import anyio
import structlog

from rebaser_client.errors import NotAllowed
from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.jetstream.errors import DELETE_FAILED
from rebaser_core import thresholds
from rebaser_core.errors import RebaserError

log = structlog.get_logger(__name__)

GROUP = 256  # maximum number of deletes that are sent at once
GATHER = 0.1  # seconds for which sequences are collected, because many deletes together take as long as one
CONSUMERS_PER_DELETE = 16  # a purge visits each consumer of the stream; for so many, it takes as long as for a message
RETRY = 1.0  # seconds until failed deletes are sent again


class RequestDeleter:
    """Deletes messages from `stream`. Call `run` in a task group.

    `on_refusal` is called with the reason if NATS cannot store that messages are deleted, for instance because its disk
    is full, and with an empty string once it can.
    """

    def __init__(self, js: JetStream, stream: str, on_refusal: Callable[[str], None] = lambda _: None) -> None:
        self._js = js
        self._stream = stream
        self._on_refusal = on_refusal
        self._queue: list[int] = []
        self._wake = anyio.Event()
        self._may_purge = True

    @property
    def queued(self) -> int:
        """The number of added sequences that are not being deleted yet."""
        return len(self._queue)

    def add(self, sequences: Iterable[int]) -> None:
        """Queue the messages with these `sequences` for deletion."""
        self._queue.extend(sequences)
        self._wake.set()

    def clear(self) -> None:
        """Drop the added sequences. Call this when the stream has been lost and recreated, because the messages are
        then gone."""
        self._queue.clear()
        self._on_refusal("")

    async def run(self) -> None:
        """Delete the added sequences, until cancelled."""
        while True:
            await self._wake.wait()
            await anyio.sleep(GATHER)
            self._wake = anyio.Event()
            if await self._purge_oldest():
                self._wake.set()  # what is left may be the oldest messages in the next round
            else:
                await self.flush()

    async def _purge_oldest(self) -> bool:
        """Delete the oldest messages of the stream with one call, if they were all added and there are many of them.
        Return whether they were deleted."""
        at_least = thresholds.now.purge_min_requests
        if len(self._queue) < at_least or not self._may_purge:
            return False
        try:
            info = await self._js.stream_info(self._stream)
            added, end = set(self._queue), info.first_sequence
            while end in added:
                end += 1
            if end - info.first_sequence < at_least + info.consumers // CONSUMERS_PER_DELETE:
                return False
            await self._js.purge(self._stream, sequence=end)
        except RebaserError as error:
            self._may_purge = not isinstance(error, NotAllowed)
            log.warning("delete_failed", count=len(self._queue), reason=error.message)
            return False
        self._queue = [sequence for sequence in self._queue if sequence >= end]
        self._on_refusal("")
        return True

    async def flush(self) -> None:
        """Delete all sequences added so far."""
        while self._queue:
            group, self._queue = self._queue[:GROUP], self._queue[GROUP:]
            try:
                await self._js.delete_many(self._stream, group)
                self._on_refusal("")
            except RebaserError as error:
                log.warning("delete_failed", count=len(group), reason=error.message)
                if isinstance(error, ApiError) and error.err_code == DELETE_FAILED:
                    self._on_refusal(error.message)
                self._queue.extend(group)
                await anyio.sleep(RETRY)

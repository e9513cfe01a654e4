"""Deletes decided requests from the stream, in the background, for all owners of a server.

Invariant: only sequences of requests that were answered are added here. Their outcome is in a commit, except that a
request that reuses the id of another request is refused without one. Deleting late, twice or never is harmless, because
the next owner answers such a request again, from the log, and deletes it.

A delete costs NATS as much as storing the request. If this server has decided all of the oldest requests in the stream,
which is usual with a single server, one purge deletes them for a quarter to a tenth of that cost. It deletes no other
message of that stream, because each sequence from the first one in the stream up to the end of the purge was added
here. Sequences of a stream that was recreated or set back since are dropped, because they may belong to other requests
by now. NATS cannot make a purge conditional, so this is known only of the moment before the purge.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress

import anyio
import structlog

from rebaser_client.jetstream import ApiError, JetStream, StreamInfo
from rebaser_client.jetstream.errors import DELETE_FAILED
from rebaser_client.nats.errors import NotAllowed
from rebaser_client.signal import Signal
from rebaser_core import thresholds
from rebaser_core.errors import RebaserError

log = structlog.get_logger(__name__)

GROUP = 256  # maximum number of deletes that are sent at once
GATHER = 0.1  # seconds for which sequences are collected, because many deletes together take as long as one
GATHER_MAX = 1.0  # maximum seconds for which more are awaited, because a purge of more messages takes hardly longer
# The deleter stops collecting at this multiple of the least number of messages for which a purge pays. As long as a
# decided request is in the stream, NATS searches for the next request of its change set message by message.
ENOUGH = 2
CONSUMERS_PER_DELETE = 16  # a purge visits each consumer of the stream; for so many, it takes as long as for a message
RETRY = 1.0  # seconds until failed deletes are sent again
NO_PURGE = 60.0  # seconds without purges after one that failed


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
        self._created = ""  # the creation time of the stream that the sequences in `_queue` belong to
        # What the last look at the stream found: the number of its consumers, and whether most of the queued sequences
        # were the oldest messages. If not, for instance because other servers decide requests, more are not awaited.
        self._consumers, self._mostly_oldest = 0, True
        self._wake = Signal()
        self._purge_after = 0.0  # the time (`anyio.current_time`) from which purges are tried again

    @property
    def queued(self) -> int:
        """The number of added sequences that are not being deleted yet."""
        return len(self._queue)

    def add(self, sequences: Iterable[int], created: str) -> None:
        """Queue the messages with these `sequences` for deletion. `created` is the creation time of their stream."""
        if created != self._created:
            self._queue.clear()
            self._created = created
        self._queue.extend(sequences)
        self._wake.set()

    def clear(self) -> None:
        """Drop the added sequences. Call this when the stream has been lost and recreated, because the messages are
        then gone."""
        self._queue.clear()
        self._created = ""
        self._on_refusal("")

    async def run(self) -> None:
        """Delete the added sequences, until cancelled."""
        while True:
            await self._wake.wait()
            await self._gather()
            self._wake.clear()
            if await self._purge_oldest():
                self._wake.set()  # what is left may be the oldest messages in the next round
            else:
                await self.flush()

    async def _gather(self) -> None:
        """Wait until enough sequences are queued for a cheap purge, or are not coming fast enough for any purge."""
        began, least = anyio.current_time(), self._least_for_purge()
        while True:
            await anyio.sleep(GATHER)
            waited, count = anyio.current_time() - began, len(self._queue)
            coming = count * GATHER_MAX >= least * waited
            expected = coming and self._mostly_oldest and began >= self._purge_after
            if not expected or count >= ENOUGH * least or waited >= GATHER_MAX:
                return

    def _least_for_purge(self) -> int:
        """Return the number of messages from which a purge takes NATS less time than single deletes."""
        return thresholds.now.purge_min_requests + self._consumers // CONSUMERS_PER_DELETE

    async def _purge_oldest(self) -> bool:
        """Delete the oldest messages of the stream with one call, if they were all added and there are many of them.
        Return whether they were deleted."""
        if len(self._queue) < thresholds.now.purge_min_requests or anyio.current_time() < self._purge_after:
            return False
        try:
            info = await self._js.stream_info(self._stream)
            self._consumers = info.consumers
            if self._drop_outdated(info):
                return False
            added, end = set(self._queue), info.first_sequence
            while end in added:
                end += 1
            count = end - info.first_sequence
            self._mostly_oldest = 2 * count >= len(self._queue)
            if count < self._least_for_purge():
                return False
            await self._js.purge(self._stream, sequence=end)
        except RebaserError as error:
            self._purge_after = math.inf if isinstance(error, NotAllowed) else anyio.current_time() + NO_PURGE
            log.warning("purge_failed", count=len(self._queue), reason=error.message)
            return False
        self._queue = [sequence for sequence in self._queue if sequence >= end]
        self._on_refusal("")
        return True

    def _drop_outdated(self, info: StreamInfo) -> bool:
        """Drop the queued sequences if the stream that `info` describes was recreated or set back since they were
        added. Return whether they were dropped."""
        if info.created == self._created and max(self._queue, default=0) <= info.last_sequence:
            return False
        log.warning("deletes_dropped", count=len(self._queue), last_sequence=info.last_sequence)
        self._queue.clear()
        return True

    async def flush(self) -> None:
        """Delete all sequences added so far."""
        while self._queue:
            group, self._queue, created = self._queue[:GROUP], self._queue[GROUP:], self._created
            try:
                await self._js.delete_many(self._stream, group)
                self._on_refusal("")
            except RebaserError as error:
                log.warning("delete_failed", count=len(group), reason=error.message)
                if isinstance(error, ApiError) and error.err_code == DELETE_FAILED:
                    self._on_refusal(error.message)
                if created == self._created:
                    self._queue.extend(group)
                await anyio.sleep(RETRY)
                with suppress(RebaserError):  # the stream may have been replaced during an outage
                    self._drop_outdated(await self._js.stream_info(self._stream))

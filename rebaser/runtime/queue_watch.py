"""Finds requests that NATS does not deliver to their owners, and makes these owners consume their queues again.

An ordered consumer notices a lost message by the next message or heartbeat, and a lost consumer by missing heartbeats.
With thousands of consumers, frequent heartbeats are costly, and nearly all of them concern empty queues. So the queues
have seldom heartbeats, and this module looks at the queues that have requests: one list of subjects for all owners.
"""

from collections.abc import Callable
from dataclasses import dataclass

import anyio
import structlog

from rebaser.runtime.context import Context
from rebaser_client.jetstream import OrderedConsumer
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.ids import ChangeSetKey

log = structlog.get_logger(__name__)

CHECK = 2.5  # seconds between two checks; a request counts as undelivered if it was stored before the last check
MAX_SUBJECTS = 20_000  # if more queues have requests, listing them takes too long, and the heartbeats have to suffice
MAX_READS = 64  # maximum number of queues that one check reads


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a check saw of a queue: the last request that was delivered, and the end of the stream of requests."""

    queue: OrderedConsumer
    delivered: int
    end: int


class QueueWatch:
    """Checks the queues of a server's change sets. `queue_of` returns the open queue of a change set, or None."""

    def __init__(self, context: Context, queue_of: Callable[[ChangeSetKey], OrderedConsumer | None]) -> None:
        self._js = context.js
        self._subjects = context.subjects
        self._queue_of = queue_of
        self._seen: dict[ChangeSetKey, Sighting] = {}

    async def run(self) -> None:
        """Check the queues periodically, until cancelled."""
        while True:
            await anyio.sleep(CHECK)
            try:
                await self.check()
            except RebaserError as error:
                self._seen = {}
                log.warning("queue_check_failed", reason=error.message)

    async def check(self) -> None:
        """Replace the consumer of each queue that got nothing since the last check although requests were waiting then.
        Raise the errors of `JetStream`."""
        before, self._seen = self._seen, {}
        stream, head = self._subjects.requests_stream, f"{self._subjects.root}.requests."
        info = await self._js.stream_info(stream)
        if not 0 < info.subjects <= MAX_SUBJECTS:
            return
        reads = 0
        for subject in await self._js.subject_counts(stream, f"{head}*.*"):
            try:
                _, key = self._subjects.parse(subject)
            except UnprocessableError:  # the sweeper moves it to the dead letters
                continue
            queue = self._queue_of(key)
            if queue is None or queue.pending:
                continue
            sighting = Sighting(queue, queue.delivered, info.last_sequence)
            last = before.get(key)
            if last is not None and last.queue is queue and last.delivered == queue.delivered and reads < MAX_READS:
                reads += 1
                if await self._is_stuck(subject, last):
                    queue.replace("requests were not delivered")
                    continue  # the new consumer has until the check after the next one
            self._seen[key] = sighting

    async def _is_stuck(self, subject: str, last: Sighting) -> bool:
        """Return whether a request that was stored before the last check is still to be delivered."""
        waiting = await self._js.next(self._subjects.requests_stream, subject, last.delivered + 1)
        if waiting is None or waiting.sequence > last.end:
            return False
        return last.queue.delivered == last.delivered and not last.queue.pending

"""Finds requests that NATS does not deliver to their owners, and makes these owners consume their queues again.

An ordered consumer notices a lost message by the next message or heartbeat, and a lost consumer by missing heartbeats.
With thousands of consumers, frequent heartbeats are costly, and nearly all of them concern empty queues. So the queues
have rare heartbeats, and this module looks at the queues that have requests: one list of subjects for all owners.
"""

import random
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel
import structlog

from rebaser.runtime.context import Context
from rebaser_client.jetstream import OrderedConsumer
from rebaser_client.nats.errors import NotConnectedError
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey

log = structlog.get_logger(__name__)

CHECK = 1.5  # seconds between two checks
MAX_SUBJECTS = 20_000  # if more queues have requests, listing them takes too long, and the heartbeats have to suffice
READS = 64  # number of queues that a check reads at once; it goes on while at least half of them are stuck
TURN = 1000  # number of queues that a check looks at before other tasks run


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a check saw of a queue. `delivered` is the sequence of the last request that was delivered, and `count` is
    the number of the queue's requests in the stream. `end` is the last sequence of the stream at the check before. If
    `fine` is true, a read has shown that all of these requests were delivered."""

    queue: OrderedConsumer
    delivered: int
    end: int
    count: int
    fine: bool = False


class QueueWatch:
    """Checks the queues of a server's change sets. `queue_of` returns the open queue of a change set, or None."""

    def __init__(self, context: Context, queue_of: Callable[[ChangeSetKey], OrderedConsumer | None]) -> None:
        self._js = context.js
        self._subjects = context.subjects
        self._queue_of = queue_of
        self._listed: AbstractSet[str] = frozenset()  # the subjects that had requests at the last check
        self._end = 0  # the last sequence of the stream of requests at the last check
        self._seen: dict[ChangeSetKey, Sighting] = {}

    async def run(self) -> None:
        """Check the queues periodically, until cancelled."""
        while True:
            await anyio.sleep(CHECK)
            try:
                await self.check()
            except NotConnectedError:  # every queue gets a new consumer as soon as the connection is back
                self._seen = {}
            except RebaserError as error:
                self._seen = {}
                log.warning("queue_check_failed", reason=error.message)

    async def check(self) -> None:
        """Replace the consumer of each queue that got nothing since the last check although a request was already
        waiting at the check before that. Raise the errors of `JetStream`.

        The first check in a row that lists a queue only remembers its subject, the second sees what has been delivered,
        and the third judges. On a busy server, a check lists thousands of queues, nearly all of them for the first
        time, and looking at each of these would take as long as deciding hundreds of requests.
        """
        before, self._seen = self._seen, {}
        listed, self._listed = self._listed, frozenset()
        stream, head = self._subjects.requests_stream, f"{self._subjects.root}.requests."
        info = await self._js.stream_info(stream)
        if not 0 < info.subjects <= MAX_SUBJECTS:
            return
        counts = await self._js.subject_counts(stream, f"{head}*.*")
        end, self._end, self._listed = self._end, info.last_sequence, counts.keys()
        suspects: list[tuple[str, ChangeSetKey]] = []
        for number, subject in enumerate(listed & counts.keys(), 1):
            if not number % TURN:
                await anyio.lowlevel.checkpoint()
            key = ChangeSetKey(*subject[len(head) :].split("."))  # invalid names need no check: nobody owns them
            queue = self._queue_of(key)
            if queue is None or queue.pending or queue.failure is not None or queue.delivered > end:
                continue  # if a request that was stored since the last check is delivered, the consumer works
            count = counts[subject]
            last = before.get(key)
            same = last is not None and last.queue is queue and _got_nothing(last)
            fine = last is not None and same and last.fine and last.count == count
            self._seen[key] = Sighting(queue, queue.delivered, end, count, fine)
            if same:
                suspects.append((subject, key))
        await self._replace_stuck(suspects, before)

    async def _replace_stuck(
        self, suspects: list[tuple[str, ChangeSetKey]], before: dict[ChangeSetKey, Sighting]
    ) -> None:
        """Read `suspects`, in random order, until most of them are fine. Replace the consumers of those that are not.

        Decided requests whose deletes fail, and requests that wait for their dead letters, also make suspects. They are
        read after all others, unless the number of requests changes.
        """
        random.shuffle(suspects)
        suspects.sort(key=lambda suspect: self._seen[suspect[1]].fine)
        for start in range(0, len(suspects), READS):
            group, stuck = suspects[start : start + READS], 0
            for subject, key in group:
                last = before[key]
                waiting = await self._js.next(self._subjects.requests_stream, subject, last.delivered + 1)
                if waiting is None:
                    self._seen[key] = replace(self._seen[key], fine=True)
                elif waiting.sequence <= last.end and _got_nothing(last):
                    stuck += 1
                    last.queue.replace("requests were not delivered")
                    del self._seen[key]  # the second check from now judges the new consumer
            if 2 * stuck < len(group):
                return


def _got_nothing(last: Sighting) -> bool:
    """Return whether the queue has received nothing since it was seen."""
    return last.queue.delivered == last.delivered and not last.queue.pending

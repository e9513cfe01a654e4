"""Removes tasks that were acked, but are still in their stream.

If its disk is full, nats-server may record an ack, and fail to remove the message. NATS never delivers such a task
again, and the change set gets no other task while the message exists.

Limit: only tasks before the oldest task that a server holds are recognized, because for these the consumer's ack floor
says that they were acked. A task behind one that is held for long is recognized once that one has been acked.
"""

import structlog

from rebaser_client.jetstream import JetStream
from rebaser_core.errors import RebaserError
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TASKS_CONSUMER

log = structlog.get_logger(__name__)

MAX_REMOVED = 50  # maximum number of tasks that are removed after one check


class AckedTasks:
    """Looks for tasks that were acked, and acks them again, so that NATS removes them. The sweeper then publishes new
    tasks for the change sets that have work."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._suspect = 0  # the sequence of the first task, if it was already acked at the last check

    async def check(self, first: int, floor: int) -> None:
        """Call this every few seconds. `first` is the sequence of the first task in the stream, 0 if there is none.
        `floor` is the sequence up to which all tasks are acked. It must be read after `first`.

        An acked task is left to NATS until the next check, because NATS may be about to remove it.
        """
        suspect, self._suspect = self._suspect, first if first <= floor else 0
        if self._suspect and self._suspect == suspect:
            try:
                await self._remove(first, floor)
            except RebaserError as error:
                log.debug("acked_tasks_not_removed", reason=error.message)

    async def _remove(self, first: int, floor: int) -> None:
        stream, sequence = self._subjects.tasks_stream, first
        for _ in range(MAX_REMOVED):
            stored = await self._js.next(stream, f"{self._subjects.root}.tasks.>", sequence)
            if stored is None or stored.sequence > floor:
                return
            # Only the sequence in the stream counts. A task that has an owner is above the floor, so no owner loses it.
            await self._js.connection.request(f"$JS.ACK.{stream}.{TASKS_CONSUMER}.1.{stored.sequence}.1.0.0", b"+ACK")
            log.warning("acked_task_removed", subject=stored.subject, seq=stored.sequence)
            sequence = stored.sequence + 1

"""Holds the delivered task of a change set while a server owns the change set, then acks it or gives it back.

Invariant: once the lease is lost, the owner sends no ack, nak or progress ack for the task. NATS matches acks by stream
sequence alone, so they would apply to another owner's delivery of the task.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import anyio
import structlog

from rebaser_client.backoff import Backoff
from rebaser_client.jetstream import JetStream, PullMessage
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.backoff import exponential_delay
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects

log = structlog.get_logger(__name__)

ACK_ATTEMPTS = 5
ACK_RETRY = 0.02  # seconds until the ack is sent and checked again; doubled each time
RETRY_LOAD = 0.5  # seconds until a task that failed twice is redelivered; doubled after each further failure
RETRY_LOAD_MAX = 5.0  # maximum seconds until a task that failed is redelivered


def retry_delay(delivered: int) -> float:
    """Return the seconds until a task that failed is redelivered; `delivered` counts its deliveries, from 1.

    After the first failure, there is no delay. Then the delay grows, so that the server does not load every change set
    repeatedly during a long outage.
    """
    if delivered <= 1:
        return 0.0
    return exponential_delay(delivered - 2, RETRY_LOAD, RETRY_LOAD_MAX)


@dataclass(frozen=True, slots=True)
class Task:
    """A delivered task message. `sequence` is its sequence in the stream of tasks."""

    key: ChangeSetKey
    message: PullMessage
    js: JetStream

    @property
    def sequence(self) -> int:
        return self.message.stream_sequence

    async def ack(self) -> None:
        """Acknowledge the task, and return once NATS has confirmed the ack.

        Raise `TransientError` if NATS does not confirm the ack.
        """
        await self.js.ack_sync(self.message)

    async def nak(self, delay: float) -> None:
        """Ask NATS to deliver the task again, to any server, after `delay` seconds."""
        await self.js.nak(self.message, delay)


class ReturnedTasks:
    """Counts the tasks that a server has returned with a delay that is not over yet. NATS counts them as delivered.

    `now` returns monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._back_at: list[float] = []  # a heap

    def add(self, delay: float) -> None:
        """Record that a task has been returned with a delay of `delay` seconds."""
        if delay > 0:
            self.count()
            heappush(self._back_at, self._now() + delay)

    def count(self) -> int:
        """Return the number of tasks that are not redelivered yet."""
        now = self._now()
        while self._back_at and self._back_at[0] <= now:
            heappop(self._back_at)
        return len(self._back_at)


class Lease:
    """An owner's right to its task. `lost` is True once the owner no longer has this right. `returned_for` is the delay
    with which the task was returned. When NATS redelivers the task to the same owner, the owner replaces `task`.

    The methods log failures instead of raising them, because NATS redelivers any task that was not acknowledged.
    """

    def __init__(self, task: Task, subjects: Subjects) -> None:
        self.task = task
        self.lost = False
        self.returned_for = 0.0
        self._subjects = subjects

    @property
    def _log(self) -> structlog.stdlib.BoundLogger:
        key = self.task.key
        return log.bind(workspace=key.workspace, change_set=key.change_set)  # type: ignore[no-any-return]

    async def release(self) -> None:
        """Ack the task. Return once NATS has confirmed the ack and the stream's leader reports that the message is
        gone.

        Give up after `ACK_ATTEMPTS` attempts. Once the task is acked, keep waiting even if the lease is lost, because
        no other task for the change set can be published while the message exists.
        """
        task, subjects, acked = self.task, self._subjects, False
        backoff = Backoff(ACK_RETRY)
        for attempt in range(ACK_ATTEMPTS):
            if self.lost and not acked:
                return
            try:
                if not self.lost:
                    acked = True
                    await self.task.ack()
                stored = await task.js.last(subjects.tasks_stream, subjects.task(task.key))
                if stored is None or stored.sequence != self.task.sequence:
                    return
            except RebaserError as error:
                self._log.warning("task_ack_failed", reason=error.message, attempt=attempt)
            await anyio.sleep(backoff.next_delay())

    async def give_back(self, delay: float) -> None:
        """Ask NATS to deliver the task again, to any server, after `delay` seconds."""
        if not self.lost:
            try:
                await self.task.nak(delay)
                self.returned_for = delay
            except RebaserError as error:
                self._log.warning("task_nak_failed", reason=error.message)

    async def publish_again(self) -> None:
        """Publish a task for the change set, unless the change set still has a task."""
        try:
            await publish_task(self.task.js, self._subjects, self.task.key)
        except RebaserError as error:
            self._log.warning("task_publish_failed", reason=error.message)

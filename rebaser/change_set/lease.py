"""A delivered task: the right, and the duty, to own a change set for a while. And how it ends.

Invariant: once the lease is lost nothing is said about the task any more: acks go by stream sequence alone, and would
hit the delivery that another owner holds.
"""

from dataclasses import dataclass

import anyio
import structlog

from rebaser_client.jetstream import JetStream, PullMessage
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.subjects import Subjects

log = structlog.get_logger(__name__)

ACK_TRIES = 5


@dataclass(frozen=True, slots=True)
class Task:
    """A task message as it was delivered. `sequence` is that of the TASKS stream; `delivered` counts from 1."""

    key: ChangeSetKey
    message: PullMessage
    js: JetStream

    @property
    def sequence(self) -> int:
        return self.message.stream_sequence

    async def ack(self) -> None:
        """Done; returns when the server confirmed it. Raises `TransientError` if it did not."""
        await self.js.ack_sync(self.message)

    async def nak(self, delay: float) -> None:
        """Have it delivered to anybody again, after `delay` seconds."""
        await self.js.nak(self.message, delay)

    async def progress(self) -> None:
        """Keep it for another ack wait."""
        await self.js.progress(self.message)


class Lease:
    """What an owner has in hand: `task`, which is replaced when it is delivered again, until `lost`.

    Its methods log what goes wrong: the task comes back by itself then.
    """

    def __init__(self, task: Task, subjects: Subjects) -> None:
        self.task = task
        self.lost = False
        self._subjects = subjects

    async def release(self) -> None:
        """Ack the task, confirmed, and wait until the stream's leader says it is gone.

        What was acked is waited for also if the lease is lost meanwhile: as long as it stands there, no other task can
        be published, and then it is gone.
        """
        task, subjects, said = self.task, self._subjects, False
        for attempt in range(ACK_TRIES):
            if self.lost and not said:
                return
            try:
                if not self.lost:
                    said = True
                    await self.task.ack()
                left = await task.js.last(subjects.tasks_stream, subjects.task(task.key))
                if left is None or left.sequence != self.task.sequence:
                    return
            except RebaserError as error:
                self._warn("task_ack_failed", error, attempt=attempt)
            await anyio.sleep(0.02 * 2**attempt)

    async def give_back(self, delay: float) -> None:
        """Have the task delivered to anybody after `delay` seconds."""
        if not self.lost:
            try:
                await self.task.nak(delay)
            except RebaserError as error:
                self._warn("task_nak_failed", error)

    async def publish_again(self) -> None:
        """Make sure that the change set has a task, whosever."""
        try:
            await publish_task(self.task.js, self._subjects, self.task.key)
        except RebaserError as error:
            self._warn("task_publish_failed", error)

    def _warn(self, event: str, error: RebaserError, **fields: int) -> None:
        key = self.task.key
        log.warning(event, workspace=key.workspace, change_set=key.change_set, reason=error.message, **fields)

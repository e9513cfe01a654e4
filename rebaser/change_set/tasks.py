"""A delivered task: the right, and the duty, to own a change set for a while."""

from dataclasses import dataclass

from rebaser_client.jetstream import JetStream, PullMessage
from rebaser_core.ids import ChangeSetKey


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

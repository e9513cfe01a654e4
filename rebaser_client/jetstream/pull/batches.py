"""Messages as they come (`consume`) and in batches (`fetch`): pulls that are made for the reader (ADR-37)."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from rebaser_client.jetstream.api_calls import ApiCalls
from rebaser_client.jetstream.messages import Message
from rebaser_client.jetstream.priority_groups import PriorityGroup
from rebaser_client.jetstream.pull.actions import SendPull
from rebaser_client.jetstream.pull.message import PullMessage
from rebaser_client.jetstream.pull.options import PullLimits
from rebaser_client.jetstream.pull.puller import Puller
from rebaser_client.jetstream.pull.state import PullState
from rebaser_client.nats.parser import SizedHandler


class _RefillingPuller(Puller):
    """What is taken from the queue makes room for as much."""

    def __init__(
        self,
        js: ApiCalls,
        stream: str,
        consumer: str,
        limits: PullLimits,
        group: PriorityGroup,
        *,
        single_pull: bool,
        **callbacks: Any,
    ) -> None:
        state = PullState(
            limit=limits.limit,
            threshold=limits.threshold,
            by_bytes=limits.by_bytes,
            expires=limits.expires,
            heartbeat=limits.heartbeat,
            single_pull=single_pull,
            batch=limits.batch,
        )
        super().__init__(
            js,
            stream,
            consumer,
            state,
            expires=limits.expires,
            idle_heartbeat=limits.heartbeat,
            group=group,
            **callbacks,
        )
        self._sizes: deque[int] = deque()  # of what is queued, where bytes are counted
        if limits.by_bytes:
            self._handler = SizedHandler(self._on_sized)

    async def __anext__(self) -> PullMessage:
        if not self._queue:
            await self._wait()
        message = self._queue.popleft()
        state = self._state
        actions = state.grant(self._sizes.popleft() if state.by_bytes else 1)
        if actions:
            self._act(actions)
        return message

    def _on_sized(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None, size: int) -> None:
        message = self._message(subject, reply, data, headers)
        if message is not None:
            self._sizes.append(size)
            self._arrived(message, size)


class Messages(_RefillingPuller):
    """Messages of a consumer, without end: see `Consumer.consume`.

    async with consumer.consume() as messages:
        async for message in messages: ...

    Iteration ends after `stop` or `drain`. It raises `ConsumerDeletedError` when the consumer is deleted, and
    `PullRefusedError` when it is one that pushes; all else is told to `on_warning`, and it goes on.
    With `end_when_gone` the first also comes when the consumer is found gone, after a reconnect or because nobody
    answers pulls.
    """

    def __init__(
        self, js: ApiCalls, stream: str, consumer: str, limits: PullLimits, group: PriorityGroup, **callbacks: Any
    ) -> None:
        super().__init__(js, stream, consumer, limits, group, single_pull=False, **callbacks)

    async def drain(self) -> None:
        """Pull no more, but keep what came: iteration ends when it is taken."""
        await self._finish()

    async def run(self, handle: Callable[[PullMessage], Awaitable[None]]) -> None:
        """Call `handle` with each message, one after the other, until `stop` or `drain`. What it raises ends it."""
        async with self:
            async for message in self:
                await handle(message)


class MessageBatch(_RefillingPuller):
    """The messages of one pull: see `Consumer.fetch`.

    async for message in consumer.fetch(10): ...

    Iteration ends when all came that were asked for, or no more will: time is over, or the next one is too large. It
    raises `PullRefusedError`, `NoRespondersError`, `RequestTimeoutError` (the server did not even say that time is
    over) or `NotConnectedError` (it was lost, or there was none for all that time), each after what came before.
    A batch that is not read to its end is over after its time, or at once in an `async with` block.
    """

    def __init__(self, js: ApiCalls, stream: str, consumer: str, limits: PullLimits, group: PriorityGroup) -> None:
        super().__init__(js, stream, consumer, limits, group, single_pull=True)


class AckNextBatch(MessageBatch):
    """The messages of a pull that acknowledges the one before: see `JetStream.ack_next`."""

    def __init__(
        self, js: ApiCalls, message: Message, limits: PullLimits, group: PriorityGroup, *, no_wait: bool
    ) -> None:
        super().__init__(js, message.stream, message.consumer, limits, group)
        self._api = message.reply
        if no_wait:
            kept = {name: value for name, value in self._request.items() if name not in ("expires", "idle_heartbeat")}
            self._request = {**kept, "no_wait": True}

    def _wanted(self, pull: SendPull) -> bytes:
        return b"+NXT " + super()._wanted(pull)

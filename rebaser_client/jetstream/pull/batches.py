"""Pulls messages endlessly (`consume`) or in batches (`fetch`), as fast as the reader takes them (ADR-37)."""

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
    """A puller that requests more messages whenever its reader has taken some."""

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
        self._sizes: deque[int] = deque()  # the sizes of the queued messages, if bytes are counted
        if limits.by_bytes:
            self._handler = SizedHandler(self._on_sized_message)

    async def __anext__(self) -> PullMessage:
        if not self._queue:
            await self._wait()
        message = self._queue.popleft()
        state = self._state
        actions = state.grant(self._sizes.popleft() if state.by_bytes else 1)
        if actions:
            self._act(actions)
        return message

    def _on_sized_message(
        self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None, size: int
    ) -> None:
        message = self._parse(subject, reply, data, headers)
        if message is not None:
            self._sizes.append(size)
            self._deliver(message, size)


class Messages(_RefillingPuller):
    """An endless iterator over the messages of a consumer, which `Consumer.consume` returns.

        async with consumer.consume() as messages:
            async for message in messages: ...

    Iteration ends after `stop` or `drain`. It raises `ConsumerDeletedError` when the consumer is deleted, and
    `PullRefusedError` when the consumer is a push consumer. Any other problem is passed to `on_warning`, and iteration
    continues. If `end_when_gone` is true, the puller also checks whether the consumer still exists after a reconnect,
    and when pulls get no answer. If it does not, iteration raises `ConsumerDeletedError`.
    """

    def __init__(
        self, js: ApiCalls, stream: str, consumer: str, limits: PullLimits, group: PriorityGroup, **callbacks: Any
    ) -> None:
        super().__init__(js, stream, consumer, limits, group, single_pull=False, **callbacks)

    async def drain(self) -> None:
        """Stop pulling. The iteration ends once all delivered messages have been taken."""
        await self._finish()

    async def run(self, handle: Callable[[PullMessage], Awaitable[None]]) -> None:
        """Call `handle` with each message until `stop` or `drain` is called. Raise any exception that `handle`
        raises."""
        async with self:
            async for message in self:
                await handle(message)


class MessageBatch(_RefillingPuller):
    """The messages of one pull, which `Consumer.fetch` returns.

        async for message in consumer.fetch(10): ...

    Iteration ends when all requested messages were delivered, when the time is up, or when the next message is too
    large. If the pull fails, iteration yields the messages that were delivered and then raises `PullRefusedError`,
    `NoRespondersError`, `NoAnswerError` (the status that ends the pull did not arrive), or `NotConnectedError` (the
    connection was lost, or there was none until the time was up). A batch that is not read to its end ends when its
    time is up, or at the end of an `async with` block.
    """

    def __init__(self, js: ApiCalls, stream: str, consumer: str, limits: PullLimits, group: PriorityGroup) -> None:
        super().__init__(js, stream, consumer, limits, group, single_pull=True)


class AckNextBatch(MessageBatch):
    """The messages of a pull that also acknowledges an earlier message. `JetStream.ack_next` returns it."""

    def __init__(
        self, js: ApiCalls, message: Message, limits: PullLimits, group: PriorityGroup, *, no_wait: bool
    ) -> None:
        super().__init__(js, message.stream, message.consumer, limits, group)
        self._api = message.reply
        if no_wait:
            timed = ("expires", "idle_heartbeat")
            self._request = {name: value for name, value in self._request.items() if name not in timed}
            self._request["no_wait"] = True

    def _encode(self, pull: SendPull) -> bytes:
        return b"+NXT " + super()._encode(pull)

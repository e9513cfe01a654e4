"""A pull consumer as an object (ADR-37): its description, and three ways to read its messages."""

from collections.abc import Callable

from rebaser_client.jetstream.api import JetStreamApi
from rebaser_client.jetstream.errors import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND, ApiError
from rebaser_client.jetstream.infos import ConsumerInfo
from rebaser_client.jetstream.priority_groups import PriorityGroup
from rebaser_client.jetstream.pull.actions import PullWarning
from rebaser_client.jetstream.pull.batches import MessageBatch, Messages
from rebaser_client.jetstream.pull.message import PullMessage
from rebaser_client.jetstream.pull.options import DEFAULT_EXPIRES, PullLimits, check_group


class Consumer:
    """A consumer that `JetStream` or `Stream` returned. `cached_info` is the result of the last call of `info`.

    All times are in seconds. `consume`, `fetch` and `next` raise `ConfigError` for arguments that ADR-37 or the
    consumer's cached configuration forbids. `group`, `min_pending`, `min_ack_pending` and `priority`: see
    `PriorityGroup`. Acknowledge messages with their own methods (`PullMessage`) or through `JetStream`.
    """

    def __init__(self, js: JetStreamApi, info: ConsumerInfo) -> None:
        self._js = js
        self.stream = info.stream
        self.name = info.name
        self.cached_info = info

    async def info(self) -> ConsumerInfo:
        """Ask the server for the configuration and the current state."""
        self.cached_info = await self._js.consumer_info(self.stream, self.name)
        return self.cached_info

    async def delete(self) -> None:
        """Delete the consumer. A consumer that does not exist counts as deleted."""
        await self._js.delete_consumer(self.stream, self.name)

    async def unpin(self, group: str) -> None:
        """Take the pin from the pinned client of `group`. The next client to pull without a pin gets it."""
        await self._js.unpin(self.stream, self.name, group)

    def consume(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: float = DEFAULT_EXPIRES,
        idle_heartbeat: float | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
        on_warning: Callable[[PullWarning], None] | None = None,
        on_pinned: Callable[[str], None] | None = None,
        on_unpinned: Callable[[], None] | None = None,
        end_when_gone: bool = False,
    ) -> Messages:
        """Return the messages without end, pulled in advance: at most `max_messages` (500) or `max_bytes` are buffered.

        The next pull is sent when the buffered and requested amount falls to the threshold (by default, half of that
        maximum). A pull lasts `expires` (at least 1). If the server sends nothing for two `idle_heartbeat` (by default,
        half of `expires`, from 0.5 to 30), a new pull is sent. `on_warning`, `on_pinned` and `on_unpinned` are called
        in the read loop: see `Puller` and `PullConsumer`. If `end_when_gone` is true, check after a reconnect, and when
        pulls get no answer, whether the consumer still exists, and end if it does not. Without this option, a reader
        that was not notified of the deletion waits until the consumer exists again.

        With `ack_policy` none, buffered messages are lost if the reader stops early, because the server considers them
        done. Such a reader should buffer few messages (`max_messages`), or call `drain`.
        """
        limits = PullLimits.of_consume(
            max_messages,
            max_bytes,
            expires,
            idle_heartbeat,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
        )
        return Messages(
            self._js,
            self.stream,
            self.name,
            limits,
            self._group(group, min_pending, min_ack_pending, priority, fetch=False),
            on_warning=on_warning,
            on_pinned=on_pinned,
            on_unpinned=on_unpinned,
            is_gone=self._is_gone if end_when_gone else None,
        )

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        expires: float = DEFAULT_EXPIRES,
        idle_heartbeat: float | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> MessageBatch:
        """Return the next `max_messages` messages, or as many as fit into `max_bytes`, or as many as arrive in
        `expires`.

        Both limits may be given: the batch ends when the first of them is reached. With a heartbeat (the default if
        `expires` is above 30), a lost pull is noticed before its time is up.
        """
        limits = PullLimits.of_fetch(max_messages, max_bytes, expires, idle_heartbeat)
        priority_group = self._group(group, min_pending, min_ack_pending, priority, fetch=True)
        return MessageBatch(self._js, self.stream, self.name, limits, priority_group)

    async def next(
        self,
        *,
        expires: float = DEFAULT_EXPIRES,
        idle_heartbeat: float | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> PullMessage | None:
        """Return the next message, or None if none arrives within `expires`. Raises the errors of `MessageBatch`."""
        batch = self.fetch(
            1,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
        )
        async with batch:
            return await anext(batch, None)

    async def _is_gone(self) -> bool:
        try:
            await self.info()
        except ApiError as error:
            if error.err_code in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                return True
            raise
        return False

    def _group(
        self,
        name: str | None,
        min_pending: int | None,
        min_ack_pending: int | None,
        priority: int | None,
        *,
        fetch: bool,
    ) -> PriorityGroup:
        group = PriorityGroup.of(name, min_pending, min_ack_pending, priority)
        check_group(self.cached_info, group, fetch=fetch)
        return group

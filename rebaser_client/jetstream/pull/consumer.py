"""A pull consumer as an object (ADR-37): its description, and three methods to read its messages."""

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
    consumer's cached configuration forbids. `PriorityGroup` documents `group`, `min_pending`, `min_ack_pending` and
    `priority`. Acknowledge messages with the methods of `PullMessage` or through `JetStream`.
    """

    def __init__(self, js: JetStreamApi, info: ConsumerInfo) -> None:
        self._js = js
        self.stream = info.stream
        self.name = info.name
        self.cached_info = info

    async def info(self) -> ConsumerInfo:
        """Return the configuration and the current state of the consumer, as the server reports them."""
        self.cached_info = await self._js.consumer_info(self.stream, self.name)
        return self.cached_info

    async def delete(self) -> None:
        """Delete the consumer. A consumer that does not exist counts as deleted."""
        await self._js.delete_consumer(self.stream, self.name)

    async def unpin(self, group: str) -> None:
        """Unpin the pinned client of `group`. The next client that pulls without a pin is pinned."""
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
        """Return an endless iterator over the messages, which are pulled in advance.

        - `max_messages` (default 500) or `max_bytes`: the maximum that is buffered.
        - `threshold_messages` or `threshold_bytes`: the next pull is sent when the buffered and requested amount falls
          to this value (by default, half of the maximum).
        - `expires`: the duration of a pull, at least 1 s.
        - `idle_heartbeat`: if the server sends nothing for twice this time, a new pull is sent (by default, half of
          `expires`, but from 0.5 to 30 s).
        - `on_warning`, `on_pinned`, `on_unpinned`: callbacks, documented in `Puller` and `PullConsumer`.
        - `end_when_gone`: after a reconnect, and when pulls get no answer, check whether the consumer still exists, and
          end the iteration if it does not. By default, a reader that was not notified of the deletion waits until the
          consumer exists again.

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
        """Return the next messages: at most `max_messages`, or as many as fit into `max_bytes`.

        At least one of the two limits is required. The batch ends when the first of them is reached, and at the latest
        after `expires`. With a heartbeat (the default if `expires` is above 30), a lost pull is noticed earlier.
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
        """Return the next message, or None if none arrives within `expires`. Raise the errors of `MessageBatch`."""
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

"""A consumer as an object (ADR-37): what it is, and the three ways to take its messages."""

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
    """Got from `JetStream` or `Stream`. `cached_info` is as old as its last `info`.

    All times are seconds. `consume`, `fetch` and `next` raise `ConfigError` for what ADR-37 or the consumer, as it is
    cached, forbids. `group`, `min_pending`, `min_ack_pending` and `priority`: see `PriorityGroup`. Messages are
    acknowledged by themselves (`PullMessage`) or through `JetStream`.
    """

    def __init__(self, js: JetStreamApi, info: ConsumerInfo) -> None:
        self._js = js
        self.stream = info.stream
        self.name = info.name
        self.cached_info = info

    async def info(self) -> ConsumerInfo:
        """What it is and where it stands now; asks the server."""
        self.cached_info = await self._js.consumer_info(self.stream, self.name)
        return self.cached_info

    async def delete(self) -> None:
        """Delete it; one that is not there is deleted already."""
        await self._js.delete_consumer(self.stream, self.name)

    async def unpin(self, group: str) -> None:
        """Take the pin from the pinned client of `group`; whoever pulls next without one gets it."""
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
        """Messages without end, pulled for in advance: at most `max_messages` (500), or `max_bytes`, are kept.

        More is pulled for when the threshold (half of that) is left. A pull lasts `expires` (at least 1); without a
        word from the server for two `idle_heartbeat` (half of `expires`, from 0.5 to 30) it pulls anew.
        `on_warning`, `on_pinned` and `on_unpinned` are called in the read loop: see `Puller` and `PullConsumer`.
        `end_when_gone`: after a reconnect, and when nobody answers pulls, ask whether the consumer is still there, and
        end if not. Otherwise one that goes while nobody can say so is waited for.

        Where nothing is acknowledged (`ack_policy` none), what is kept for a reader who leaves early is lost: to the
        server it is done. Such a reader keeps little (`max_messages`), or drains.
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
        """The next `max_messages`, or as many as fit into `max_bytes`, or as many as come before `expires`.

        Both limits may be given: it is over when the first is reached.

        With a heartbeat (by default if `expires` is above 30) a pull that is lost is noticed before its time.
        """
        limits = PullLimits.of_fetch(max_messages, max_bytes, expires, idle_heartbeat)
        group_ = self._group(group, min_pending, min_ack_pending, priority, fetch=True)
        return MessageBatch(self._js, self.stream, self.name, limits, group_)

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
        """The next message, or None if none comes before `expires`. Raises as `MessageBatch` does."""
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

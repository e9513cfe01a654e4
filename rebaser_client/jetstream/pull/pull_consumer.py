"""Pulls messages for a reader that gives credit, and never more messages than the credit allows."""

from collections.abc import Callable

from rebaser_client.jetstream.api_calls import ApiCalls
from rebaser_client.jetstream.priority_groups import PriorityGroup
from rebaser_client.jetstream.pull.actions import PullWarning
from rebaser_client.jetstream.pull.puller import Puller
from rebaser_client.jetstream.pull.state import PullState


class PullConsumer(Puller):
    """Pulls the messages of the durable `consumer` of `stream`, but never more than the credit that the reader has
    given.

        async with PullConsumer(js, stream, consumer) as pull:
            pull.add_credit(10)
            async for message in pull: ...

    Acknowledge the messages through `JetStream`. If the consumer is deleted, pulling continues when it exists again.
    `expires` and `idle_heartbeat` are seconds. `PriorityGroup` documents `group`, `min_pending`, `min_ack_pending` and
    `priority`; values that no server accepts raise `ConfigError`.

    The callbacks are called in the read loop of the connection: `on_pinned` with the id of the pin when its first
    message was delivered, and `on_unpinned` when a pull was refused because the client is no longer pinned. A client
    that is unpinned while it has no pull is not notified.
    """

    def __init__(
        self,
        js: ApiCalls,
        stream: str,
        consumer: str,
        *,
        expires: float = 30.0,
        idle_heartbeat: float = 5.0,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
        on_warning: Callable[[PullWarning], None] | None = None,
        on_pinned: Callable[[str], None] | None = None,
        on_unpinned: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            js,
            stream,
            consumer,
            PullState(expires=expires, heartbeat=idle_heartbeat, survives_delete=True),
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            group=PriorityGroup.of(group, min_pending, min_ack_pending, priority),
            on_warning=on_warning,
            on_pinned=on_pinned,
            on_unpinned=on_unpinned,
        )

    def add_credit(self, count: int = 1) -> None:
        """Allow the server to deliver `count` further messages."""
        self._act(self._state.grant(count))

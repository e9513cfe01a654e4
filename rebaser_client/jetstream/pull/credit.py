"""Messages for credits: pulls for as much as a reader says it can take."""

from collections.abc import Callable

from rebaser_client.jetstream.api_calls import ApiCalls
from rebaser_client.jetstream.priority_groups import PriorityGroup
from rebaser_client.jetstream.pull.actions import PullWarning
from rebaser_client.jetstream.pull.puller import Puller
from rebaser_client.jetstream.pull.state import PullState


class PullConsumer(Puller):
    """Messages of the durable `consumer` of `stream`, to be acknowledged through `JetStream`, for credits and no more.

    async with PullConsumer(js, stream, consumer) as pull:
        pull.add_credit(10)
        async for message in pull: ...

    A consumer that is deleted is waited for. `expires` and `idle_heartbeat` are seconds.
    `group` and what goes with it: see `PriorityGroup`; raises `ConfigError` for what no server takes.
    `on_pinned` (with the pin's id) is called, in the read loop, when the first message of a pin came, `on_unpinned`
    when a pull was refused because the pin is gone. Nobody tells a client that loses its pin while it does not pull.
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
        """The reader can take `count` messages more."""
        self._act(self._state.grant(count))

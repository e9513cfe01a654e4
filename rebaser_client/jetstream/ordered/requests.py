"""The API requests of an ordered consumer: they create and delete consumers, and check whether the stream was replaced.

Invariants: the client deletes every consumer that it created. If the client is disconnected for longer than `INACTIVE`,
the server deletes the consumer. Each consumer has its own name and its own inbox. The client subscribes to the inbox
before it creates the consumer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from rebaser_client.backoff import Backoff
from rebaser_client.jetstream.context import JetStream
from rebaser_client.jetstream.errors import STREAM_NOT_FOUND, ApiError
from rebaser_client.jetstream.infos import ConsumerInfo
from rebaser_client.logs import get_logger
from rebaser_client.nats.connection import Connection
from rebaser_client.nats.errors import NotAllowed
from rebaser_client.nats.parser import AnyHandler
from rebaser_client.nats.subscription import Subscription
from rebaser_core.errors import ConfigError, RebaserError, TransientError

log = get_logger(__name__)

NANOS = 1_000_000_000
INACTIVE = 30  # seconds after which the server removes a consumer without a subscriber
ACK_WAIT = 22 * 3600  # seconds; ADR-17 requires a large value, although nothing is acknowledged
DELETE_BOUND = 2.0  # the maximum number of seconds for which closing waits until the consumer is deleted
RETRY_MIN, RETRY_MAX = 0.05, 5.0  # seconds between attempts

# ADR-17 requires that callers set the `FIXED` fields of a consumer only to these values, and do not set the `RESERVED`
# fields. `OrderedConsumer` has separate arguments for the start and the filter.
FIXED = {"ack_policy": "none", "max_deliver": 1, "flow_control": True, "mem_storage": True}
RESERVED = frozenset(
    (
        *("name", "durable_name", "deliver_subject", "deliver_group", "num_replicas", "filter_subject"),
        *("filter_subjects", "idle_heartbeat", "headers_only", "deliver_policy", "opt_start_seq", "opt_start_time"),
        *("backoff", "max_ack_pending", "max_waiting", "priority_groups", "priority_policy"),
    )
)


class Generation:
    """One consumer on the server: its name, its inbox, and the consumer sequence up to which messages arrived."""

    __slots__ = ("again", "flow", "inbox", "name", "sequence", "subscription")

    def __init__(self, connection: Connection, *, again: bool) -> None:
        self.name = connection.new_name()
        self.inbox = connection.new_inbox()
        self.again = again  # whether this consumer replaces an earlier consumer
        self.subscription: Subscription | None = None
        self.sequence = 0  # the consumer sequence of the newest accepted message
        self.flow = ""  # flow control: the subject on which to publish once all queued messages have been taken


@dataclass(frozen=True, slots=True)
class ConsumerRequests:
    """Sends the API requests of one ordered consumer.

    `extra` contains fields of JetStream's `ConsumerConfig` that the caller has chosen. Fields and values that an
    ordered consumer cannot have raise `ConfigError`.
    """

    js: JetStream
    stream: str
    filter_subject: str
    idle_heartbeat: float
    headers_only: bool
    extra: Mapping[str, Any]

    def __post_init__(self) -> None:
        if refused := sorted(RESERVED & self.extra.keys()):
            raise ConfigError(f"an ordered consumer does not accept these fields: {', '.join(refused)}")
        for name, value in FIXED.items():
            if self.extra.get(name, value) != value:
                raise ConfigError(f"`{name}` of an ordered consumer must be {value!r}, not {self.extra[name]!r}")

    def config(self, name: str, inbox: str, policy: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `ConsumerConfig` (JSON API, docs.nats.io) that ADR-17 requires for an ordered consumer."""
        return {
            "ack_wait": ACK_WAIT * NANOS,
            "inactive_threshold": INACTIVE * NANOS,
            "replay_policy": "instant",
            **self.extra,
            **FIXED,
            **policy,
            "name": name,
            "filter_subject": self.filter_subject,
            "deliver_subject": inbox,
            "num_replicas": 1,
            "idle_heartbeat": int(self.idle_heartbeat * NANOS),
            "headers_only": self.headers_only,
        }

    async def create(self, generation: Generation, handler: AnyHandler, policy: Mapping[str, Any]) -> ConsumerInfo:
        """Subscribe to the inbox, then create the consumer. Messages may arrive before this method returns.

        If this method fails, the consumer is deleted in case the server created it.
        """
        try:
            generation.subscription = await self.js.connection.listen(generation.inbox, handler, lasting=False)
            config = self.config(generation.name, generation.inbox, policy)
            return (await self.js.create_consumer(self.stream, config)).cached_info
        except BaseException as error:
            if isinstance(error, ApiError) and generation.subscription is not None:
                await generation.subscription.close()  # the server refused the call, so there is no consumer to delete
            else:
                await self.discard_now(generation)
            raise

    async def discard_now(self, generation: Generation) -> None:
        """Call `discard`, for at most `DELETE_BOUND` seconds. Without a connection, call it in the background."""
        connection = self.js.connection
        if connection.connected:
            with anyio.move_on_after(DELETE_BOUND, shield=True):
                await self.discard(generation)
        else:
            connection.spawn(self.discard, generation)

    async def discard(self, generation: Generation) -> None:
        """Unsubscribe, and delete the consumer. Retry for `INACTIVE` seconds; after that time, the server removes the
        consumer itself."""
        # The generation drops its reference to the subscription, whose handler refers to the generation. Otherwise,
        # this reference cycle would keep both in memory.
        subscription, generation.subscription = generation.subscription, None
        if subscription is not None:
            await subscription.close()
        backoff = Backoff(RETRY_MIN, RETRY_MAX)
        with anyio.move_on_after(INACTIVE):
            while True:
                try:
                    await self.js.connection.wait_connected()
                    return await self.js.delete_consumer(self.stream, generation.name)
                except NotAllowed:
                    return None  # the server removes the consumer after `INACTIVE`
                except RebaserError as error:
                    log.debug("ordered_delete_failed", stream=self.stream, name=generation.name, reason=error.message)
                await anyio.sleep(backoff.next_delay())

    async def find_loss(self, created: str, last: int) -> TransientError | None:
        """Return an error if a new consumer would not help, because the stream was deleted, recreated or set back.
        Otherwise, return None. `created` is the creation time that the stream had when reading began. `last` is the
        sequence up to which the stream was read.
        """
        try:
            info = await self.js.stream_info(self.stream)
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            what = "was deleted"
        else:
            if info.created != created:
                what = "was deleted and created again"
            elif info.last_sequence < last:
                what = f"was set back to message {info.last_sequence}, but had message {last} before"
            else:
                return None
        return TransientError(f"stream {self.stream} {what}", code="stream_lost")

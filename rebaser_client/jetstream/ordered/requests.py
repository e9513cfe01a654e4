"""What an ordered consumer asks of the server: to be made, to be gone, and whether its stream is still the same.

Invariants: a consumer that was made is deleted, by us or, if we cannot for that long, by the server after `INACTIVE`;
each has a name and an inbox of its own, listened on before it is made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from rebaser_client.backoff import Backoff
from rebaser_client.errors import NotAllowed
from rebaser_client.jetstream.context import JetStream
from rebaser_client.jetstream.errors import STREAM_NOT_FOUND, ApiError
from rebaser_client.jetstream.infos import ConsumerInfo
from rebaser_client.logs import get_logger
from rebaser_client.nats.connection import Connection
from rebaser_client.nats.parser import Handler
from rebaser_client.nats.subscription import Subscription
from rebaser_core.errors import ConfigError, RebaserError, TransientError

log = get_logger(__name__)

NANOS = 1_000_000_000
INACTIVE = 30  # seconds after which the server removes a consumer that nobody listens to
ACK_WAIT = 22 * 3600  # seconds; nothing is acknowledged, but ADR-17 wants it large
DELETE_BOUND = 2.0  # seconds
RETRY_MIN, RETRY_MAX = 0.05, 5.0  # seconds

# What ADR-17 lets a caller say of a consumer only if it is so anyway, and what it lets nobody say. Where to begin and
# what to filter have arguments of their own.
FIXED = {"ack_policy": "none", "max_deliver": 1, "flow_control": True, "mem_storage": True}
OURS = frozenset(
    (
        *("name", "durable_name", "deliver_subject", "deliver_group", "num_replicas", "filter_subject"),
        *("filter_subjects", "idle_heartbeat", "headers_only", "deliver_policy", "opt_start_seq", "opt_start_time"),
        *("backoff", "max_ack_pending", "max_waiting", "priority_groups", "priority_policy"),
    )
)


class Generation:
    """One consumer on the server: its name, where it delivers, and how far it has."""

    __slots__ = ("again", "flow", "inbox", "name", "sequence", "subscription")

    def __init__(self, connection: Connection, *, again: bool) -> None:
        self.name = connection.new_name()
        self.inbox = connection.new_inbox()
        self.again = again  # whether there was another before
        self.subscription: Subscription | None = None
        self.sequence = 0  # consumer sequence of the newest message that was taken in
        self.flow = ""  # where to say that what is queued has been taken


@dataclass(frozen=True, slots=True)
class ConsumerRequests:
    """`given`: fields of JetStream's `ConsumerConfig` that a caller chose; raises `ConfigError` for forbidden ones."""

    js: JetStream
    stream: str
    filter_subject: str
    idle_heartbeat: float
    headers_only: bool
    given: Mapping[str, Any]

    def __post_init__(self) -> None:
        if refused := sorted(OURS & self.given.keys()):
            raise ConfigError(f"an ordered consumer takes no {', '.join(refused)}")
        for name, value in FIXED.items():
            if self.given.get(name, value) != value:
                raise ConfigError(f"{name} of an ordered consumer is {value!r}, not {self.given[name]!r}")

    def config(self, name: str, inbox: str, policy: Mapping[str, Any]) -> dict[str, Any]:
        """JetStream `ConsumerConfig` (JSON API, docs.nats.io) of a consumer as ADR-17 wants it."""
        return {
            "ack_wait": ACK_WAIT * NANOS,
            "inactive_threshold": INACTIVE * NANOS,
            "replay_policy": "instant",
            **self.given,
            **FIXED,
            **policy,
            "name": name,
            "filter_subject": self.filter_subject,
            "deliver_subject": inbox,
            "num_replicas": 1,
            "idle_heartbeat": int(self.idle_heartbeat * NANOS),
            "headers_only": self.headers_only,
        }

    async def create(self, generation: Generation, handler: Handler, policy: Mapping[str, Any]) -> ConsumerInfo:
        """Listen, then make the consumer. What it delivers may come before the answer; after an error it is gone."""
        try:
            generation.subscription = await self.js.connection.listen(generation.inbox, handler, lasting=False)
            config = self.config(generation.name, generation.inbox, policy)
            return (await self.js.create_consumer(self.stream, config)).cached_info
        except BaseException as error:
            if isinstance(error, ApiError) and generation.subscription is not None:
                await generation.subscription.close()  # refused: there is no consumer
            else:
                await self.discard_now(generation)
            raise

    async def discard_now(self, generation: Generation) -> None:
        """Discard before returning, unless that would take long: then in the background."""
        connection = self.js.connection
        if connection.connected:
            with anyio.move_on_after(DELETE_BOUND, shield=True):
                await self.discard(generation)
        else:
            connection.spawn(self.discard, generation)

    async def discard(self, generation: Generation) -> None:
        """Listen no more, and delete the consumer, trying for as long as the server has not done so by itself."""
        if generation.subscription is not None:
            await generation.subscription.close()
        backoff = Backoff(RETRY_MIN, RETRY_MAX)
        with anyio.move_on_after(INACTIVE):
            while True:
                try:
                    await self.js.connection.wait_connected()
                    return await self.js.delete_consumer(self.stream, generation.name)
                except NotAllowed:
                    return None  # the server removes it when it was idle for long enough
                except RebaserError as error:
                    log.debug("ordered_delete_failed", stream=self.stream, name=generation.name, reason=error.message)
                await anyio.sleep(backoff.next_delay())

    async def find_loss(self, created: str, last: int) -> TransientError | None:
        """What happened to the stream, `created` then and read up to `last`, that no later consumer could make good."""
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
                what = f"was set back to message {info.last_sequence}, behind {last}"
            else:
                return None
        return TransientError(f"stream {self.stream} {what}", code="stream_lost")

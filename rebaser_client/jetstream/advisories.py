"""Events that nats-server publishes about consumers: a client was pinned or unpinned, or a message was acknowledged.

The events are core NATS messages, so a client misses all events that are published while it has no subscription or no
connection.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic_core import from_json

from rebaser_client.logs import get_logger
from rebaser_client.nats.connection import Connection
from rebaser_client.nats.messages import Msg, as_int

log = get_logger(__name__)

PINNED = "io.nats.jetstream.advisory.v1.consumer_group_pinned"
UNPINNED = "io.nats.jetstream.advisory.v1.consumer_group_unpinned"
ACK = "io.nats.jetstream.metric.v1.consumer_ack"


@dataclass(frozen=True, slots=True)
class Pinned:
    """An event: a client was pinned for the priority group `group` of a consumer. `pin` is the id of the pin.

    `time` is the time of the event (RFC 3339). `account` is the account of the stream, and `domain` is the JetStream
    domain; both are empty if the server does not send them.
    """

    stream: str
    consumer: str
    group: str
    pin: str
    time: str
    account: str
    domain: str


@dataclass(frozen=True, slots=True)
class Unpinned:
    """An event: the pinned client of the priority group `group` was unpinned.

    `reason` is `admin` (`unpin` was called) or `timeout`. The other fields are as in `Pinned`.
    """

    stream: str
    consumer: str
    group: str
    reason: str
    time: str
    account: str
    domain: str


PinEvent: TypeAlias = Pinned | Unpinned


@dataclass(frozen=True, slots=True)
class AckSample:
    """An event: a message was acknowledged `ack_time_ns` nanoseconds after its last delivery.

    `deliveries` is the number of deliveries of the message. `time` is the time of the event (RFC 3339). The server
    publishes samples only for consumers with a `sample_freq` (a percentage of the messages).
    """

    stream: str
    consumer: str
    stream_sequence: int
    consumer_sequence: int
    deliveries: int
    ack_time_ns: int
    time: str


@asynccontextmanager
async def watch_pins(
    connection: Connection, stream: str = "*", consumer: str = "*"
) -> AsyncIterator[AsyncIterator[PinEvent]]:
    """Yield an iterator over the pin events that are published from now on for priority groups of `consumer` in
    `stream`. `*` stands for any name."""
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.*.{stream}.{consumer}"
    async with connection.subscribe(subject) as messages:
        yield _pins(messages)


@asynccontextmanager
async def watch_acks(
    connection: Connection, stream: str = "*", consumer: str = "*"
) -> AsyncIterator[AsyncIterator[AckSample]]:
    """Yield an iterator over the ack samples that are published from now on for `consumer` in `stream`. `*` stands for
    any name."""
    async with connection.subscribe(f"$JS.EVENT.METRIC.CONSUMER.ACK.{stream}.{consumer}") as messages:
        yield _acks(messages)


async def _pins(messages: AsyncIterator[Msg]) -> AsyncIterator[PinEvent]:
    async for message in messages:
        event = _event(message)
        stream, consumer, group = (_text(event, name) for name in ("stream", "consumer", "group"))
        origin = [_text(event, name) for name in ("timestamp", "account", "domain")]
        if event.get("type") == PINNED:
            yield Pinned(stream, consumer, group, _text(event, "pinned_id"), *origin)
        elif event.get("type") == UNPINNED:
            yield Unpinned(stream, consumer, group, _text(event, "reason"), *origin)


async def _acks(messages: AsyncIterator[Msg]) -> AsyncIterator[AckSample]:
    async for message in messages:
        event = _event(message)
        if event.get("type") == ACK:
            yield AckSample(
                stream=_text(event, "stream"),
                consumer=_text(event, "consumer"),
                stream_sequence=as_int(event.get("stream_seq")),
                consumer_sequence=as_int(event.get("consumer_seq")),
                deliveries=as_int(event.get("deliveries")),
                ack_time_ns=as_int(event.get("ack_time")),
                time=_text(event, "timestamp"),
            )


def _text(event: Mapping[str, Any], name: str) -> str:
    return str(event.get(name, ""))


def _event(message: Msg) -> Mapping[str, Any]:
    """Return the content of an advisory; empty for any other message. Any client may publish on these subjects."""
    try:
        event = from_json(message.data)
    except ValueError:
        event = None
    if isinstance(event, dict):
        return event
    log.warning("advisory_unreadable", subject=message.subject[:120])
    return {}

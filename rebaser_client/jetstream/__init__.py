"""JetStream: streams, consumers, publishes and acknowledgements, as ADR-37, ADR-42 and ADR-17 describe them.

This package is a thin layer on top of `rebaser_client.nats`. It replaces the JetStream client of nats-py, which lacks
some of the features that these ADRs describe, and loses messages if others are used. README.md in this folder lists
every rule with its code and its test. `JetStream` (`context`) is the entry point. `pull` has pull consumers, `ordered`
has ordered consumers, `batched` reads a stream in the background, and `advisories` has events that the server
publishes.

The rest of `rebaser_client`, servers, and programs that use JetStream directly import from this package. Within
Rebaser, it imports `rebaser_client.nats`, `errors`, `logs`, `backoff` and `pace`, and `rebaser_core`.
"""

from rebaser_client.jetstream.advisories import AckSample, Pinned, Unpinned, watch_acks, watch_pins
from rebaser_client.jetstream.context import JetStream
from rebaser_client.jetstream.errors import ApiError, ConsumerDeletedError, PullRefusedError
from rebaser_client.jetstream.infos import AccountInfo, ConsumerInfo, PriorityGroupState, PubAck, StreamInfo
from rebaser_client.jetstream.messages import Message, StoredMessage
from rebaser_client.jetstream.ordered.consumer import OrderedConsumer
from rebaser_client.jetstream.pull.actions import PullWarning
from rebaser_client.jetstream.pull.batches import MessageBatch, Messages
from rebaser_client.jetstream.pull.consumer import Consumer
from rebaser_client.jetstream.pull.message import PullMessage
from rebaser_client.jetstream.pull.pull_consumer import PullConsumer
from rebaser_client.jetstream.stream import Stream
from rebaser_client.nats.access import Access
from rebaser_client.nats.connection import Connection
from rebaser_client.nats.errors import NoAnswerError, NoRespondersError
from rebaser_client.nats.messages import Msg
from rebaser_client.nats.subscription import Subscription

__all__ = [
    "Access",
    "AccountInfo",
    "AckSample",
    "ApiError",
    "Connection",
    "Consumer",
    "ConsumerDeletedError",
    "ConsumerInfo",
    "JetStream",
    "Message",
    "MessageBatch",
    "Messages",
    "Msg",
    "NoAnswerError",
    "NoRespondersError",
    "OrderedConsumer",
    "Pinned",
    "PriorityGroupState",
    "PubAck",
    "PullConsumer",
    "PullMessage",
    "PullRefusedError",
    "PullWarning",
    "StoredMessage",
    "Stream",
    "StreamInfo",
    "Subscription",
    "Unpinned",
    "watch_acks",
    "watch_pins",
]

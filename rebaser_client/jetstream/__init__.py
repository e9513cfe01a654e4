"""A thin layer over nats-py: what its JetStream lacks, or does in a way that loses messages. See README.md here."""

from rebaser_client.jetstream.access import Access
from rebaser_client.jetstream.advisories import AckSample, Pinned, Unpinned, watch_acks, watch_pins
from rebaser_client.jetstream.api import JetStream
from rebaser_client.jetstream.connection import Connection
from rebaser_client.jetstream.consume import Batch, Messages
from rebaser_client.jetstream.consumer import Consumer
from rebaser_client.jetstream.credits import PullConsumer
from rebaser_client.jetstream.errors import (
    ApiError,
    ConsumerDeletedError,
    NoRespondersError,
    PullRefusedError,
    RequestTimeoutError,
)
from rebaser_client.jetstream.infos import AccountInfo, ConsumerInfo, PriorityGroupState, PubAck, StreamInfo
from rebaser_client.jetstream.interest import Interest
from rebaser_client.jetstream.messages import Message, Msg, PullMessage, StoredMessage
from rebaser_client.jetstream.ordered import OrderedConsumer
from rebaser_client.jetstream.pull_actions import Warn
from rebaser_client.jetstream.stream import Stream

__all__ = [
    "Access",
    "AccountInfo",
    "AckSample",
    "ApiError",
    "Batch",
    "Connection",
    "Consumer",
    "ConsumerDeletedError",
    "ConsumerInfo",
    "Interest",
    "JetStream",
    "Message",
    "Messages",
    "Msg",
    "NoRespondersError",
    "OrderedConsumer",
    "Pinned",
    "PriorityGroupState",
    "PubAck",
    "PullConsumer",
    "PullMessage",
    "PullRefusedError",
    "RequestTimeoutError",
    "StoredMessage",
    "Stream",
    "StreamInfo",
    "Unpinned",
    "Warn",
    "watch_acks",
    "watch_pins",
]

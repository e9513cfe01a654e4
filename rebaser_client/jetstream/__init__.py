"""A thin layer over nats-py: what its JetStream lacks, or does in a way that loses messages."""

from rebaser_client.jetstream.api import JetStream
from rebaser_client.jetstream.connection import Connection
from rebaser_client.jetstream.errors import ApiError, NoRespondersError, RequestTimeoutError
from rebaser_client.jetstream.infos import AccountInfo, ConsumerInfo, PriorityGroupState, PubAck, StreamInfo
from rebaser_client.jetstream.interest import Interest
from rebaser_client.jetstream.messages import Message, Msg, PullMessage, StoredMessage
from rebaser_client.jetstream.ordered import OrderedConsumer
from rebaser_client.jetstream.pull import PullConsumer

__all__ = [
    "AccountInfo",
    "ApiError",
    "Connection",
    "ConsumerInfo",
    "Interest",
    "JetStream",
    "Message",
    "Msg",
    "NoRespondersError",
    "OrderedConsumer",
    "PriorityGroupState",
    "PubAck",
    "PullConsumer",
    "PullMessage",
    "RequestTimeoutError",
    "StoredMessage",
    "StreamInfo",
]

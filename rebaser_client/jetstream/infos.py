"""The descriptions of streams, consumers and accounts, with the fields of the JetStream API that Rebaser reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from rebaser_client.nats.messages import as_int


class PubAck(NamedTuple):
    """The ack of a stored message. If `duplicate` is true, the stream already had a message with this `Nats-Msg-Id`."""

    sequence: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The description of a stream.

    `created` is an opaque text that distinguishes a stream from earlier streams of the same name. `last_sequence` does
    not change when messages are deleted. `first_time` and `last_time` are the times when the oldest and the newest
    message were stored (RFC 3339), and empty for an empty stream. `now` is the time at which the server answered, by
    the server's clock. `copies_behind` is the number of copies that are offline or have not caught up.
    """

    name: str
    created: str
    config: Mapping[str, Any]
    messages: int
    bytes: int
    first_sequence: int
    last_sequence: int
    subjects: int
    consumers: int
    last_time: str = ""
    now: str = ""
    first_time: str = ""
    copies_behind: int = 0

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        config, state = answer.get("config") or {}, answer.get("state") or {}
        peers = (answer.get("cluster") or {}).get("replicas") or []
        return cls(
            str(config.get("name", "")),
            str(answer.get("created", "")),
            config,
            as_int(state.get("messages")),
            as_int(state.get("bytes")),
            as_int(state.get("first_seq")),
            as_int(state.get("last_seq")),
            as_int(state.get("num_subjects")),
            as_int(state.get("consumer_count")),
            str(state.get("last_ts", "")) if state.get("messages") else "",
            str(answer.get("ts", "")),
            str(state.get("first_ts", "")) if state.get("messages") else "",
            sum(1 for peer in peers if not peer.get("current") or peer.get("offline")),
        )


class PriorityGroupState(NamedTuple):
    """The state of a priority group.

    `pinned_client_id` is the id of the pin, and `pinned_ts` is the time when the client was pinned (RFC 3339). Both are
    empty while no client is pinned.
    """

    group: str
    pinned_client_id: str
    pinned_ts: str


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """The description of a consumer. `delivered_stream` is the stream sequence up to which it has delivered messages.

    `ack_floor_stream` is the stream sequence up to which all messages are acknowledged, and `ack_floor_consumer` is the
    corresponding consumer sequence. `priority_groups` is empty for a consumer without groups, and before the first pull
    of a group. `paused` says whether an operator has paused its deliveries.
    """

    stream: str
    name: str
    config: Mapping[str, Any]
    num_pending: int
    num_ack_pending: int
    num_redelivered: int
    num_waiting: int
    delivered_consumer: int
    delivered_stream: int
    priority_groups: tuple[PriorityGroupState, ...] = ()
    ack_floor_stream: int = 0
    ack_floor_consumer: int = 0
    paused: bool = False

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        delivered, floor = answer.get("delivered") or {}, answer.get("ack_floor") or {}
        return cls(
            str(answer.get("stream_name", "")),
            str(answer.get("name", "")),
            answer.get("config") or {},
            as_int(answer.get("num_pending")),
            as_int(answer.get("num_ack_pending")),
            as_int(answer.get("num_redelivered")),
            as_int(answer.get("num_waiting")),
            as_int(delivered.get("consumer_seq")),
            as_int(delivered.get("stream_seq")),
            tuple(_group_state(group) for group in answer.get("priority_groups") or ()),
            as_int(floor.get("stream_seq")),
            as_int(floor.get("consumer_seq")),
            answer.get("paused") is True,
        )


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """The usage of an account. `memory` and `storage` are bytes."""

    memory: int
    storage: int
    streams: int
    consumers: int

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        return cls(*(as_int(answer.get(name)) for name in ("memory", "storage", "streams", "consumers")))


def _group_state(state: Mapping[str, Any]) -> PriorityGroupState:
    pin = str(state.get("pinned_client_id", ""))
    return PriorityGroupState(str(state.get("group", "")), pin, str(state.get("pinned_ts", "")) if pin else "")

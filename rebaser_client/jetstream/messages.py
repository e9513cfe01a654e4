"""JetStream messages: messages that a consumer delivered, and messages that were read from a stream."""

from rebaser_client.nats.messages import Msg

PIN_ID = "Nats-Pin-Id"  # header of each message for the pinned client of a priority group


class Message(Msg):
    """A message that a consumer delivered. Its properties are read from its reply subject, which is JetStream's ack
    subject. `timestamp_ns` is the time when the message was stored (Unix time in nanoseconds).

    The ack subject is `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp>.<pending>`. In a
    second form, `<domain>.<account hash>` follows `ACK`, and the subject ends with an additional token.
    """

    __slots__ = ("_delivered", "_pending", "consumer_sequence", "stream_sequence", "timestamp_ns")

    def __init__(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        """Read the sequences from `reply`. Raise `ValueError` if `reply` is not an ack subject."""
        self.subject = subject
        self.reply = reply
        self.data = data
        self.headers = {} if headers is None else headers
        parts = reply.split(".")
        count = len(parts)
        if (count != 9 and count < 11) or parts[1] != "ACK" or parts[0] != "$JS":
            raise ValueError(f"{reply!r} is not an ack subject")
        self._delivered, stream, consumer, stored, self._pending = parts[4:] if count == 9 else parts[6:11]
        self.stream_sequence = int(stream)
        self.consumer_sequence = int(consumer)
        self.timestamp_ns = int(stored)  # a request's is read several times

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self.reply.split(".")[2 if len(self.reply.split(".")) == 9 else 4]

    @property
    def consumer(self) -> str:
        """The name of the consumer."""
        return self.reply.split(".")[3 if len(self.reply.split(".")) == 9 else 5]

    @property
    def delivered(self) -> int:
        """The number of deliveries of this message so far, including this delivery."""
        return int(self._delivered)

    @property
    def pending(self) -> int:
        """The number of messages that the consumer still had to deliver after this message."""
        return int(self._pending)


class StoredMessage:
    """A message read from a stream. `time` is the time when it was stored, in the RFC 3339 format."""

    __slots__ = ("data", "headers", "sequence", "subject", "time")

    def __init__(self, subject: str, sequence: int, headers: dict[str, str], data: bytes, time: str) -> None:
        self.subject = subject
        self.sequence = sequence
        self.headers = headers
        self.data = data
        self.time = time

    def __repr__(self) -> str:
        return f"StoredMessage({self.subject!r}, {self.sequence}, {len(self.data)} bytes)"

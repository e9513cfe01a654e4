"""What arrives: core messages, deliveries of a consumer, stored messages.

Invariant: `headers` is always a dict, empty where the message has none; header names are case-sensitive.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rebaser_client.jetstream.calls import Calls

# Where the inline status of a message (`NATS/1.0 503 No Responders`) stands among its headers. No header can have these
# names, so nobody can make one up.
STATUS = ":status"
DESCRIPTION = ":description"

PIN_ID = "Nats-Pin-Id"  # on each message for the pinned client of a priority group

KNOWN_MAX = 128  # bytes of a header line that is worth remembering; longer ones could fill the memory


class Msg:
    """A core NATS message. `reply` is empty where none is wanted."""

    __slots__ = ("data", "headers", "reply", "subject")

    def __init__(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self.headers = {} if headers is None else headers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.subject!r}, {len(self.data)} bytes)"


class Message(Msg):
    """A delivery of a consumer. Its numbers stand in the reply subject (JetStream's ack subject):

    `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp>.<pending>`, or with
    `<domain>.<account hash>` behind `ACK` and a token at the end.
    """

    __slots__ = ("_parts", "consumer_sequence", "stream_sequence")

    def __init__(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        """Raises `ValueError` if `reply` is no ack subject."""
        self.subject = subject
        self.reply = reply
        self.data = data
        self.headers = {} if headers is None else headers
        parts = reply.split(".")
        count = len(parts)
        if count == 9 and parts[1] == "ACK" and parts[0] == "$JS":
            self._parts = parts[4:]
        elif count >= 11 and parts[1] == "ACK" and parts[0] == "$JS":
            self._parts = parts[6:11]
        else:
            raise ValueError(f"{reply!r} is not an ack subject")
        self.stream_sequence = int(self._parts[1])
        self.consumer_sequence = int(self._parts[2])

    @property
    def stream(self) -> str:
        """The stream it stands in."""
        return self.reply.split(".")[2 if len(self.reply.split(".")) == 9 else 4]

    @property
    def consumer(self) -> str:
        """Whose delivery it is."""
        return self.reply.split(".")[3 if len(self.reply.split(".")) == 9 else 5]

    @property
    def delivered(self) -> int:
        """How often this message was delivered, this time included."""
        return int(self._parts[0])

    @property
    def timestamp_ns(self) -> int:
        """When it was stored (Unix time in nanoseconds)."""
        return int(self._parts[3])

    @property
    def pending(self) -> int:
        """How many more messages the consumer had for us when it sent this one."""
        return int(self._parts[4])


class PullMessage(Message):
    """A delivery that has to be acknowledged. Its methods are those of `JetStream`, which say more."""

    __slots__ = ("_js",)

    def __init__(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None, js: "Calls") -> None:
        super().__init__(subject, reply, data, headers)
        self._js = js

    async def ack(self) -> None:
        await self._js.ack(self)

    async def ack_sync(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - see Connection.request
        await self._js.ack_sync(self, timeout=timeout)

    async def nak(self, delay: float = 0.0, *, confirmed: bool = False) -> None:
        await self._js.nak(self, delay, confirmed=confirmed)

    async def progress(self, *, confirmed: bool = False) -> None:
        await self._js.progress(self, confirmed=confirmed)

    async def term(self, reason: str = "", *, confirmed: bool = False) -> None:
        await self._js.term(self, reason, confirmed=confirmed)


class StoredMessage:
    """A message as it stands in a stream. `time` is the server's RFC 3339 text."""

    __slots__ = ("data", "headers", "sequence", "subject", "time")

    def __init__(self, subject: str, sequence: int, headers: dict[str, str], data: bytes, time: str) -> None:
        self.subject = subject
        self.sequence = sequence
        self.headers = headers
        self.data = data
        self.time = time

    def __repr__(self) -> str:
        return f"StoredMessage({self.subject!r}, {self.sequence}, {len(self.data)} bytes)"


def parse_headers(raw: bytes) -> dict[str, str]:
    """Headers from their wire form: a `NATS/1.0` line, perhaps with a status, then `Name: value` lines.

    Lines without a colon or with an unusable name are left out; the last of a name counts.
    """
    first, *lines = raw.split(b"\r\n")
    headers = dict(
        [pair for line in lines if (pair := (_known if len(line) <= KNOWN_MAX else _header)(line)) is not None]
    )
    if len(first) > len(b"NATS/1.0"):
        _, _, status = first.partition(b" ")
        number, _, description = status.strip().partition(b" ")
        if number.isdigit():
            headers[STATUS] = text(number)
            headers[DESCRIPTION] = text(description.strip())
    return headers


def _header(line: bytes) -> tuple[str, str] | None:
    name, colon, value = line.partition(b":")
    key = name.strip()
    if not colon or not key.isascii() or len(key.split()) != 1:
        return None
    return key.decode("ascii"), text(value.strip())


# Most header lines of a connection are the same few.
_known = lru_cache(maxsize=4096)(_header)


def text(raw: bytes) -> str:
    """`raw` as text, whatever it is."""
    return raw.decode("utf-8", "replace")


def as_int(value: Any) -> int:
    """`value` as a count; 0 if it is none."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0

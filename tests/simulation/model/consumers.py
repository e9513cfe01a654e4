"""Consumers of the model: a pull consumer, durable or ephemeral, and an ordered push consumer.

Both are driven from outside: `wake` delivers what can be delivered, and `timer` returns when something is next due.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tests.simulation.model.store import NANOS, Headers, Refused, Stored, Stream

NEVER = float("inf")
FLOW_WINDOW = 8  # messages that a push consumer sends before it waits for the receiver


class Host(Protocol):
    """What a consumer needs of its server. Times are virtual seconds."""

    def now(self) -> float: ...

    def send(self, subject: str, reply: str, data: bytes, headers: Headers | None, *, literal: str = "") -> bool:
        """Send a message to the subscribers of `subject`, and return whether there are any. With `literal`, the message
        carries that subject instead."""
        ...

    def listened(self, subject: str, *, exactly: bool = False) -> bool:
        """Return whether `subject` has a subscriber. With `exactly`, subscriptions with a wildcard do not count."""
        ...

    def acked(self, stream: Stream, sequence: int) -> None:
        """Handle the ack of a message of a work queue."""
        ...


def _status(code: int, text: str, **more: Any) -> Headers:
    named = {f"Nats-{name.replace('_', '-').title()}": str(value) for name, value in more.items()}
    return {":status": str(code), ":description": text, **named}


class Consumer:
    def __init__(self, host: Host, stream: Stream, config: dict[str, Any]) -> None:
        self.host = host
        self.stream = stream
        self.config = config
        self.name: str = config["name"]
        self.filter: str = config.get("filter_subject", "")
        self.delivered_consumer = 0
        self.next = 1  # the next stream sequence to examine
        self.deleted = False

    def wake(self) -> None:
        raise NotImplementedError

    def timer(self) -> float:
        raise NotImplementedError

    def ring(self) -> None:
        """Do what is due."""
        raise NotImplementedError

    def pending_count(self) -> int:
        return sum(1 for _ in self.stream.after(self.filter, self.next))

    def reply_subject(self, stored: Stored, delivered: int, pending: int) -> str:
        numbers = f"{delivered}.{stored.sequence}.{self.delivered_consumer}.{stored.time_ns}.{pending}"
        return f"$JS.ACK.{self.stream.name}.{self.name}.{numbers}"

    def info(self) -> dict[str, Any]:
        return {
            "stream_name": self.stream.name,
            "name": self.name,
            "config": self.config,
            "delivered": {"consumer_seq": self.delivered_consumer, "stream_seq": self.next - 1},
            "num_pending": self.pending_count(),
            "num_ack_pending": 0,
            "num_redelivered": 0,
            "num_waiting": 0,
        }

    def end(self, code: int, text: str) -> None:
        """Tell all waiting pulls that the consumer or its leader is gone."""


@dataclass
class Pull:
    reply: str
    batch: int
    expires: float
    heartbeat: float
    beat_at: float
    group: dict[str, Any]  # `id` of the pinned client, `min_pending`, `min_ack_pending`


@dataclass
class Pending:
    consumer_sequence: int
    delivered: int
    due: float


class PullConsumer(Consumer):
    def __init__(self, host: Host, stream: Stream, config: dict[str, Any]) -> None:
        super().__init__(host, stream, config)
        self.ack_wait = config.get("ack_wait", 30 * NANOS) / NANOS
        self.pending: dict[int, Pending] = {}
        self.counts: dict[int, int] = {}  # numbers of deliveries of messages that will be delivered again
        self.again: deque[int] = deque()
        self.waiting: deque[Pull] = deque()
        self.policy = config.get("priority_policy", "")
        self.pin = ""
        self.pin_ends = NEVER
        self._pin_time = config.get("priority_timeout", 120 * NANOS) / NANOS
        self._pins = 0
        self._acks = config.get("ack_policy") != "none"
        self._inactive = config.get("inactive_threshold", 0) / NANOS or NEVER
        self._used = host.now()
        if config.get("deliver_policy", "all") == "by_start_sequence":
            self.next = config["opt_start_seq"]

    # -- pulls -----------------------------------------------------------------------------------------------------

    def pull(self, reply: str, body: dict[str, Any]) -> None:
        now = self._used = self.host.now()
        expires, heartbeat = body.get("expires", 0) / NANOS, body.get("idle_heartbeat", 0) / NANOS
        beat_at = now + (heartbeat or NEVER)
        pull = Pull(reply, int(body.get("batch", 1)), now + (expires or NEVER), heartbeat, beat_at, body)
        if self.pin and body.get("id"):
            if body["id"] != self.pin:
                self.host.send(reply, "", b"", _status(423, "Nats-Pin-Id mismatch"))
                return
            self.pin_ends = now + self._pin_time
        if body.get("no_wait") and not self.again and self.pending_count() == 0:
            self.host.send(reply, "", b"", _status(404, "No Messages"))
            return
        self.waiting.append(pull)
        self.wake()

    def wake(self) -> None:
        while (stored := self._peek()) is not None and (pull := self._choose()) is not None:
            self._take(stored)
            pull.batch -= 1
            pull.beat_at = self.host.now() + (pull.heartbeat or NEVER)
            if pull.batch == 0:
                self.waiting.remove(pull)
            self._deliver(stored, pull)

    def _peek(self) -> Stored | None:
        while self.again:
            stored = self.stream.messages.get(self.again[0])
            if stored is not None:
                return stored
            self.counts.pop(self.again.popleft(), None)
        return next(self.stream.after(self.filter, self.next), None)

    def _choose(self) -> Pull | None:
        """Return the oldest pull that may be served and whose client still listens."""
        now = self.host.now()
        for pull in list(self.waiting):
            if pull.expires <= now or not self.host.listened(pull.reply):
                self.waiting.remove(pull)
            elif self.policy == "pinned_client":
                if self._is_pinned(pull):
                    return pull
            elif self.policy != "overflow" or self._overflows(pull.group):
                return pull
        return None

    def _is_pinned(self, pull: Pull) -> bool:
        named = pull.group.get("id", "")
        if not self.pin and not named:
            self._pins += 1
            self.pin = pull.group["id"] = f"pin{self._pins}"
            self.pin_ends = self.host.now() + self._pin_time
            return True
        if named and named != self.pin:
            self.waiting.remove(pull)
            left = _status(423, "Nats-Wrong-Pin-Id", pending_messages=pull.batch, pending_bytes=0)
            self.host.send(pull.reply, "", b"", left)
        return bool(named) and named == self.pin

    def _overflows(self, group: dict[str, Any]) -> bool:
        pending, acks = group.get("min_pending", 0), group.get("min_ack_pending", 0)
        if not pending and not acks:
            return True
        return 0 < pending <= self.pending_count() + len(self.again) or 0 < acks <= len(self.pending)  # type: ignore[no-any-return]

    def unpin(self) -> None:
        self.pin, self.pin_ends = "", NEVER
        self.wake()

    def _take(self, stored: Stored) -> None:
        if self.again and self.again[0] == stored.sequence:
            self.again.popleft()
        else:
            self.next = stored.sequence + 1

    def _deliver(self, stored: Stored, pull: Pull) -> None:
        self.delivered_consumer += 1
        delivered = self.counts.pop(stored.sequence, 0) + 1
        due = self.host.now() + self.ack_wait
        if self._acks:
            self.pending[stored.sequence] = Pending(self.delivered_consumer, delivered, due)
        reply = self.reply_subject(stored, delivered, self.pending_count())
        headers = {**stored.headers, "Nats-Pin-Id": self.pin} if self.pin else stored.headers
        self.host.send(pull.reply, reply, stored.data, headers or None, literal=stored.subject)

    # -- time ------------------------------------------------------------------------------------------------------

    def timer(self) -> float:
        dues = [one.due for one in self.pending.values()]
        waits = [min(pull.expires, pull.beat_at) for pull in self.waiting]
        return min([*dues, *waits, self.pin_ends, self._used + self._inactive])

    def ring(self) -> None:
        now = self.host.now()
        if self.waiting:
            self._used = now
        elif self._used + self._inactive <= now:
            self.deleted = True
            return
        if self.pin_ends <= now:
            self.pin, self.pin_ends = "", NEVER
        for sequence, pending in list(self.pending.items()):
            if pending.due <= now:
                self._redeliver(sequence)
        for pull in list(self.waiting):
            if pull.expires <= now:
                self.waiting.remove(pull)
                left = _status(408, "Request Timeout", pending_messages=pull.batch, pending_bytes=0)
                self.host.send(pull.reply, "", b"", left)
            elif pull.beat_at <= now:
                pull.beat_at = now + pull.heartbeat
                self.host.send(pull.reply, "", b"", _status(100, "Idle Heartbeat"))
        self.wake()

    def _redeliver(self, sequence: int) -> None:
        pending = self.pending.pop(sequence)
        self.counts[sequence] = pending.delivered
        self.again.append(sequence)

    # -- acks ------------------------------------------------------------------------------------------------------

    def ack(self, numbers: list[str], body: bytes) -> bool:
        """Handle an ack, and return whether it is answered. The stream sequence alone names the message, whoever holds
        it now."""
        _, sequence, consumer_sequence = (int(number) for number in numbers[:3])
        if body in (b"", b"+ACK", b"+OK") or body.startswith(b"+TERM"):
            self._done(sequence)
        elif body.startswith(b"-NAK"):
            self._nak(sequence, consumer_sequence, body[4:].strip())
        elif body == b"+WPI" and sequence in self.pending:
            self.pending[sequence].due = self.host.now() + self.ack_wait
        return True

    def _done(self, sequence: int) -> None:
        self.pending.pop(sequence, None)
        self.counts.pop(sequence, None)
        if sequence in self.again:
            self.again.remove(sequence)
        if sequence < self.next:
            self.host.acked(self.stream, sequence)

    def _nak(self, sequence: int, consumer_sequence: int, argument: bytes) -> None:
        pending = self.pending.get(sequence)
        if pending is None or not 0 < consumer_sequence <= self.delivered_consumer:
            return
        delay = int(argument.partition(b":")[2].rstrip(b"}")) / NANOS if argument.startswith(b"{") else 0.0
        if delay:
            pending.due = self.host.now() + delay
            return
        self._redeliver(sequence)
        self.wake()

    def info(self) -> dict[str, Any]:
        return super().info() | {
            "num_ack_pending": len(self.pending) + len(self.again),
            "num_redelivered": len(self.again) + sum(one.delivered > 1 for one in self.pending.values()),
            "num_waiting": len(self.waiting),
        }

    def end(self, code: int, text: str) -> None:
        for pull in self.waiting:
            self.host.send(pull.reply, "", b"", _status(code, text))
        self.waiting.clear()


class PushConsumer(Consumer):
    """A consumer that delivers in order to one subject, without acks. It stops after its flow window until the receiver
    answers."""

    def __init__(self, host: Host, stream: Stream, config: dict[str, Any], flow_subject: Callable[[], str]) -> None:
        super().__init__(host, stream, config)
        self.target: str = config["deliver_subject"]
        self.heartbeat = config.get("idle_heartbeat", 0) / NANOS
        self.inactive = config.get("inactive_threshold", 5 * NANOS) / NANOS
        self._only: list[int] | None = None  # the sequences that a "last per subject" consumer has to send first
        self._begin(config)
        now = host.now()
        self._beat_at = now + (self.heartbeat or NEVER)
        self._deaf_since = now
        self._sent = 0
        self._flow = ""
        self._flow_subject = flow_subject

    def _begin(self, config: dict[str, Any]) -> None:
        policy, stream = config.get("deliver_policy", "all"), self.stream
        found = list(stream.after(self.filter, 1))
        if policy == "by_start_sequence":
            self.next = config["opt_start_seq"]
        elif policy == "new":
            self.next = stream.last + 1
        elif policy == "last":
            self.next = found[-1].sequence if found else stream.last + 1
        elif policy == "last_per_subject":
            self._only = sorted({one.subject: one.sequence for one in found}.values())
            self.next = self._only[0] if self._only else stream.last + 1
            self._until = stream.last
        elif policy != "all":
            raise Refused(400, 10012, f"deliver policy {policy} is not modelled")

    def wake(self) -> None:
        if not self.host.listened(self.target, exactly=True):
            return
        while not self._flow and (stored := next(self._left(), None)) is not None:
            self.next = stored.sequence + 1
            if self._only is not None:
                while self._only and self._only[0] <= stored.sequence:
                    self._only.pop(0)
            self.delivered_consumer += 1
            self._beat_at = self.host.now() + (self.heartbeat or NEVER)
            data = b"" if self.config.get("headers_only") else stored.data
            headers = dict(stored.headers)
            if self.config.get("headers_only"):
                headers["Nats-Msg-Size"] = str(len(stored.data))
            reply = self.reply_subject(stored, 1, sum(1 for _ in self._left()))
            self.host.send(self.target, reply, data, headers or None, literal=stored.subject)
            self._sent += 1
            if self.config.get("flow_control") and self._sent >= FLOW_WINDOW:
                self._flow = self._flow_subject()
                self.host.send(self.target, self._flow, b"", _status(100, "FlowControl Request"))

    def _left(self) -> Iterator[Stored]:
        for stored in self.stream.after(self.filter, self.next):
            if self._only is None or stored.sequence > self._until or stored.sequence in self._only:
                yield stored

    def flow(self, subject: str) -> None:
        if subject == self._flow:
            self._flow = ""
            self._sent = 0
            self.wake()

    def timer(self) -> float:
        return min(self._beat_at, self._deaf_since + self.inactive)  # type: ignore[no-any-return]

    def ring(self) -> None:
        now = self.host.now()
        if self.host.listened(self.target, exactly=True):
            self._deaf_since = now
            if self._beat_at <= now:
                more = {"Nats-Consumer-Stalled": self._flow} if self._flow else {}
                numbers = _status(
                    100, "Idle Heartbeat", last_consumer=self.delivered_consumer, last_stream=self.next - 1
                )
                self.host.send(self.target, "", b"", numbers | more)
                self._beat_at = now + self.heartbeat
            self.wake()
        elif now >= self._deaf_since + self.inactive:
            self.deleted = True
        else:
            self._beat_at = now + (self.heartbeat or NEVER)

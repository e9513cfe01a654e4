"""A stream of the model: which messages it stores, refuses and forgets.

It follows nats-server 2.15 as far as Rebaser depends on it. `test_conformance.py` runs the same cases against both.
"""

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Headers = dict[str, str]
NANOS = 1_000_000_000

MSG_ID = "Nats-Msg-Id"
EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_STREAM = "Nats-Expected-Stream"
ROLLUP = "Nats-Rollup"


class Refused(Exception):  # noqa: N818 - what it is
    """An error answer of the JetStream API."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.body = {"error": {"code": code, "err_code": err_code, "description": description}}


@dataclass(frozen=True, slots=True)
class Stored:
    sequence: int
    subject: str
    headers: Headers
    data: bytes
    time_ns: int

    @property
    def size(self) -> int:
        return (
            len(self.subject) + len(self.data) + sum(len(key) + len(value) + 4 for key, value in self.headers.items())
        )


def time_text(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // NANOS, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{at_ns % NANOS:09d}Z"


def nanoseconds(text: str) -> int:
    """Return the time in an API request as nanoseconds. It has at most microseconds."""
    at = datetime.fromisoformat(text) - datetime.fromtimestamp(0, UTC)
    return (at.days * 86_400 + at.seconds) * NANOS + at.microseconds * 1000


def matches(pattern: str, subject: str) -> bool:
    """Return whether the literal `subject` matches `pattern`, with `*` and `>` as in NATS."""
    if pattern == subject:
        return True
    if "*" not in pattern and ">" not in pattern:
        return False
    wanted, given = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(given) > at
        if at >= len(given) or (token not in ("*", given[at])):
            return False
    return len(wanted) == len(given)


class Stream:
    """A stream. `watch(stream, stored, removed)` is called for each message that is stored or removed."""

    def __init__(self, config: dict[str, Any], now_ns: int, created: str, watch: Callable[..., None]) -> None:
        self.config = config
        self.name: str = config["name"]
        self.created = created
        self.messages: dict[int, Stored] = {}
        self.subjects: dict[str, dict[int, None]] = {}
        self.last = max(config.get("first_seq", 1) - 1, 0)
        self.bytes = 0
        self.last_ns = now_ns  # when the newest message was stored
        self.full = False  # whether the disk is full
        self.replica: Stream | None = None  # a replica that lags, if there is one
        self.deposed = False  # whether the replica believes that it is the leader
        self._duplicates: dict[str, tuple[int, int]] = {}
        self._created_ns = now_ns
        self._watch = watch

    def takes(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self.config.get("subjects", ()))

    # -- writing ---------------------------------------------------------------------------------------------------

    def publish(self, subject: str, headers: Headers, data: bytes, now_ns: int) -> dict[str, Any]:
        """Store a message, and return the body of the ack. Raises `Refused`."""
        headers = dict(headers)
        expected_stream = headers.get(EXPECTED_STREAM)
        if expected_stream is not None and expected_stream != self.name:
            raise Refused(400, 10060, "expected stream does not match")
        expected = headers.get(EXPECTED_LAST)
        held = self.subjects.get(subject)
        if expected is not None:
            last = next(reversed(held)) if held else 0
            if int(expected) != last:
                raise Refused(400, 10071, f"wrong last sequence: {last}")
        message_id = headers.get(MSG_ID)
        if message_id is not None:
            known = self._duplicates.get(message_id)
            if known is not None and known[1] + self.config.get("duplicate_window", 120 * NANOS) > now_ns:
                return {"stream": self.name, "seq": known[0], "duplicate": True}
        if headers.get(ROLLUP) == "sub":
            for sequence in list(held or ()):
                self.remove(sequence)
        else:
            self._check_room(subject, len(held or ()), len(data))
        self.last, self.last_ns = self.last + 1, now_ns
        stored = Stored(self.last, subject, headers, data, now_ns)
        self.messages[self.last] = stored
        self.subjects.setdefault(subject, {})[self.last] = None
        self.bytes += stored.size
        if message_id is not None:
            self._duplicates[message_id] = (self.last, now_ns)
        self._watch(self, stored, removed=False)
        return {"stream": self.name, "seq": stored.sequence}

    def _check_room(self, subject: str, held: int, size: int) -> None:
        config = self.config
        if self.full:
            raise Refused(503, 10077, "no space left on device")
        if 0 < config.get("max_msg_size", -1) < size:
            raise Refused(400, 10054, "message size exceeds maximum allowed")
        if config.get("discard_new_per_subject") and 0 < config.get("max_msgs_per_subject", -1) <= held:
            raise Refused(503, 10077, "maximum messages per subject exceeded")
        if 0 < config.get("max_msgs", -1) <= len(self.messages):
            raise Refused(503, 10077, "maximum messages exceeded")
        if 0 < config.get("max_bytes", -1) <= self.bytes + size:
            raise Refused(503, 10077, "maximum bytes exceeded")

    def remove(self, sequence: int) -> bool:
        stored = self.messages.pop(sequence, None)
        if stored is None:
            return False
        held = self.subjects[stored.subject]
        del held[sequence]
        if not held:
            del self.subjects[stored.subject]
        self.bytes -= stored.size
        self._watch(self, stored, removed=True)
        return True

    def delete(self, sequence: int) -> None:
        if not self.remove(sequence):
            raise Refused(400, 10043, f"sequence {sequence} not found")

    def purge(self, pattern: str, below: int | None, keep: int | None) -> int:
        found = [one for one in self.messages.values() if matches(pattern, one.subject)]
        if below is not None:
            found = [one for one in found if one.sequence < below]
        if keep is not None:
            found = found[: max(len(found) - keep, 0)]
        for one in found:
            self.remove(one.sequence)
        return len(found)

    def lag(self) -> None:
        """Create a replica that gets no further messages."""
        self.replica = Stream(self.config, self._created_ns, self.created, lambda *_: None)
        self.replica.messages = dict(self.messages)
        self.replica.subjects = {subject: dict(held) for subject, held in self.subjects.items()}
        self.replica.last = self.last

    def restarted(self) -> None:
        """Restart: the duplicate window is rebuilt from the messages that still exist."""
        kept = {stored.headers.get(MSG_ID): stored for stored in self.messages.values()}
        self._duplicates = {id_: (one.sequence, one.time_ns) for id_, one in kept.items() if id_ is not None}

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, sequence: int) -> Stored:
        if sequence not in self.messages:
            raise Refused(404, 10037, "no message found")
        return self.messages[sequence]

    def last_of(self, pattern: str) -> Stored:
        held = self.subjects.get(pattern)
        if held:
            return self.messages[next(reversed(held))]
        found = [one for one in self.messages.values() if matches(pattern, one.subject)]
        if not found:
            raise Refused(404, 10037, "no message found")
        return found[-1]

    def next_of(self, pattern: str, sequence: int) -> Stored:
        for one in self.after(pattern, sequence):
            return one
        raise Refused(404, 10037, "no message found")

    def since(self, time: str) -> int:
        """Return the sequence of the first message that was stored at `time` or later; the next sequence if there is
        none."""
        found = (one.sequence for one in self.messages.values() if one.time_ns >= nanoseconds(time))
        return next(found, self.last + 1)

    def after(self, pattern: str, sequence: int) -> Iterator[Stored]:
        """Yield the messages that match `pattern`, from `sequence` on, in order."""
        held = self.subjects.get(pattern)
        if held is not None:
            yield from [self.messages[at] for at in held if at >= sequence]
        elif pattern == "" or "*" in pattern or ">" in pattern:
            for one in list(self.messages.values()):
                if one.sequence >= sequence and (pattern == "" or matches(pattern, one.subject)):
                    yield one

    def info(self, pattern: str | None, offset: int, consumers: int, now_ns: int) -> dict[str, Any]:
        first = next(iter(self.messages), self.last + 1 if self.last else 0)
        state: dict[str, Any] = {
            "messages": len(self.messages),
            "bytes": self.bytes,
            "first_seq": first,
            "last_seq": self.last,
            "num_subjects": len(self.subjects),
            "consumer_count": consumers,
            "last_ts": time_text(self.last_ns),
        }
        body: dict[str, Any] = {"config": self.config, "created": self.created, "state": state, "ts": time_text(now_ns)}
        if pattern is not None:
            counts = {name: len(held) for name, held in self.subjects.items() if matches(pattern, name)}
            names = sorted(counts)[offset : offset + 100_000]
            state["subjects"] = {name: counts[name] for name in names}
            body |= {"total": len(counts), "offset": offset, "limit": 100_000}
        return body


def find(stream: Stream, body: dict[str, Any]) -> Stored:
    """Return the message that `body`, a request to get one message, asks for. Raise `Refused` if there is none."""
    if "last_by_subj" in body:
        return stream.last_of(body["last_by_subj"])
    if "next_by_subj" in body:
        first = stream.since(body["start_time"]) if "start_time" in body else body.get("seq", 0)
        return stream.next_of(body["next_by_subj"], first)
    return stream.get(body["seq"])


def body_of(stored: Stored) -> dict[str, Any]:
    """Return a message as the answer to a request shows it."""
    body = {"subject": stored.subject, "seq": stored.sequence, "time": time_text(stored.time_ns)}
    if stored.data:
        body["data"] = base64.b64encode(stored.data).decode()
    if stored.headers:
        lines = "".join(f"{key}: {value}\r\n" for key, value in stored.headers.items())
        body["hdrs"] = base64.b64encode(f"NATS/1.0\r\n{lines}\r\n".encode()).decode()
    return body

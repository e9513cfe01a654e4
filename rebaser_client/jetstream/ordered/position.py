"""The position of an ordered consumer in its stream. This module does no I/O, so that tests can check where each
consumer starts.

Invariant: each consumer starts where the previous consumer ended, so no message is skipped or repeated. Policies such
as "new" and "last" are resolved only once, for the first consumer, because they would mean a different position for
each later consumer.
"""

from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from rebaser_client.jetstream.infos import ConsumerInfo
from rebaser_client.jetstream.messages import Message
from rebaser_core.errors import ConfigError

Policy: TypeAlias = Literal["all", "new", "last", "last_per_subject"]
Start: TypeAlias = int | datetime | Policy
"""The start of reading: a stream sequence, a time (the first message stored at or after that time), or a policy."""

POLICIES = ("all", "new", "last", "last_per_subject")


class Position:
    """The position of an ordered consumer. `last` is the stream sequence of the newest accepted message; 0 before the
    first message.

    With the policy `last_per_subject`, reading has two phases. `snapshot` is the last sequence of the stream when the
    ordered consumer was opened. In the first phase, up to `snapshot`, only the newest message of each subject is read.
    If a consumer is replaced in this phase, the next consumer starts with the same policy, and messages that were
    accepted before are skipped. In the second phase, beyond `snapshot`, another consumer reads all messages by
    sequence.
    """

    __slots__ = ("_start", "last", "snapshot")

    def __init__(self, start: Start) -> None:
        """Begin at `start`. Raise `ConfigError` if `start` is not a `Start`, or is a time without a time zone."""
        known = start in POLICIES if isinstance(start, str) else isinstance(start, (int, datetime))
        if not known:
            raise ConfigError(
                f"{start!r} is not a start position: use a sequence, a time, or one of {', '.join(POLICIES)}"
            )
        if isinstance(start, datetime) and start.utcoffset() is None:
            raise ConfigError(f"the start time {start.isoformat()} has no time zone: add one, such as UTC")
        self._start = start
        self.last = 0
        self.snapshot: int | None = None

    @property
    def wants_end(self) -> bool:
        """Whether `snapshot` must be set before the first consumer is created."""
        return self._start == "last_per_subject" and self.snapshot is None

    def policy(self) -> dict[str, Any]:
        """Return the fields of JetStream's `ConsumerConfig` that determine where the next consumer starts."""
        if self.snapshot is not None:
            return {"deliver_policy": "last_per_subject"}
        if isinstance(self._start, int) or self.last:
            first = self._start if isinstance(self._start, int) else 1
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": max(first, self.last + 1)}
        if isinstance(self._start, datetime):
            return {"deliver_policy": "by_start_time", "opt_start_time": rfc3339(self._start)}
        return {"deliver_policy": self._start}

    def created_consumer(self, info: ConsumerInfo) -> None:
        """Record that a consumer was created. `info` describes the consumer before its first delivery."""
        if self.snapshot is not None:
            if not info.num_pending:
                self._end_snapshot(self.snapshot)
        elif not isinstance(self._start, int):
            self._start = info.delivered_stream + 1

    def accepts(self, message: Message, snapshot: int, *, again: bool) -> bool:
        """Return whether `message`, received in the phase that ends at `snapshot`, is the next message to deliver.

        If it is not, the caller has to replace the consumer. `again` is true if the message is from a consumer that
        replaced an earlier consumer.
        """
        beyond = message.stream_sequence > snapshot
        if beyond or not message.pending:
            self._end_snapshot(snapshot)
        return not (again and beyond)

    def _end_snapshot(self, end: int) -> None:
        self.snapshot = None
        self._start = end + 1


def rfc3339(time: datetime) -> str:
    """Format `time` as the server formats times: in UTC with nanoseconds. `time` must have a time zone."""
    return time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "000Z"

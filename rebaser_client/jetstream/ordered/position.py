"""Where an ordered consumer stands: pure, so that each rule of where its next consumer begins can be shown.

Invariant: whichever messages came so far, the next consumer begins where nothing is left out and nothing comes twice. A
policy counts as it was understood when the first consumer was made: "new" and "last" are another place each time.
"""

from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from rebaser_client.jetstream.infos import ConsumerInfo
from rebaser_client.jetstream.messages import Message
from rebaser_core.errors import ConfigError

Policy: TypeAlias = Literal["all", "new", "last", "last_per_subject"]
Start: TypeAlias = int | datetime | Policy
"""Where to begin: at a stream sequence, at the first message stored then or later, or by policy."""

POLICIES = ("all", "new", "last", "last_per_subject")


class Position:
    """`last` is the stream sequence of the newest message that was taken in; 0 before the first.

    `last_per_subject` has a phase of its own, up to `snapshot`, the end of the stream when it was opened: a consumer
    made anew in it starts over with that policy. What was taken in already is passed over, and behind the end the
    newest of each subject is not enough: there a third one, which begins by sequence, takes over.
    """

    __slots__ = ("_start", "last", "snapshot")

    def __init__(self, start: Start) -> None:
        """Raises `ConfigError` for a time without a time zone, and for what is no start."""
        known = start in POLICIES if isinstance(start, str) else isinstance(start, (int, datetime))
        if not known:
            raise ConfigError(f"{start!r} is no start: use a sequence, a time, or one of {', '.join(POLICIES)}")
        if isinstance(start, datetime) and start.utcoffset() is None:
            raise ConfigError(f"the start {start.isoformat()} has no time zone")
        self._start = start
        self.last = 0
        self.snapshot: int | None = None

    @property
    def wants_end(self) -> bool:
        """Whether `snapshot` has to be set before the first consumer is made."""
        return self._start == "last_per_subject" and self.snapshot is None

    def policy(self) -> dict[str, Any]:
        """The fields of JetStream's `ConsumerConfig` that say where the next consumer begins."""
        if self.snapshot is not None:
            return {"deliver_policy": "last_per_subject"}
        if isinstance(self._start, int) or self.last:
            first = self._start if isinstance(self._start, int) else 1
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": max(first, self.last + 1)}
        if isinstance(self._start, datetime):
            return {"deliver_policy": "by_start_time", "opt_start_time": rfc3339(self._start)}
        return {"deliver_policy": self._start}

    def made(self, info: ConsumerInfo) -> None:
        """The server tells of the consumer as it was before it delivered."""
        if self.snapshot is not None:
            if not info.num_pending:
                self._end_snapshot(self.snapshot)
        elif not isinstance(self._start, int):
            self._start = info.delivered_stream + 1

    def accepts(self, message: Message, snapshot: int, *, again: bool) -> bool:
        """Whether a message that comes while there is a `snapshot` is the next one; `again`: not of the first consumer.

        If not, another consumer has to go on.
        """
        behind = message.stream_sequence > snapshot
        if behind or not message.pending:
            self._end_snapshot(snapshot)
        return not (again and behind)

    def _end_snapshot(self, end: int) -> None:
        self.snapshot = None
        self._start = end + 1


def rfc3339(time: datetime) -> str:
    """`time`, which has a time zone, as the server writes its times: UTC with nanoseconds."""
    return time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "000Z"

"""Reads the messages of a stream for people and tools: commits, queued requests or dead letters, in stream order.

Invariant: a message that cannot be decoded is yielded with a description of the problem, and reading continues,
because operators use this module when something is wrong.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

import anyio

from rebaser_client.jetstream import ConsumerInfo, JetStream, Message, OrderedConsumer, StoredMessage
from rebaser_core.commit import Commit
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey, check_token
from rebaser_core.messages import EnqueueUpdatesRequest, decode, decode_commit
from rebaser_core.record import record
from rebaser_core.streams.subjects import Subjects

EntryKind: TypeAlias = Literal["commits", "requests", "dlq"]

NANOS = 1_000_000_000
PROBE_LIFETIME = 5  # seconds after which nats-server deletes the consumer of a probe that the client failed to delete
PATIENCE = 0.5  # seconds without a message, after which the reader checks whether messages remain
BATCH = 256
HEARTBEAT = 5.0  # seconds
REPLAY_HEARTBEAT = 24 * 3600.0  # seconds; long, because a replay sends no heartbeats between distant messages


@dataclass(frozen=True, slots=True)
class Newest:
    """A start position: the newest `count` messages are read, and then later ones."""

    count: int


EntryReplay: TypeAlias = Literal["instant", "original"]
EntryStart: TypeAlias = int | datetime | Newest | Literal["all", "new"]
"""The start of a reading: a stream sequence, a time with its time zone, a number of newest messages, the beginning of
the stream (`all`), or its current end (`new`)."""


@record
class Entry:
    """A message of a stream.

    - `time_ns`: the time when the message was stored, in Unix nanoseconds. `size`: the size of its payload in bytes.
    - `key`: the change set in the subject; None if the subject does not belong to Rebaser.
    - `content`: the decoded payload; None for a dead letter, which its headers describe, and for a message with a
      `problem`.
    - `problem`: the reason why the message cannot be decoded; None if it can be decoded.
    """

    sequence: int
    time_ns: int
    subject: str
    key: ChangeSetKey | None
    size: int
    headers: Mapping[str, str]
    content: Commit | EnqueueUpdatesRequest | None
    problem: RebaserError | None


async def read_entries(
    js: JetStream,
    subjects: Subjects,
    kind: EntryKind,
    workspace: str | None = None,
    change_set: str | None = None,
    *,
    start: EntryStart = "all",
    follow: bool = False,
    replay: EntryReplay = "instant",
) -> AsyncGenerator[Entry, None]:
    """Yield the messages of one change set, of one workspace, or of all workspaces.

    The iteration ends after the message that was the newest when the iteration began. If `follow` is true, it never
    ends. If `replay` is "original", messages are yielded at the same intervals at which they were stored.

    Raise `ApiError` (error 10059) if the stream does not exist, and `UnprocessableError` for an invalid name.
    """
    stream = {"commits": subjects.commits_stream, "requests": subjects.requests_stream, "dlq": subjects.dlq_stream}
    selection = _Selection(js, stream[kind], _pattern(subjects, kind, workspace, change_set))
    end = (await js.stream_info(selection.stream)).last_sequence
    position = await selection.resolve(start)
    consumer = OrderedConsumer(
        js,
        selection.stream,
        selection.pattern,
        start=position,
        idle_heartbeat=HEARTBEAT if replay == "instant" else REPLAY_HEARTBEAT,
        config={"replay_policy": replay},
    )
    async with consumer:
        while follow or consumer.pending or await selection.has_between(position, end):
            # Without `follow`, the wait has a timeout, because messages may be deleted before they are delivered.
            with anyio.move_on_after(None if follow else PATIENCE):
                await consumer.wait()
            for message in consumer.take(BATCH):
                if not follow and message.stream_sequence > end:
                    return
                yield _entry(subjects, kind, message)
                position = message.stream_sequence + 1


async def read_queue(
    js: JetStream, subjects: Subjects, key: ChangeSetKey, *, after: int = 0, limit: int = 50
) -> list[Entry]:
    """Return up to `limit` messages in the queue of `key`, oldest first, after the stream sequence `after`."""
    found: list[Entry] = []
    while len(found) < limit:
        stored = await js.next(subjects.requests_stream, subjects.requests(key), after + 1)
        if stored is None:
            break
        after = stored.sequence
        found.append(_entry(subjects, "requests", stored))
    return found


@dataclass(frozen=True, slots=True)
class _Selection:
    """The messages of `stream` whose subjects match `pattern`."""

    js: JetStream
    stream: str
    pattern: str

    async def resolve(self, start: EntryStart) -> int:
        """Return the stream sequence at which reading begins."""
        if isinstance(start, int):
            return max(start, 1)
        if isinstance(start, Newest):
            return await self._newest(start.count)
        if isinstance(start, datetime):
            return _next_sequence(await self._probe(deliver_policy="by_start_time", opt_start_time=start.isoformat()))
        return 1 if start == "all" else _next_sequence(await self._probe(deliver_policy="new"))

    async def has_between(self, first: int, last: int) -> bool:
        """Return whether there is a message with a stream sequence from `first` to `last`."""
        message = await self.js.next(self.stream, self.pattern, first) if first <= last else None
        return message is not None and message.sequence <= last

    async def _newest(self, count: int) -> int:
        """Return the stream sequence of the oldest of the newest `count` messages.

        The sequence is found by bisection, because nats-server has no delivery policy that starts at a number of newest
        messages.
        """
        info = await self.js.stream_info(self.stream)
        low, high = max(info.first_sequence, 1), info.last_sequence + 1
        if await self._count(low) <= count:
            return low
        while high - low > 1:  # more than `count` messages are at `low` or later, and fewer at `high` or later
            middle = (low + high) // 2
            messages = await self._count(middle)
            if messages == count:
                return middle
            low, high = (middle, high) if messages > count else (low, middle)
        return low

    async def _count(self, sequence: int) -> int:
        """Return the number of messages at `sequence` or later."""
        return (await self._probe(deliver_policy="by_start_sequence", opt_start_seq=sequence)).num_pending

    async def _probe(self, **policy: Any) -> ConsumerInfo:
        """Create a consumer with the delivery policy `policy`, delete the consumer, and return its description."""
        name = self.js.connection.new_name()
        config = {
            "name": name,
            "filter_subject": self.pattern,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": PROBE_LIFETIME * NANOS,
            **policy,
        }
        try:
            return (await self.js.create_consumer(self.stream, config)).cached_info
        finally:
            await self.js.delete_consumer(self.stream, name)


def _next_sequence(probe: ConsumerInfo) -> int:
    return probe.delivered_stream + 1


def _pattern(subjects: Subjects, kind: EntryKind, workspace: str | None, change_set: str | None) -> str:
    names = [
        "*" if name is None else check_token(name, kind_of_name)
        for name, kind_of_name in ((workspace, "workspace"), (change_set, "change set"))
    ]
    return ".".join([subjects.root, kind, *names])


def _entry(subjects: Subjects, kind: EntryKind, message: Message | StoredMessage) -> Entry:
    sequence, time_ns = (
        (message.sequence, round(datetime.fromisoformat(message.time).timestamp() * NANOS))
        if isinstance(message, StoredMessage)
        else (message.stream_sequence, message.timestamp_ns)
    )
    key: ChangeSetKey | None = None
    content: Commit | EnqueueUpdatesRequest | None = None
    problem: RebaserError | None = None
    try:
        key = subjects.parse(message.subject)[1]
        if kind == "commits":
            content = decode_commit(message.headers, message.data)
        elif kind == "requests":
            content = decode(message.headers, message.data, expect=EnqueueUpdatesRequest)
    except RebaserError as error:
        problem = error
    return Entry(
        sequence,
        time_ns,
        message.subject,
        key,
        len(message.data),
        message.headers,
        content,
        problem,
    )

"""Reads what a stream holds for people and tools: commits, queued requests, dead letters; from any start, in order.

Invariant: what cannot be read is shown as such and never ends the reading: this is what one looks with when something
is wrong.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

import anyio

from rebaser_client.jetstream import ConsumerInfo, JetStream, Message, OrderedConsumer
from rebaser_core.commit import Commit
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey, check_token
from rebaser_core.messages import EnqueueUpdatesRequest, decode, decode_commit
from rebaser_core.subjects import Subjects

EntryKind: TypeAlias = Literal["commits", "requests", "dlq"]

NANOS = 1_000_000_000
PROBE_LASTS = 5  # seconds that a consumer which only counts stays, should nobody delete it
PATIENCE = 0.5  # seconds of silence until we ask whether anything is left
BATCH = 256
HEARTBEAT = 5.0  # seconds
REPLAY_HEARTBEAT = 24 * 3600.0  # seconds; the server sends none while it waits for the time of the next message


@dataclass(frozen=True, slots=True)
class Newest:
    """Begin at the newest `count` messages."""

    count: int


EntryReplay: TypeAlias = Literal["instant", "original"]
EntryStart: TypeAlias = int | datetime | Newest | Literal["all", "new"]
"""A stream sequence, a time (with its zone), the newest so many, or a policy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A message of a stream: stored at `time_ns` (Unix), `size` bytes of payload.

    `content` is None for a dead letter, whose headers say it all, and where `problem` tells why it cannot be read.
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
    """Messages of one change set, of a workspace, or of all. Ends with what was there when it began, or never.

    `replay` original: as far apart in time as they were stored.

    Raises `ApiError` (error 10059) if there is no such stream, `UnprocessableError` for a name that cannot be one.
    """
    stream = {"commits": subjects.commits_stream, "requests": subjects.requests_stream, "dlq": subjects.dlq_stream}
    where = _Selection(js, stream[kind], _pattern(subjects, kind, workspace, change_set))
    end = (await js.stream_info(where.stream)).last_sequence
    position = await where.resolve(start)
    consumer = OrderedConsumer(
        js,
        where.stream,
        where.pattern,
        start=position,
        idle_heartbeat=HEARTBEAT if replay == "instant" else REPLAY_HEARTBEAT,
        config={"replay_policy": replay},
    )
    async with consumer:
        while follow or consumer.pending or await where.has_between(position, end):
            with anyio.move_on_after(None if follow else PATIENCE):  # what was there may be deleted before it comes
                await consumer.wait()
            for message in consumer.take(BATCH):
                if not follow and message.stream_sequence > end:
                    return
                yield _entry(subjects, kind, message)
                position = message.stream_sequence + 1


@dataclass(frozen=True, slots=True)
class _Selection:
    """What is read: the messages of `stream` whose subjects match `pattern`."""

    js: JetStream
    stream: str
    pattern: str

    async def resolve(self, start: EntryStart) -> int:
        """The stream sequence where `start` is now."""
        if isinstance(start, int):
            return max(start, 1)
        if isinstance(start, Newest):
            return await self._newest(start.count)
        if isinstance(start, datetime):
            return _first(await self._probe(deliver_policy="by_start_time", opt_start_time=start.isoformat()))
        return 1 if start == "all" else _first(await self._probe(deliver_policy="new"))

    async def has_between(self, first: int, last: int) -> bool:
        """Whether there is a message with a stream sequence of these, or between them."""
        found = await self.js.next(self.stream, self.pattern, first) if first <= last else None
        return found is not None and found.sequence <= last

    async def _newest(self, count: int) -> int:
        """Bisects, because no policy of the server begins at the newest so many of some subjects."""
        info = await self.js.stream_info(self.stream)
        low, behind = max(info.first_sequence, 1), info.last_sequence + 1
        if await self._count(low) <= count:
            return low
        while behind - low > 1:  # more than `count` begin at `low`, fewer at `behind`
            middle = (low + behind) // 2
            found = await self._count(middle)
            if found == count:
                return middle
            low, behind = (middle, behind) if found > count else (low, middle)
        return low

    async def _count(self, sequence: int) -> int:
        """How many messages there are from `sequence` on."""
        return (await self._probe(deliver_policy="by_start_sequence", opt_start_seq=sequence)).num_pending

    async def _probe(self, **policy: Any) -> ConsumerInfo:
        """What the server says about a consumer with this policy."""
        name = self.js.connection.new_name()
        config = {
            "name": name,
            "filter_subject": self.pattern,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": PROBE_LASTS * NANOS,
            **policy,
        }
        try:
            return (await self.js.create_consumer(self.stream, config)).cached_info
        finally:
            await self.js.delete_consumer(self.stream, name)


def _first(probe: ConsumerInfo) -> int:
    return probe.delivered_stream + 1


def _pattern(subjects: Subjects, kind: EntryKind, workspace: str | None, change_set: str | None) -> str:
    names = [
        "*" if given is None else check_token(given, what)
        for given, what in ((workspace, "workspace"), (change_set, "change set"))
    ]
    return ".".join([subjects.root, kind, *names])


def _entry(subjects: Subjects, kind: EntryKind, message: Message) -> Entry:
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
        message.stream_sequence,
        message.timestamp_ns,
        message.subject,
        key,
        len(message.data),
        message.headers,
        content,
        problem,
    )

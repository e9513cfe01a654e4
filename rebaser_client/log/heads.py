"""Reads the headers of the newest commit of every change set, of one workspace or of all workspaces.

Invariant: a call of `HeadReader.read` reads the headers of about `FEW` commits at most, or of `MANY` for each change
set if that is more. It reads the payload of one commit, and of one more after each second in which NATS delivers
nothing. So the cost hardly depends on the contents of commits, or on how many were stored.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, overload

import anyio

from rebaser_client.cooperative import cooperate
from rebaser_client.jetstream import JetStream, Message, OrderedConsumer
from rebaser_client.jetstream.ordered.position import Start
from rebaser_core.encoding.envelope import Headers
from rebaser_core.ids import ChangeSetKey, is_key
from rebaser_core.messages import is_deleted
from rebaser_core.streams.subjects import Subjects

T = TypeVar("T")

SILENCE = 1.0  # seconds without a message, after which the reader asks NATS whether there are more
CHUNK = 512  # number of messages that are read before other tasks run
MANY = 3  # new messages for each log, above which reading all logs costs less than reading all new messages
FEW = 500  # new messages that are always read, because this takes milliseconds and counts them exactly


class Head(NamedTuple):
    """The newest message in the log of a change set: its log sequence, the time when it was stored (in Unix
    nanoseconds), and its headers."""

    sequence: int
    timestamp_ns: int
    headers: Headers

    @property
    def is_deleted(self) -> bool:
        """Whether the change set is deleted."""
        return is_deleted(self.headers)


@dataclass(frozen=True, slots=True)
class NewHeads(Generic[T]):
    """The result of `HeadReader.read`: the newest message of each log that has changed, and the number of its new
    messages.

    `commits` is exact if there are few new messages. Otherwise, it may be an estimate of at least 1, and if the reader
    reads only one workspace, a lower bound.

    If `anew` is true, `heads` contains all logs, and replaces what earlier calls returned; `commits` is empty.
    """

    anew: bool
    heads: dict[ChangeSetKey, T]
    commits: dict[ChangeSetKey, int]


class HeadReader(Generic[T]):
    """Reads the newest message of each log, and in later calls what was stored since the previous call.

    `shorten` makes what `read` returns of each message. An installation may have so many logs that their headers take
    much memory, so what the caller does not need should be left out. Without it, `read` returns each `Head`.

    Each call creates a consumer, reads up to the present end of the stream, and deletes the consumer. A consumer that
    stays would get each commit as soon as it is stored. This costs NATS and the reader several times as much as the
    same commits in one go, because each delivery then wakes up both of them.
    """

    @overload
    def __init__(self: "HeadReader[Head]", js: JetStream, subjects: Subjects, workspace: str | None = None) -> None: ...

    @overload
    def __init__(
        self, js: JetStream, subjects: Subjects, workspace: str | None, shorten: Callable[[ChangeSetKey, Head], T]
    ) -> None: ...

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        workspace: str | None = None,
        shorten: Callable[[ChangeSetKey, Head], Any] = lambda _, head: head,
    ) -> None:
        self._js = js
        self._stream = subjects.commits_stream
        self._workspace = workspace
        self._root = f"{subjects.root}.commits."
        self._pattern = f"{self._root}{workspace or '*'}.*"
        self._shorten = shorten
        self._created = ""
        self._read = 0  # log sequence up to which everything has been read
        self._seen = 0  # the end of the stream in the last call
        self._logs = 0  # a lower bound of the number of logs that match the pattern
        self._counts: dict[str, int] | None = None  # of messages by subject; None until they are known

    async def read(self, most: int | None = None) -> NewHeads[T]:
        """Return what is new. After an error, the next call returns it. Calls must not overlap.

        If more than `most` messages came since the previous call, nothing is read or returned. A later call returns
        them, at the latest the first one before which few messages came.

        Raise `ApiError` if the stream of commits does not exist.
        """
        info = await self._js.stream_info(self._stream)
        anew = info.created != self._created or info.last_sequence < self._read
        before = 0 if anew else self._read
        new = info.last_sequence - before
        recent = info.last_sequence - max(before, 0 if anew else self._seen)
        self._seen = info.last_sequence
        if most is not None and recent > most:
            return NewHeads(False, {}, {})
        if not new or await self._js.next(self._stream, self._pattern, before + 1) is None:
            self._created, self._read = info.created, info.last_sequence
            if anew:
                self._logs, self._counts = 0, {}
            return NewHeads(anew, {}, {})
        commits, counts = dict[str, int](), self._counts
        if anew:
            heads, _, read = await self._read_from("last_per_subject", 0, count=False)
            logs, counts = len(heads), None
        elif new <= max(MANY * self._logs, FEW):
            heads, commits, read = await self._read_from(before + 1, before)
            logs = max(len(heads), self._logs)
            if counts is not None:
                for subject, number in commits.items():
                    counts[subject] = counts.get(subject, 0) + number
        else:
            counts = await self._js.subject_counts(self._stream, self._pattern)
            heads, changed, read = await self._read_from("last_per_subject", before)
            logs = max(len(counts), self._logs)
            commits = self._new_messages(changed, counts, new)
        self._created, self._read, self._logs, self._counts = info.created, read, logs, counts
        return NewHeads(anew, heads, {} if anew else {key: commits[self._subject(key)] for key in heads})

    async def _read_from(
        self, start: Start, read: int, *, count: bool = True
    ) -> tuple[dict[ChangeSetKey, T], dict[str, int], int]:
        """Read to the end of the stream. Return what `shorten` makes of the newest message of each log, the number of
        messages that were read of each subject, if `count` is true, and the log sequence up to which everything was
        read. Messages up to the log sequence `read` are left out."""
        heads: dict[ChangeSetKey, T] = {}
        counts: dict[str, int] = {}
        before = read
        async with OrderedConsumer(self._js, self._stream, self._pattern, start=start, headers_only=True) as consumer:
            # This is asked after the consumer was created. Otherwise, a log whose newest message was stored in between
            # would be missing, because its older messages are not delivered.
            end = (await self._js.stream_info(self._stream)).last_sequence
            while read < end:
                with anyio.move_on_after(SILENCE):
                    await consumer.wait()
                if not consumer.pending and await self._js.next(self._stream, self._pattern, read + 1) is None:
                    return heads, counts, end  # the remaining messages were deleted meanwhile
                taken = consumer.take(CHUNK)
                newest: dict[str, Message] = {}
                for message in taken:
                    if message.stream_sequence > before:
                        newest[message.subject] = message
                        if count:
                            counts[message.subject] = counts.get(message.subject, 0) + 1
                for subject, message in newest.items():
                    if (key := self._key(subject)) is not None:
                        head = Head(message.stream_sequence, message.timestamp_ns, message.headers)
                        heads[key] = self._shorten(key, head)
                if taken:
                    read = taken[-1].stream_sequence
                    if not taken[-1].pending:
                        break  # no more messages match, for example because they are of other workspaces
                await cooperate()
        return heads, counts, read

    def _key(self, subject: str) -> ChangeSetKey | None:
        """Return the change set whose log has this subject; None if it is the log of none."""
        name = subject[len(self._root) :]
        if not is_key(name):
            return None
        workspace, _, change_set = name.partition(".")
        return ChangeSetKey(sys.intern(workspace), change_set)

    def _subject(self, key: ChangeSetKey) -> str:
        return f"{self._root}{key.workspace}.{key.change_set}"

    def _new_messages(self, changed: Collection[str], counts: Mapping[str, int], new: int) -> dict[str, int]:
        """Return the number of new messages of each subject in `changed`. `counts` says how many it has now, and `new`
        is the number of all new messages in the stream.

        This is the number by which the subject has grown, which is too low if messages of it were also deleted. A
        subject has not grown if, for example, a checkpoint has deleted more commits than were stored. Such subjects get
        equal shares of the new messages that the other subjects do not account for. If the earlier counts are not
        known, these are all subjects. A reader of one workspace does not know how many of the new messages are of other
        workspaces, so each of these subjects gets 1, which is a lower bound.

        A message that was stored after they were counted is included in the next call.
        """
        before = self._counts
        grown: dict[str, int] = {}
        if before is not None:
            growth = {subject: counts.get(subject, 0) - before.get(subject, 0) for subject in changed}
            grown = {subject: number for subject, number in growth.items() if number > 0}
        share, others = 1, len(changed) - len(grown)
        if self._workspace is None and others:
            share = max(round((new - sum(grown.values())) / others), 1)
        return {subject: grown.get(subject, share) for subject in changed}


async def read_heads(js: JetStream, subjects: Subjects, workspace: str | None = None) -> dict[ChangeSetKey, Head]:
    """Return the newest message of each log, by change set. Raise `ApiError` if the stream of commits does not
    exist."""
    return (await HeadReader(js, subjects, workspace).read()).heads

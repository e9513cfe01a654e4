"""Reads the headers of the newest commit of every change set, of one workspace or of all workspaces.

Invariant: the payload of at most one commit is read, so the cost depends on the number of change sets, and later on the
number of new commits, not on their contents.
"""

from typing import NamedTuple

import anyio

from rebaser_client.cooperative import cooperate
from rebaser_client.jetstream import JetStream, Message, OrderedConsumer
from rebaser_client.jetstream.ordered.position import Start
from rebaser_core.encoding.envelope import Headers
from rebaser_core.ids import ChangeSetKey, is_key
from rebaser_core.messages import is_deleted
from rebaser_core.streams.subjects import Subjects

SILENCE = 1.0  # seconds without a message, after which the reader asks NATS whether there are more
CHUNK = 512  # number of messages that are read before other tasks run


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


class NewHeads(NamedTuple):
    """The result of `HeadReader.read`: the newest message of each log that has changed, and the number of its new
    messages.

    If `anew` is true, `heads` contains all logs, and replaces what earlier calls returned; `commits` is meaningless.
    """

    anew: bool
    heads: dict[ChangeSetKey, Head]
    commits: dict[ChangeSetKey, int]


class HeadReader:
    """Reads the newest message of each log, and in later calls what was stored since the previous call.

    Each call creates a consumer, reads up to the present end of the stream, and deletes the consumer. A consumer that
    stays would get each commit as soon as it is stored. This costs NATS and the reader several times as much as the
    same commits in one go, because each delivery then wakes up both of them.
    """

    def __init__(self, js: JetStream, subjects: Subjects, workspace: str | None = None) -> None:
        self._js = js
        self._stream = subjects.commits_stream
        self._root = f"{subjects.root}.commits."
        self._pattern = f"{self._root}{workspace or '*'}.*"
        self._created = ""
        self._read = 0  # log sequence up to which everything has been read

    async def read(self) -> NewHeads:
        """Return what is new. After an error, the next call returns it.

        Raise `ApiError` if the stream of commits does not exist.
        """
        info = await self._js.stream_info(self._stream)
        anew = info.created != self._created or info.last_sequence < self._read
        after = 0 if anew else self._read
        messages: dict[str, Message] = {}
        counts: dict[str, int] = {}
        if info.last_sequence > after and await self._exists(after + 1):
            start: Start = "last_per_subject" if anew else after + 1
            read = await self._read_after(after, start, messages, counts)
        else:
            read = info.last_sequence
        self._created, self._read = info.created, read
        found = NewHeads(anew, {}, {})
        for subject, message in messages.items():
            name = subject[len(self._root) :]
            if is_key(name):  # otherwise, this is not the log of a change set
                names = name.partition(".")
                key = ChangeSetKey(names[0], names[2])
                found.heads[key] = Head(message.stream_sequence, message.timestamp_ns, message.headers)
                found.commits[key] = counts[subject]
        return found

    async def _read_after(self, after: int, start: Start, messages: dict[str, Message], counts: dict[str, int]) -> int:
        """Add the newest message of each subject, and the number of messages, beyond the log sequence `after`. Return
        the log sequence up to which everything was read."""
        async with OrderedConsumer(self._js, self._stream, self._pattern, start=start, headers_only=True) as consumer:
            # This is asked after the consumer was created. Otherwise, a log whose newest message was stored in between
            # would be missing, because its older messages are not delivered.
            end = (await self._js.stream_info(self._stream)).last_sequence
            while after < end:
                with anyio.move_on_after(SILENCE):
                    await consumer.wait()
                if not consumer.pending and not await self._exists(after + 1):
                    return end  # the remaining messages were deleted meanwhile
                taken = consumer.take(CHUNK)
                for message in taken:
                    messages[message.subject] = message
                    counts[message.subject] = counts.get(message.subject, 0) + 1
                    after = message.stream_sequence
                if taken and not message.pending:
                    break  # no more messages match, for example because they are of other workspaces
                await cooperate()
        return after

    async def _exists(self, sequence: int) -> bool:
        return await self._js.next(self._stream, self._pattern, sequence) is not None


async def read_heads(js: JetStream, subjects: Subjects, workspace: str | None = None) -> dict[ChangeSetKey, Head]:
    """Return the newest message of each log, by change set. Raise `ApiError` if the stream of commits does not
    exist."""
    return (await HeadReader(js, subjects, workspace).read()).heads

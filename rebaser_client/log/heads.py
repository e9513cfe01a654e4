"""Reads the headers of the newest commit of every change set, of one workspace or of all workspaces.

Invariant: no payload is read, so the cost depends only on the number of change sets, not on their contents.
"""

from typing import NamedTuple

import anyio

from rebaser_client.cooperative import cooperate
from rebaser_client.jetstream import JetStream, OrderedConsumer
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


async def read_heads(js: JetStream, subjects: Subjects, workspace: str | None = None) -> dict[ChangeSetKey, Head]:
    """Return the newest message of each log, by change set. Raise `ApiError` if the stream of commits does not
    exist."""
    stream, head = subjects.commits_stream, f"{subjects.root}.commits."
    pattern = f"{head}{workspace or '*'}.*"
    heads: dict[ChangeSetKey, Head] = {}
    last = await js.last(stream, pattern)
    if last is None:
        return heads
    read = 0
    async with OrderedConsumer(js, stream, pattern, start="last_per_subject", headers_only=True) as consumer:
        while read < last.sequence:
            with anyio.move_on_after(SILENCE):
                await consumer.wait()
            if not consumer.pending and await js.next(stream, pattern, read + 1) is None:
                break  # the remaining messages were deleted meanwhile
            for message in consumer.take(CHUNK):
                read = message.stream_sequence
                name = message.subject[len(head) :]
                if is_key(name):  # otherwise, this is not the log of a change set
                    names = name.partition(".")
                    heads[ChangeSetKey(names[0], names[2])] = Head(read, message.timestamp_ns, message.headers)
            await cooperate()
    return heads

"""Finds every blob address in the stored messages: commits, queued requests and dead letters.

Addresses move from message to message: from a dead letter to a request, from a request to a commit, from a commit to a
later commit. For this reason, dead letters are read before requests, requests before commits, and commits in stream
order, up to the end of the log at the moment when the reader reaches it. As long as there is always some message that
refers to a blob, the reader finds the blob in at least one message.

Invariant: all addresses in the messages that were read are returned. Requests, dead letters and messages of other
programs are searched for addresses even if they cannot be decoded. If a commit, a checkpoint or a list of addresses
cannot be read, or has an unknown version, an error is raised, because the blobs that it needs cannot be found.
"""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import anyio
from anyio import lowlevel

from rebaser_client.blobs import BlobMissing, BlobStore
from rebaser_client.jetstream import JetStream, Message, OrderedConsumer
from rebaser_client.logs import get_logger
from rebaser_client.pace import Pace
from rebaser_core.blobs.address import find_addresses, is_address
from rebaser_core.checkpoint import open_checkpoint
from rebaser_core.errors import UnprocessableError, UnsupportedVersion
from rebaser_core.messages import (
    decode_addresses,
    decode_commit,
    peek,
    read_blobs,
)
from rebaser_core.messages.commit import check_is_commit
from rebaser_core.messages.dead_letter import PAYLOAD_ADDRESS
from rebaser_core.messages.headers.branches import LIST
from rebaser_core.record import record
from rebaser_core.streams.subjects import Subjects

log = get_logger(__name__)

SILENCE = 1.0  # seconds without a message, after which the reader asks NATS whether there are more
CHUNK = 512  # number of messages that are read before other tasks run
NAMES_BLOBS = 3  # the first version of commits with a header that lists all of their blobs
_ESCAPED = re.compile(rb"\\u00([0-7][0-9a-fA-F])")  # an ASCII character that is escaped in JSON


@record
class Reference:
    """The first message in which the address of a blob was found.

    `message` is the type of the message: `commit`, `request` or `dead_letter`. `sequence` and `subject` are the stream
    sequence and the subject of the message.
    """

    address: str
    message: str
    subject: str
    sequence: int


class ReferenceReader:
    """Reads the references to blobs in the messages of one installation.

    All methods raise `TransientError` if NATS or a blob is not available, `UnsupportedVersion` for a commit or blob of
    a newer version, and `UnprocessableError` for a damaged commit or blob.

    Reading is background work: it rests after each turn, as `pace` says.
    """

    def __init__(self, js: JetStream, subjects: Subjects, blobs: BlobStore, *, pace: Pace | None = None) -> None:
        self._js = js
        self._subjects = subjects
        self._blobs = blobs
        self._pace = pace or Pace()

    async def last(self) -> int:
        """Return the log sequence of the newest commit of all change sets."""
        return (await self._js.stream_info(self._subjects.commits_stream)).last_sequence

    async def queued(self) -> dict[str, Reference]:
        """Return the references to blobs in dead letters and queued requests, by address."""
        found: dict[str, Reference] = {}
        subjects = self._subjects
        # Dead letters are read again at the end, because requests may become dead letters meanwhile.
        for stream, kind in (
            (subjects.dlq_stream, "dead_letter"),
            (subjects.requests_stream, "request"),
            (subjects.dlq_stream, "dead_letter"),
        ):
            async for message in self._messages(stream, ">", 1, None, headers_only=False):
                for address in await self._in_request(message):
                    found.setdefault(address, Reference(address, kind, message.subject, message.stream_sequence))
        return found

    async def commits(self, after: int = 0, until: int | None = None) -> dict[str, Reference]:
        """Return the references to blobs in all commits after log sequence `after` up to `until`, by address.

        If `until` is None, all later commits are read.
        """
        found: dict[str, Reference] = {}
        checkpoints: set[str] = set()
        pattern = f"{self._subjects.root}.commits.*.*"
        stream = self._subjects.commits_stream
        async for message in self._messages(stream, pattern, after + 1, until, headers_only=True):
            for address in await self._in_commit(message, checkpoints):
                found.setdefault(address, Reference(address, "commit", message.subject, message.stream_sequence))
        return found

    async def _messages(
        self, stream: str, pattern: str, first: int, until: int | None, *, headers_only: bool
    ) -> AsyncIterator[Message]:
        """Yield the messages from sequence `first` to `until`, or to the last message if `until` is None.

        Messages that are added while this reads are read without a rest. Otherwise, a log that grows faster than it is
        read with rests would have no end.
        """
        start = await self._js.next(stream, pattern, first)
        if start is None:
            return
        read = start.sequence - 1
        older: int | None = None  # the number of unread messages that were there when the first one was read
        async with OrderedConsumer(
            self._js, stream, pattern, start=start.sequence, headers_only=headers_only
        ) as consumer:
            while until is None or read < until:
                with anyio.move_on_after(SILENCE):
                    await consumer.wait()
                messages = consumer.take(CHUNK)
                self._pace.begin()
                for message in messages:
                    read = message.stream_sequence
                    if until is not None and read > until:
                        return
                    older = message.pending if older is None else older - 1
                    yield message
                    if older >= 0:
                        await self._pace.rest()
                if (not messages or not messages[-1].pending) and not consumer.pending:
                    following = await self._js.next(stream, pattern, read + 1)
                    if following is None or (until is not None and following.sequence > until):
                        return
                await lowlevel.checkpoint()

    async def _in_commit(self, message: Message, checkpoints: set[str]) -> set[str]:
        """Return the addresses in a message of a log.

        `checkpoints` are the addresses of the checkpoints that were read before. This method adds the addresses of the
        checkpoints that it reads.
        """
        with _explained(message):
            named = read_blobs(message.headers)
        lists = [address[len(LIST) :] for address in named if address.startswith(LIST)]
        found = {*named, *lists} - {LIST + address for address in lists}
        for address in lists:
            found |= set(decode_addresses(await self._blobs.get(address)))
        is_commit = _is_commit(message)
        with _explained(message):
            if is_commit and peek(message.headers).version >= NAMES_BLOBS:
                return found
        stored = await self._js.get(self._subjects.commits_stream, message.stream_sequence)
        if stored is None:
            return found
        found |= _find(stored.data)
        if not is_commit:
            return found
        with _explained(message):
            checkpoint = decode_commit(stored.headers, stored.data).checkpoint
        if checkpoint is not None and checkpoint.address not in checkpoints:
            checkpoints.add(checkpoint.address)
            found |= await self._in_checkpoint(checkpoint.address)
        return found

    async def _in_checkpoint(self, address: str) -> set[str]:
        """Return the addresses of the parts of a checkpoint, and all other addresses in it."""
        newest = await self._blobs.get(address)
        return find_addresses(newest) | {part.address for part in open_checkpoint(newest, address).before}

    async def _in_request(self, message: Message) -> set[str]:
        """Return the addresses in a request or a dead letter."""
        found = _find(message.data)
        payload = message.headers.get(PAYLOAD_ADDRESS)
        if payload is not None and is_address(payload):
            found.add(payload)
            try:
                found |= _find(await self._blobs.get(payload))
            except BlobMissing as error:
                log.warning("dead_letter_without_payload", address=payload, reason=error.message)
        return found


def _find(data: bytes) -> set[str]:
    """Return the addresses in `data`, the payload of a message of any type and version, in CBOR or JSON."""
    found = find_addresses(data)
    if b"\\u00" in data:
        found |= find_addresses(_ESCAPED.sub(lambda escape: bytes.fromhex(escape[1].decode()), data))
    return found


def _is_commit(message: Message) -> bool:
    """Return whether the headers of a message say that it is a commit. All other messages in a log are ignored."""
    try:
        check_is_commit(message.headers)
    except UnprocessableError:
        return False
    return True


@contextmanager
def _explained(message: Message) -> Iterator[None]:
    """Add to each error of the `with` block which commit cannot be read, and what to do about it."""
    which = f"commit {message.stream_sequence} on {message.subject} may need blobs that this program cannot find"
    try:
        yield
    except UnsupportedVersion as error:
        text = f"{which}: {error.message}; collect garbage with the newest version that is in use"
        raise UnsupportedVersion(text) from error
    except UnprocessableError as error:
        advice = (
            "repair this log with `rebaser doctor`; garbage collection resumes once the history before it is purged"
        )
        text = f"{which}: {error.message}; {advice}"
        raise UnprocessableError(text, code=error.code) from error

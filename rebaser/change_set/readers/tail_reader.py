"""Copies the commits that follow a checkpoint in the log of a parent, for a change set that is created from the parent.

Invariant: the copied commits come from one log, and none is missing between them, even if `TailCache` provides some of
them. A cached copy is used only if the last message that it was made from is still in the log, unchanged.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias

from rebaser.runtime.context import Context
from rebaser.runtime.tail_cache import Tail
from rebaser_client.cooperative import cooperate, run_offloaded
from rebaser_client.jetstream import OrderedConsumer, StoredMessage
from rebaser_client.log.commits import DAMAGED, FOREIGN, MAX_BLOB
from rebaser_core import thresholds
from rebaser_core.commit import Commit, Kind, TailRow
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import (
    check_tail,
    copy_row,
    decode_addresses,
    decode_tail,
    encode_tail,
    join_tails,
    read_blobs,
)
from rebaser_core.messages.headers.branches import LIST
from rebaser_core.state.change_set import BrokenChain

_Message: TypeAlias = tuple[int, dict[str, str], bytes]
"""The sequence, headers and payload of a message."""


class TailReader:
    """Copies commits from the log of the change set `parent`."""

    def __init__(self, context: Context, parent: ChangeSetKey) -> None:
        self._context = context
        self._reader = context.reader
        self._cache = context.tails
        self._stream = context.subjects.commits_stream
        self._subject = context.subjects.commits(parent)
        self._parent = parent

    async def read(self, newest: StoredMessage, commit: Commit, *, may_be_purged: bool) -> Tail | None:
        """Return the commits after the checkpoint to which `commit` refers, up to `commit` itself. Return None if these
        commits are too large to be copied.

        `newest` is the message that contains `commit`. `may_be_purged` tells whether the log may have a message after
        `newest`. If so, older messages may have been purged.

        Raise `BrokenChain` if messages are missing, and `TransientError` if the log or a blob cannot be read.
        """
        tail = self._cache.get(self._parent, newest)
        if tail is None:
            async with self._cache.reading(self._parent, newest) as kept:
                tail = kept or await self._read(newest, commit)
                if kept is None and tail is not None:
                    self._cache.add(self._parent, tail)
            if kept is None or tail is None:
                return tail
        if may_be_purged and tail.first < newest.sequence and await self._get(tail.first) is None:
            self._cache.drop(self._parent, newest.sequence)
            raise BrokenChain(f"commit {tail.first} is no longer in the log")
        return tail

    async def since(self, older: StoredMessage, newest: StoredMessage) -> Tail | None:
        """Return the commits after the message `older`, up to the message `newest`. Return None if the commits are too
        large to be copied, or if `older` is no longer in the log.

        The result is not cached. Raise the errors of `read`.
        """
        room = thresholds.now.tail_max_bytes + len(older.data)
        messages = await self._messages(older.sequence, newest.sequence, room)
        if messages is None or messages[0] != _of(older) or messages[-1] != _of(newest):
            return None
        rows, named = await self._rows(messages[1:])
        size = sum(len(data) for _, _, data in messages[1:])
        data, needed = await self._encoded(rows, named, older.sequence, newest.sequence, size)
        return Tail(older.sequence, older.sequence, newest, size, data, _kept(rows, data), needed)

    async def _read(self, newest: StoredMessage, commit: Commit) -> Tail | None:
        after = 0 if commit.checkpoint is None else commit.checkpoint.sequence
        shorter = None
        if commit.kind is not Kind.CREATE:
            shorter = self._cache.before(self._parent, newest.sequence, after)
        if shorter is not None and shorter.newest.sequence >= commit.begin:
            with suppress(BrokenChain):  # the cached copy is from another log, or the log was purged
                return await self._extended(shorter, newest, commit)
        last: _Message = (newest.sequence, newest.headers, newest.data)
        if commit.kind is Kind.CREATE or (not commit.begin and commit.previous == after):
            messages: Sequence[_Message] | None = [last]
        else:
            room = thresholds.now.tail_max_bytes
            messages = await self._messages(commit.begin or after + 1, newest.sequence, room)
        if not messages:
            return None
        rows, named = await self._rows(messages)
        size = sum(len(data) for _, _, data in messages)
        data, needed = await self._encoded(rows, named, after, newest.sequence, size)
        return Tail(after, messages[0][0], newest, size, data, _kept(rows, data), needed)

    async def _extended(self, shorter: Tail, newest: StoredMessage, commit: Commit) -> Tail | None:
        """Return `shorter` with the commits after it, up to `newest`; None if these commits are too large.

        Raise `BrokenChain` if the log no longer contains the last commit of `shorter`, or if `shorter` needs blobs and
        the log no longer contains its first commit.
        """
        until, room = shorter.newest.sequence, thresholds.now.tail_max_bytes - shorter.size
        if commit.previous == until:
            found = await self._get(until)
            messages: Sequence[_Message] | None = [] if found is None else [_of(found), _of(newest)]
        else:
            messages = await self._messages(until, newest.sequence, room + len(shorter.newest.data))
        if messages is None:
            return None
        if len(messages) < 2 or messages[0] != _of(shorter.newest):
            raise BrokenChain(f"commit {until} is no longer in the log, or differs from the copied commit")
        # Without its first commit, the log no longer keeps the blobs that the copied commits need.
        if shorter.needed and shorter.first < until and await self._get(shorter.first) is None:
            raise BrokenChain(f"commit {shorter.first} is no longer in the log")
        rows, named = await self._rows(messages[1:])
        size = sum(len(data) for _, _, data in messages[1:])
        added, needed = await self._encoded(rows, named, until, newest.sequence, size)
        data = join_tails(shorter.data, added)
        known = None if shorter.rows is None else _kept(shorter.rows + rows, data)
        needed = tuple(dict.fromkeys([*shorter.needed, *needed]))
        return Tail(shorter.after, shorter.first, newest, shorter.size + size, data, known, needed)

    async def _encoded(
        self, rows: tuple[TailRow, ...], named: tuple[str, ...], after: int, until: int, size: int
    ) -> tuple[bytes, tuple[str, ...]]:
        """Return `rows` in encoded form, and the addresses of the blobs that they need.

        `rows` are copies of all commits after log sequence `after`, up to `until`, whose payloads have `size` bytes.
        `named` are the addresses of the blobs that the headers of these commits list.

        Raise `BrokenChain` if a commit is missing among `rows`.
        """
        try:
            commits = await run_offloaded(size, check_tail, rows, after, until)
        except UnprocessableError as error:
            raise BrokenChain(error.message) from error
        parts = [part.address for each in commits for part in (each.delta_blob, each.before_blob) if part is not None]
        needed = tuple(dict.fromkeys([*named, *parts]))  # older servers did not list the parts in headers
        return await run_offloaded(size, _encode, rows), needed

    async def _get(self, sequence: int) -> StoredMessage | None:
        """Return the message at `sequence` of the parent's log; None if it is no longer there."""
        message = await self._context.js.get(self._stream, sequence)
        return message if message is not None and message.subject == self._subject else None

    async def _messages(self, start: int, until: int, room: int) -> Sequence[_Message] | None:
        """Return the messages from `start` to `until`; None if their payloads have more than `room` bytes."""
        messages: list[_Message] = []
        async with OrderedConsumer(self._context.js, self._stream, self._subject, start=start) as consumer:
            async for message in consumer:
                await cooperate()
                room -= len(message.data)
                if room < 0:
                    return None
                messages.append((message.stream_sequence, message.headers, message.data))
                if message.stream_sequence >= until:
                    break
        return messages

    async def _rows(self, messages: Iterable[_Message]) -> tuple[tuple[TailRow, ...], tuple[str, ...]]:
        """Return copies of `messages`, and the addresses of the blobs that their headers list.

        If the parent was itself created from a change set, the rows that its `create` commit copied come first. So a
        reader never has to follow a chain of parents.
        """
        rows: list[TailRow] = []
        needed: dict[str, None] = {}
        for sequence, headers, data in messages:
            await cooperate()
            try:
                row = copy_row(sequence, headers, data)
            except UnprocessableError as error:
                if error.code != FOREIGN:
                    raise TransientError(f"commit {sequence} is damaged: {error.message}", code=DAMAGED) from error
                rows.append(TailRow(sequence))
                continue
            if row.body is not None and row.body.get("kind") == Kind.CREATE.value:
                created = self._reader.decode(sequence, headers, data)
                origin = None if created is None else (await self._reader.with_tail(created)).origin
                rows += () if origin is None else origin.tail
            rows.append(row)
            needed |= dict.fromkeys(await self._named(headers))
        return tuple(rows), tuple(needed)

    async def _named(self, headers: dict[str, str]) -> tuple[str, ...]:
        addresses = read_blobs(headers)
        if len(addresses) == 1 and addresses[0].startswith(LIST):
            return decode_addresses(await self._context.blobs.get(addresses[0][1:], max_bytes=MAX_BLOB))
        return addresses


def _of(message: StoredMessage) -> _Message:
    return message.sequence, message.headers, message.data


def _kept(rows: tuple[TailRow, ...] | None, data: bytes) -> tuple[TailRow, ...] | None:
    """Return `rows`, whose encoded form is `data`; None if they take too much memory."""
    return rows if len(data) <= thresholds.now.inline_tail_max_bytes else None


def _encode(rows: tuple[TailRow, ...]) -> bytes:
    data = encode_tail(rows)
    if decode_tail(data) != rows:
        raise RuntimeError("copied commits do not decode to the commits that were encoded")
    return data

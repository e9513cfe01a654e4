"""Reads the commits of a change set: the newest commit, the commits up to a position, or new commits as they are
appended.

Invariant: a damaged commit is never skipped. This module loads no state, and does not need NumPy.
"""

from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from rebaser_client.blobs import BlobStore
from rebaser_client.cooperative import cooperate, run_offloaded
from rebaser_client.jetstream import JetStream, Message, OrderedConsumer, StoredMessage
from rebaser_client.log.positions import At, PositionPurged, check_at
from rebaser_client.logs import get_logger
from rebaser_core.commit import BlobRef, BranchStatus, Commit, Kind
from rebaser_core.errors import RebaserError, TransientError, UnprocessableError
from rebaser_core.history import readable
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import decode_commit, decode_delta, decode_replay, decode_tail
from rebaser_core.streams.subjects import Subjects

log = get_logger(__name__)

MAX_BLOB = 2**31  # bytes
FOREIGN = "foreign"  # the code of the error that `decode_commit` raises for a message that is not a commit
DAMAGED = "damaged_commit"
LASTING_CODES = (DAMAGED, "damaged_checkpoint", "blob_missing", "blob_corrupt")  # errors that a retry rarely resolves
SINGLY = 3  # commits that are read one by one before the first page, because many callers need no more
FIRST_PAGE, MAX_PAGE, GROWTH = 64, 16_384, 16  # commits on the first and the largest page; factor between pages
MAX_SPREAD = 64  # upper bound for the estimated stream sequences per commit, which determine the size of a page
PAGE_BYTES = 16 * 1024 * 1024
RESOLUTION = timedelta(microseconds=1)  # the resolution of times in arguments

_Raw: TypeAlias = tuple[int, Mapping[str, str], bytes]
"""A message: its sequence, headers and payload."""


class CommitReader:
    """Reads the commits of one installation. Messages are read through `js`, and large deltas through `blobs`."""

    def __init__(self, js: JetStream, subjects: Subjects, blobs: BlobStore) -> None:
        self._js = js
        self._subjects = subjects
        self._blobs = blobs

    async def last(self, key: ChangeSetKey) -> Commit | None:
        """Return the newest commit of `key`, without loading its delta; None if there is no commit.

        Raise `TransientError` for a damaged commit.
        """
        found = await self.newest_commit(key)
        return None if found is None else found[1]

    async def newest_message(self, key: ChangeSetKey, at: At | None = None) -> StoredMessage | None:
        """Return the newest message in the log of `key` at or before the position `at`; None if there is no message.

        If `at` is a time, the result is the newest message that was stored at or before that time. If `at` is None, the
        result is the newest of all messages. The log is scanned only if the message that follows the position cannot be
        decoded.

        Raise `PositionPurged` if the message at the position was purged, and `UnprocessableError` with code
        `no_such_position` for a sequence that the stream has not reached.
        """
        stream, subject = self._subjects.commits_stream, self._subjects.commits(key)
        if at is None:
            return await self._js.last(stream, subject)
        check_at(at)
        if isinstance(at, datetime):
            following = await self._js.next_since(stream, subject, at + RESOLUTION)
        else:
            following = await self._js.next(stream, subject, at)
            if following is not None and following.sequence == at:
                return following
        if following is None:
            if isinstance(at, int):
                await self._check_reached(key, at)
            last = await self._js.last(stream, subject)
            # `last` may have been appended since the search above, so it may be after the position.
            return last if last is None or not _is_after(last, at) else await self.newest_message(key, at)
        previous = await self._previous(key, following)
        if previous == 0:
            return None
        message = await self._js.get(stream, previous)
        if message is None or message.subject != subject:
            raise await self.purged(key, at)
        return message

    async def newest_commit(self, key: ChangeSetKey, at: At | None = None) -> tuple[StoredMessage, Commit] | None:
        """Return the newest commit of `key` at or before the position `at`, and its message. Its delta is not loaded.

        Return None if there is no such commit. Raise the errors of `newest_message`, and `TransientError` for a
        damaged commit.
        """
        message = await self.newest_message(key, at)
        while message is not None:
            commit = self.decode(message.sequence, message.headers, message.data)
            if commit is not None:
                return message, commit
            message = await self.newest_message(key, message.sequence - 1)  # this message is not a commit
        return None

    async def commit_at(self, key: ChangeSetKey, at: At | None) -> Commit | None:
        """Return the newest commit of `key` at or before the position `at`. Its delta is not loaded.

        Return None if there is no such commit. Raise the errors of `newest_message`, and `TransientError` for a
        damaged commit.
        """
        async with aclosing(self.back(key, at)) as commits:
            async for commit in commits:
                return commit
        return None

    async def back(self, key: ChangeSetKey, at: At | None = None) -> AsyncGenerator[Commit, None]:
        """Yield the commits of `key`, newest first, from the position `at` to the oldest. Their deltas are not loaded.

        The first few commits are read one by one, and older commits in pages. Raise the errors of `newest_message`,
        and `TransientError` for a damaged commit.
        """
        message = await self.newest_message(key, at)
        page = [] if message is None else [(message.sequence, message.headers, message.data)]
        async with aclosing(self._back(key, page)) as commits:
            async for commit in commits:
                yield commit

    async def before(self, key: ChangeSetKey, commit: Commit) -> AsyncGenerator[Commit, None]:
        """Yield the commits of `key` before `commit`, in the same way as `back`. Raise the errors of `back`."""
        page = await self._page(key, commit.previous, commit.previous) if commit.previous else ()
        async with aclosing(self._back(key, page)) as commits:
            async for older in commits:
                yield older

    async def _back(self, key: ChangeSetKey, page: Sequence[_Raw]) -> AsyncGenerator[Commit, None]:
        """Yield the commits in `page`, which has at most one message, and the commits before it, newest first."""
        newest, taken, wanted = page[0][0] if page else 0, 0, FIRST_PAGE
        while page:
            commit: Commit | None = None
            for sequence, headers, data in reversed(page):
                commit = self.decode(sequence, headers, data)
                if commit is not None:
                    yield commit
            taken += len(page)
            previous = await self._scan_previous(key, page[0][0]) if commit is None else commit.previous
            if previous == 0:
                return
            if taken < SINGLY:
                page = await self._page(key, previous, previous)
                continue
            # The server stops sending only when the client tells it to, so for each page, it also sends messages beyond
            # the end of the page. A few large pages are therefore better than many small ones.
            spread = min((newest - previous) / taken, MAX_SPREAD)
            page = await self._page(key, max(previous - int(wanted * spread) + 1, 1), previous)
            wanted = min(wanted * GROWTH, MAX_PAGE)

    async def newest_same(self, key: ChangeSetKey, sequence: int) -> int:
        """Return the log sequence of the newest commit that has the same definitions as the commit `sequence`.

        No commit between the two has changed a definition.
        """
        same = 0
        async with aclosing(self.back(key)) as commits:
            async for commit in commits:
                same = same or commit.sequence
                if commit.sequence <= sequence:
                    break
                edited = commit.kind is not Kind.DVU and (commit.delta or commit.delta_blob)
                deleted = commit.marking is not None and commit.marking.status is BranchStatus.DELETED
                if edited or deleted or commit.kind is Kind.CREATE:
                    same = commit.previous
        return max(same, sequence)

    async def key_of(self, key: ChangeSetKey, sequence: int) -> ChangeSetKey:
        """Return the change set whose log contains the commit `sequence`.

        This is `key`, or a change set from which `key` inherited values. Raise `PositionPurged` if the commit was
        purged.
        """
        message = await self._js.get(self._subjects.commits_stream, sequence)
        if message is None:
            raise await self.purged(key, sequence)
        return self._subjects.parse(message.subject)[1]

    async def count(self, key: ChangeSetKey) -> int:
        """Return the number of messages in the log of `key`."""
        subject = self._subjects.commits(key)
        return (await self._js.subject_counts(self._subjects.commits_stream, subject)).get(subject, 0)

    async def oldest_readable(self, key: ChangeSetKey) -> tuple[int, datetime] | None:
        """Return the oldest position whose state can be read, and the time when its commit was stored.

        Return None for an empty log. The log is read from its beginning up to that position. The first commits of a
        purged log may not be readable: they were appended before a checkpoint was complete, and therefore need older
        commits.
        """
        newest = await self.newest_message(key)
        if newest is None:
            return None
        begins_after: int | None = None
        async with aclosing(self._messages(key, newest.sequence)) as messages:
            async for message in messages:
                with suppress(RebaserError):  # the state at a commit that cannot be decoded is not readable
                    commit = self.decode(message.stream_sequence, message.headers, message.data)
                    if commit is None:
                        continue
                    if begins_after is None:
                        begins_after = commit.previous
                    if readable(commit.checkpoint, begins_after, commit.created_by):
                        return message.stream_sequence, datetime.fromtimestamp(message.timestamp_ns / 1e9, UTC)
        return None

    async def purged(self, key: ChangeSetKey, at: At) -> PositionPurged:
        """Return the error for a position `at` that is no longer readable. The error says where the log begins."""
        return PositionPurged(key, at, await self.oldest_readable(key))

    async def check_readable(self, key: ChangeSetKey, at: At) -> None:
        """Raise `PositionPurged` if a part of the log that is needed to load the state at `at` was purged."""
        message = await self.newest_message(key, at)
        oldest = await self._js.next(self._subjects.commits_stream, self._subjects.commits(key), 1)
        if message is None or oldest is None:
            return
        commit, first = (self.decode(each.sequence, each.headers, each.data) for each in (message, oldest))
        if (
            commit is not None
            and first is not None
            and not readable(commit.checkpoint, first.previous, commit.created_by)
        ):
            raise await self.purged(key, at)

    async def _check_reached(self, key: ChangeSetKey, at: int) -> None:
        newest = (await self._js.stream_info(self._subjects.commits_stream)).last_sequence
        if at > newest:
            raise UnprocessableError(
                f"{key.workspace}/{key.change_set}@{at} does not exist yet: the newest commit of all logs is {newest}",
                code="no_such_position",
            )

    async def _previous(self, key: ChangeSetKey, message: StoredMessage) -> int:
        """Return the sequence of the message before `message` in the log of `key`; 0 if `message` was the first.

        A readable commit contains that sequence. If `message` is not a readable commit, the log is scanned.
        """
        try:
            commit = self.decode(message.sequence, message.headers, message.data)
        except RebaserError:
            commit = None
        if commit is not None:
            return commit.previous
        return await self._scan_previous(key, message.sequence)

    async def _scan_previous(self, key: ChangeSetKey, sequence: int) -> int:
        """Scan the log, and return the sequence of the message before the one at `sequence`; 0 if there is none."""
        previous = 0
        async with aclosing(self._messages(key, sequence)) as messages:
            async for earlier in messages:
                if earlier.stream_sequence < sequence:
                    previous = earlier.stream_sequence
        return previous

    async def _page(self, key: ChangeSetKey, first: int, last: int) -> Sequence[_Raw]:
        """Return the messages in the log of `key` from sequence `first` to `last`, oldest first.

        If these messages have more than `PAGE_BYTES` bytes in total, the oldest ones are left out. The log must have
        had a message at `last`, so an empty result means that messages were purged.
        """
        if first == last:
            stored = await self._js.get(self._subjects.commits_stream, last)
            if stored is None or stored.subject != self._subjects.commits(key):
                return []
            return [(stored.sequence, stored.headers, stored.data)]
        page: deque[_Raw] = deque()
        room = PAGE_BYTES
        async with self._consumer(key, first) as consumer:
            async for message in consumer:
                if message.stream_sequence <= last:
                    page.append((message.stream_sequence, message.headers, message.data))
                    room -= len(message.data)
                    while room < 0 and len(page) > 1:
                        room += len(page.popleft()[2])
                if message.stream_sequence >= last:
                    break
                await cooperate()
        return page

    async def _messages(self, key: ChangeSetKey, last: int) -> AsyncGenerator[Message, None]:
        """Yield the messages in the log of `key` from the first up to the message at `last`, which must exist."""
        async with self._consumer(key, 1) as consumer:
            async for message in consumer:
                await cooperate()
                yield message
                if message.stream_sequence >= last:
                    break

    async def follow(self, key: ChangeSetKey, after: int) -> AsyncGenerator[Commit, None]:
        """Yield the commits after log sequence `after`, and then each new commit. Their deltas are not loaded."""
        async with self._consumer(key, after + 1) as consumer:
            async for message in consumer:
                commit = self.decode(message.stream_sequence, message.headers, message.data)
                if commit is not None:
                    yield commit

    def decode(self, sequence: int, headers: Mapping[str, str], data: bytes, *, history: bool = True) -> Commit | None:
        """Return the commit in a message of a log, without loading its delta. If `history` is false, the result also
        lacks the definitions that the commit replaced.

        If the headers of the message do not say that it is a commit, an error is logged, and None is returned. Raise
        `TransientError` for a damaged commit, because skipping it would lose its changes, and `UnsupportedVersion` for
        a commit of a newer version.
        """
        try:
            return decode_commit(headers, data, sequence=sequence, history=history)
        except UnprocessableError as error:
            if error.code != FOREIGN:
                raise damaged(sequence, error) from error
            log.error(  # noqa: TRY400 - a traceback would not help
                "log_foreign_message", seq=sequence, reason=error.message
            )
            return None

    async def with_delta(self, commit: Commit) -> Commit:
        """Return `commit` with its delta and the definitions of its rebase, if any, fetched from blobs if necessary.

        Raise `TransientError` if a blob cannot be read or is damaged.
        """
        if commit.replay is not None and commit.replay.blob is not None:
            commit = await self._with_replay(commit, commit.replay.blob)
        if commit.delta_blob is None or commit.delta:
            return commit
        data = await self._blobs.get(commit.delta_blob.address, max_bytes=MAX_BLOB)
        try:
            return replace(commit, delta=await run_offloaded(len(data), decode_delta, commit.kind, data))
        except UnprocessableError as error:
            raise damaged(commit.sequence, error) from error

    async def _with_replay(self, commit: Commit, blob: BlobRef) -> Commit:
        assert commit.replay is not None  # noqa: S101 - the caller has checked it
        if commit.replay.bases:
            return commit
        strategy = commit.replay.strategy
        data = await self._blobs.get(blob.address, max_bytes=MAX_BLOB)
        try:
            found = await run_offloaded(len(data), decode_replay, data, strategy)
        except UnprocessableError as error:
            raise damaged(commit.sequence, error) from error
        return replace(commit, replay=replace(found, blob=blob))

    async def with_before(self, commit: Commit) -> Commit:
        """Return `commit` with the definitions that it replaced (`before`), fetched from a blob if necessary.

        If the commit does not record them, `before` stays None. Raise `TransientError` if the blob cannot be read or
        is damaged.
        """
        if commit.before_blob is None or commit.before:
            return commit
        data = await self._blobs.get(commit.before_blob.address, max_bytes=MAX_BLOB)
        try:
            before = await run_offloaded(len(data), decode_delta, commit.kind, data)
            return replace(commit, before=before)  # type: ignore[arg-type] # `before` has only updates
        except UnprocessableError as error:
            raise damaged(commit.sequence, error) from error

    async def blob(self, address: str) -> bytes:
        """Return the content of the blob at `address`. Raise `TransientError` if it cannot be read."""
        return await self._blobs.get(address, max_bytes=MAX_BLOB)

    async def with_tail(self, commit: Commit) -> Commit:
        """Return a `create` commit with the commits that it copied from the parent, fetched from a blob if necessary.

        Raise `TransientError` if the blob cannot be read or is damaged.
        """
        origin = commit.origin
        if origin is None or origin.tail_blob is None or origin.tail:
            return commit
        data = await self._blobs.get(origin.tail_blob.address, max_bytes=MAX_BLOB)
        try:
            return replace(commit, origin=replace(origin, tail=decode_tail(data)))
        except UnprocessableError as error:
            raise damaged(commit.sequence, error) from error

    def _consumer(self, key: ChangeSetKey, start: int) -> OrderedConsumer:
        return OrderedConsumer(self._js, self._subjects.commits_stream, self._subjects.commits(key), start=start)


def _is_after(message: StoredMessage, at: At) -> bool:
    """Return whether `message` is after the position `at`."""
    return message.sequence > at if isinstance(at, int) else datetime.fromisoformat(message.time) > at


def replaces_values(commit: Commit) -> bool:
    """Return whether `commit` may replace all values of the change set, which its delta does not show, because it
    creates, deletes or reopens the change set. Reopening replaces them only if it restores a deleted change set."""
    status = None if commit.marking is None else commit.marking.status
    return commit.kind is Kind.CREATE or status in (BranchStatus.DELETED, BranchStatus.OPEN)


def damaged(sequence: int, error: UnprocessableError) -> TransientError:
    """Return the error to raise for the commit `sequence`, which cannot be decoded because of `error`."""
    return TransientError(f"commit {sequence} is damaged: {error.message}", code=DAMAGED)

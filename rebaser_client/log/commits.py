"""Reads the commits of a change set: the newest one, all from a sequence on, or one message of the log.

Invariant: a damaged commit is never skipped. This module needs no state, and so not NumPy: `reader` folds the commits.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace

from rebaser_client.blobs import BlobStore
from rebaser_client.jetstream import JetStream, OrderedConsumer
from rebaser_client.logs import get_logger
from rebaser_core.commit import Commit
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import decode_commit, decode_delta
from rebaser_core.subjects import Subjects

log = get_logger(__name__)

MAX_BLOB = 2**31  # bytes
FOREIGN = "foreign"  # the code with which `decode_commit` refuses a message of another type
DAMAGED = "damaged_commit"


class CommitReader:
    """Reads the commits of one installation: messages through `js`, large deltas through `blobs`."""

    def __init__(self, js: JetStream, subjects: Subjects, blobs: BlobStore) -> None:
        self._js = js
        self._subjects = subjects
        self._blobs = blobs

    async def last(self, key: ChangeSetKey) -> Commit | None:
        """Return the newest commit of `key`, its delta not loaded; None if there is none."""
        stored = await self._js.last(self._subjects.commits_stream, self._subjects.commits(key))
        return None if stored is None else self.decode(stored.sequence, stored.headers, stored.data)

    async def follow(self, key: ChangeSetKey, after: int) -> AsyncGenerator[Commit, None]:
        """Yield commits after log sequence `after`, their deltas not loaded, as they are appended. Never ends."""
        async with self._consumer(key, after + 1) as consumer:
            async for message in consumer:
                commit = self.decode(message.stream_sequence, message.headers, message.data)
                if commit is not None:
                    yield commit

    def decode(self, sequence: int, headers: Mapping[str, str], data: bytes) -> Commit | None:
        """Return the commit in a log message, its delta not loaded.

        If the message does not claim to be a commit, logs an error and returns None. Raises `TransientError` for a
        damaged commit, because skipping it would lose its changes.
        """
        try:
            return replace(decode_commit(headers, data), sequence=sequence)
        except UnprocessableError as error:
            if error.code != FOREIGN:
                raise _damaged(sequence, error) from error
            log.error(  # noqa: TRY400 - a traceback would not help
                "log_foreign_message", seq=sequence, reason=error.message
            )
            return None

    async def with_delta(self, commit: Commit) -> Commit:
        """Return `commit` with its delta, fetched if it is in a blob. Raises `TransientError` if the blob cannot be
        read or is damaged."""
        if commit.delta_blob is None or commit.delta:
            return commit
        data = await self._blobs.get(commit.delta_blob.address, max_bytes=MAX_BLOB)
        try:
            return replace(commit, delta=decode_delta(commit.kind, data))
        except UnprocessableError as error:
            raise _damaged(commit.sequence, error) from error

    def _consumer(self, key: ChangeSetKey, start: int) -> OrderedConsumer:
        return OrderedConsumer(self._js, self._subjects.commits_stream, self._subjects.commits(key), start=start)


def _damaged(sequence: int, error: UnprocessableError) -> TransientError:
    return TransientError(f"commit {sequence} is damaged: {error.message}", code=DAMAGED)

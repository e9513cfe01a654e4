"""Reads a change set's log: newest checkpoint, then the tail. The owner, the client and the tools all load this way.

Invariant: what `load` returns is the state after some commit that was the last one when it looked, never a mixture.
Reads that decide something go to the stream leader.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import anyio

from rebaser_client.blobs import BlobStore
from rebaser_client.cooperative import cooperate, run_offloaded
from rebaser_client.jetstream import JetStream, OrderedConsumer, StoredMessage
from rebaser_client.logs import get_logger
from rebaser_core.checkpoint import Chain, open_checkpoint
from rebaser_core.commit import CheckpointRef, Commit
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import decode_commit, decode_delta
from rebaser_core.state.change_set import BrokenChain, ChangeSetState
from rebaser_core.subjects import Subjects

log = get_logger(__name__)

COMMIT_OVERHEAD = 512  # what reading one commit costs beyond its bytes, in bytes: for weighing a tail
MAX_BLOB = 2**31
MAX_CONCURRENT_TAILS = 8  # read at once: NATS drops a connection that has 64 MiB in front of it
LOAD_TRIES = 8
FOREIGN = "foreign"  # the code of `decode_commit` for a message of another type
DAMAGED = "damaged_commit"
LASTING_CODES = (DAMAGED, "damaged_checkpoint", "blob_missing", "blob_corrupt")  # codes of what time alone seldom mends


@dataclass(frozen=True, slots=True)
class LoadedState:
    """A loaded state, how heavy (bytes) the log after its checkpoint was, and the parts of that."""

    state: ChangeSetState
    weight: int = 0
    chain: Chain = field(default_factory=Chain)


class LogReader:
    """Reads the logs of one installation through `js`, large parts through `blobs`."""

    def __init__(self, js: JetStream, subjects: Subjects, blobs: BlobStore) -> None:
        self._js = js
        self._subjects = subjects
        self._blobs = blobs
        self._tails = anyio.Semaphore(MAX_CONCURRENT_TAILS, fast_acquire=True)

    async def load(self, key: ChangeSetKey) -> LoadedState:
        """The state of `key` now; an empty one if its log is empty.

        Raises `TransientError` if the log or a blob cannot be read, `UnsupportedVersion` for a commit newer than us.
        """
        advice = f"see `rebaser doctor {key.workspace} {key.change_set}`"
        problem: BrokenChain | None = None
        for attempt in range(LOAD_TRIES):
            try:
                return await self._load(key)
            except BrokenChain as error:  # the log was purged under the reader: a newer checkpoint is there by now
                problem = error
                log.info("log_reload", workspace=key.workspace, change_set=key.change_set, attempt=attempt)
                await anyio.sleep(0.02 * 2**attempt)
            except TransientError as error:
                if error.code not in LASTING_CODES:
                    raise
                raise type(error)(f"{error.message}; {advice}", code=error.code) from error
        raise TransientError(f"the log of {key} cannot be read: {problem}; {advice}", code="broken_chain")

    async def last(self, key: ChangeSetKey) -> Commit | None:
        """The newest commit of `key` (its delta not loaded); None if there is none."""
        stored = await self._js.last(self._subjects.commits_stream, self._subjects.commits(key))
        return None if stored is None else self.decode(stored.sequence, stored.headers, stored.data)

    async def follow(self, key: ChangeSetKey, after: int) -> AsyncGenerator[Commit, None]:
        """Commits (deltas not loaded) behind log sequence `after`, for ever, as they are appended."""
        async with self._consumer(key, after + 1) as consumer:
            async for message in consumer:
                commit = self.decode(message.stream_sequence, message.headers, message.data)
                if commit is not None:
                    yield commit

    def decode(self, sequence: int, headers: Mapping[str, str], data: bytes) -> Commit | None:
        """The commit in a log message, its delta not loaded; None, loudly, if the message does not claim to be one.

        Raises `TransientError` for one that claims to be and cannot be read: skipping it would lose what it holds.
        """
        try:
            return replace(decode_commit(headers, data), sequence=sequence)
        except UnprocessableError as error:
            if error.code != FOREIGN:
                raise _damaged(sequence, error) from error
            log.error(  # noqa: TRY400 - no defect of ours, and a traceback would say nothing
                "log_foreign_message", seq=sequence, reason=error.message
            )
            return None

    async def with_delta(self, commit: Commit) -> Commit:
        """`commit` with its delta, fetched if it stands in a blob; raises as `load`."""
        if commit.delta_blob is None or commit.delta:
            return commit
        data = await self._blobs.get(commit.delta_blob.address, max_bytes=MAX_BLOB)
        try:
            return replace(commit, delta=decode_delta(commit.kind, data))
        except UnprocessableError as error:
            raise _damaged(commit.sequence, error) from error

    async def read_checkpoint(self, checkpoint: CheckpointRef) -> tuple[ChangeSetState, Chain]:
        """The state in a checkpoint, and its parts; raises as `load`."""
        newest = await self._blobs.get(checkpoint.address, max_bytes=MAX_BLOB)
        try:
            reader = open_checkpoint(newest, checkpoint.address)
            for part in reader.before:
                data = await self._blobs.get(part.address, max_bytes=MAX_BLOB)
                await run_offloaded(len(data), reader.add, data)
            await run_offloaded(len(newest), reader.add, newest)
            return await run_offloaded(checkpoint.size, reader.finish)
        except UnprocessableError as error:
            text = f"checkpoint {checkpoint.address} is damaged: {error.message}"
            raise TransientError(text, code="damaged_checkpoint") from error

    def _consumer(self, key: ChangeSetKey, start: int) -> OrderedConsumer:
        return OrderedConsumer(self._js, self._subjects.commits_stream, self._subjects.commits(key), start=start)

    async def _load(self, key: ChangeSetKey) -> LoadedState:
        last = await self._js.last(self._subjects.commits_stream, self._subjects.commits(key))
        if last is None:
            return LoadedState(ChangeSetState())
        commit = self.decode(last.sequence, last.headers, last.data)
        checkpoint = commit.checkpoint if commit is not None else await self._newest_checkpoint(key, last)
        state, chain = (ChangeSetState(), Chain()) if checkpoint is None else await self.read_checkpoint(checkpoint)
        if state.last == last.sequence:
            return LoadedState(state, 0, chain)
        if state.last > last.sequence:  # what follows it would be waited for without end
            raise BrokenChain(f"its checkpoint is of commit {state.last}, its last commit is {last.sequence}")
        if commit is not None and commit.previous == state.last:
            state.fold(last.sequence, await self.with_delta(commit))
            return LoadedState(state, _weight(commit, last.data), chain)
        return LoadedState(state, await self._read_tail(key, state, last.sequence), chain)

    async def _read_tail(self, key: ChangeSetKey, state: ChangeSetState, until: int) -> int:
        weight, ask_at = 0, 0.0
        async with self._tails, self._consumer(key, state.last + 1) as consumer:
            async for message in consumer:
                if time.thread_time() >= ask_at:
                    ask_at = await cooperate()
                sequence = message.stream_sequence
                commit = self.decode(sequence, message.headers, message.data)
                if commit is None:
                    state.skip(sequence)
                else:
                    weight += _weight(commit, message.data)
                    if commit.delta_blob:
                        async with self._outside():
                            commit = await self.with_delta(commit)
                    state.fold(sequence, commit)
                if sequence >= until:
                    break
        return weight

    @asynccontextmanager
    async def _outside(self) -> AsyncIterator[None]:
        """Leave room for other tails while a blob store is waited for, which may take long."""
        self._tails.release()
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._tails.acquire()

    async def _newest_checkpoint(self, key: ChangeSetKey, last: StoredMessage) -> CheckpointRef | None:
        """The checkpoint named by the newest real commit, where the very last message is foreign."""
        newest: CheckpointRef | None = None
        async with self._consumer(key, 1) as consumer:
            async for message in consumer:
                await cooperate()
                with suppress(TransientError):  # if it is needed it stands in the tail, which is read after this
                    commit = self.decode(message.stream_sequence, message.headers, message.data)
                    newest = commit.checkpoint if commit is not None else newest
                if message.stream_sequence >= last.sequence:
                    break
        return newest


def _damaged(sequence: int, error: UnprocessableError) -> TransientError:
    return TransientError(f"commit {sequence} is damaged: {error.message}", code=DAMAGED)


def _weight(commit: Commit, data: bytes) -> int:
    """What the message `data` adds to a log, with the blob that it names."""
    return len(data) + COMMIT_OVERHEAD + (commit.delta_blob.size if commit.delta_blob else 0)

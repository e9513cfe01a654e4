"""Loads the state of a change set: reads a checkpoint, then the rest of the log. Servers, clients and tools use this
module.

Invariant: `load` returns the state after exactly one commit: the newest commit, or the commit at the given position.
Reads on which a decision depends go to the stream leader.
"""

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

import anyio

from rebaser_client.backoff import Backoff
from rebaser_client.blobs import BlobStore
from rebaser_client.cooperative import cooperate, run_offloaded
from rebaser_client.jetstream import JetStream, StoredMessage
from rebaser_client.load_progress import LOADING
from rebaser_client.log.commits import DAMAGED, LASTING_CODES, MAX_BLOB, CommitReader, damaged
from rebaser_client.log.origins import source_of
from rebaser_client.log.positions import At
from rebaser_client.logs import get_logger
from rebaser_core.checkpoint import Chain, open_checkpoint
from rebaser_core.commit import CheckpointRef, Commit, Delta, Kind
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import decode_changes, decode_delta, read_row
from rebaser_core.shell import command
from rebaser_core.state.change_set import BrokenChain, ChangeSetState
from rebaser_core.state.selected import fold_selected, select_delta
from rebaser_core.state.value_columns import ValueColumns
from rebaser_core.streams.subjects import Subjects

log = get_logger(__name__)

COMMIT_OVERHEAD = 512  # bytes added to the size of a commit for the fixed cost of reading it
PASSED = 2  # NATS looks at this many messages of other logs in the time in which one byte of a commit is read
# The maximum bytes of a `search_weight`. Without a maximum, a change set that is seldom used beside millions of others
# would get a checkpoint after each commit.
MAX_SEARCH_WEIGHT = 16 * 1024
MAX_SEARCHES = 16  # if more ids are wanted, a blob is decoded without being searched for them first
MAX_CONCURRENT_TAILS = 8  # logs read at the same time; NATS drops a connection that has 64 MiB of unread data
LOAD_ATTEMPTS = 8
_CHECKPOINT = Kind.CHECKPOINT  # a lookup of an enum member takes 0.1 µs in Python 3.11
RELOAD_MIN = 0.02  # seconds until the second attempt, before jitter


@dataclass(frozen=True, slots=True)
class LoadedState:
    """A state, and the size of what was read to load it.

    `tail_weight` is the weight of the log after the checkpoint, in bytes. It estimates how long reading takes: each
    commit adds its size, `COMMIT_OVERHEAD` and its `search_weight`. `chain` describes the parts of the checkpoint.
    """

    state: ChangeSetState
    tail_weight: int = 0
    chain: Chain = field(default_factory=Chain)


class StateLoader(CommitReader):
    """Loads the states of one installation. It reads messages through `js`, and large deltas and checkpoints through
    `blobs`.

    If `share_ids` is true, the states share their ids in memory with loaded states that have the same checkpoint base,
    such as those of other branches. This makes loading several times as fast. All states must then be changed in one
    thread, the one that calls `load`.
    """

    def __init__(self, js: JetStream, subjects: Subjects, blobs: BlobStore, *, share_ids: bool = False) -> None:
        super().__init__(js, subjects, blobs)
        self._by_base: WeakValueDictionary[str, ValueColumns] | None = WeakValueDictionary() if share_ids else None
        self._ids: frozenset[str] | None = None  # the values that are needed; None means all
        self._tails = anyio.Semaphore(MAX_CONCURRENT_TAILS, fast_acquire=True)

    async def load(self, key: ChangeSetKey, at: At | None = None) -> LoadedState:
        """Return the state of `key` at the position `at` (None: the newest commit).

        If the log was empty at that position, the state is empty. For a position before a branch was created, the state
        of its parent is returned, but never beyond the position from which the branch was created. Derived values have
        the results that were stored at that position; `stale()` of the state returns the ids of those that were not up
        to date.

        Raise `TransientError` if the log or a blob cannot be read, `UnsupportedVersion` for a commit of a newer
        version, `PositionPurged` if a part of the log that the state needs was purged, and `UnprocessableError` with
        code `no_such_position` for a sequence that the stream has not reached.
        """
        backoff = Backoff(RELOAD_MIN)
        problem: BrokenChain | None = None
        while backoff.attempt < LOAD_ATTEMPTS:
            try:
                return await self._load(*await source_of(self, key, at))
            except BrokenChain as error:  # the log was purged during the read, so there is a newer checkpoint by now
                if at is not None:
                    await self.check_readable(key, at)
                problem = error
                log.for_change_set(key).info("log_reload", attempt=backoff.attempt)
                await anyio.sleep(backoff.next_delay())
            except TransientError as error:
                if error.code not in LASTING_CODES:
                    raise
                if at is not None:
                    await self.check_readable(key, at)
                raise type(error)(f"{error.message}; {_advice(key)}", code=error.code) from error
        raise TransientError(f"the log of {key} cannot be read: {problem}; {_advice(key)}", code="broken_chain")

    async def load_values(
        self, key: ChangeSetKey, ids: Iterable[str], at: At | None = None, *, stale: bool = True
    ) -> ChangeSetState:
        """Return a state of `key` that contains the values `ids`, as far as they exist.

        `at` is the position of the state; None means the newest commit. Other values may be missing or outdated;
        `rebaser_core.state.selected` documents which other parts of the state are correct. This is much faster than
        `load`, because only the rows of `ids` are read from a checkpoint.

        `stale` is true if the caller has to know which of the values are stale. If that depends on other values, all
        values are read.

        Raise the errors of `load`, but not for a blob that is not needed, or for damage to other values.
        """
        wanted = frozenset(filter(_is_text, ids))
        state = (await _ValuesLoader(self._js, self._subjects, self._blobs, wanted, self._tails).load(key, at)).state
        if stale and state.owes and any(map(state.cells.is_derived, wanted)):
            state = (await self.load(key, at)).state
        return state

    async def load_head(self, key: ChangeSetKey) -> LoadedState:
        """Return the newest state of `key` without its values."""
        return await _ValuesLoader(self._js, self._subjects, self._blobs, frozenset(), self._tails).load(key)

    async def read_checkpoint(self, checkpoint: CheckpointRef) -> tuple[ChangeSetState, Chain]:
        """Return the state in a checkpoint, and the checkpoint's parts. Raise the errors of `load`."""
        progress = LOADING.get()
        if progress is not None:
            progress.begin("checkpoint", checkpoint.size)
        newest = await self._blobs.get(checkpoint.address, max_bytes=MAX_BLOB)
        changes = checkpoint.changes
        changed = None if changes is None else await self._blobs.get(changes.address, max_bytes=MAX_BLOB)
        try:
            reader = open_checkpoint(newest, checkpoint.address, self._ids)
            base = reader.before[0].address if reader.before else checkpoint.address
            if self._by_base is not None and (others := self._by_base.get(base)) is not None:
                reader.adopt(others)
            for part in reader.before:
                data = await self._blobs.get(part.address, max_bytes=MAX_BLOB)
                await run_offloaded(len(data), reader.add, data)
            await run_offloaded(len(newest), reader.add, newest)
            if progress is not None:
                progress.begin("values")
            state, chain = await run_offloaded(checkpoint.size, reader.finish)
            found = {} if changed is None else await run_offloaded(len(changed), decode_changes, changed)
        except UnprocessableError as error:
            text = f"checkpoint {checkpoint.address} is damaged: {error.message}"
            raise TransientError(text, code="damaged_checkpoint") from error
        if state.branch is not None:
            state.branch.set_changes(found)
        if not state.cells.columns.adopted:
            self.remember(chain, state)
        return state, chain

    def remember(self, chain: Chain, state: ChangeSetState) -> None:
        """Share the ids of `state`, whose newest checkpoint consists of the parts `chain`, with states that are loaded
        later, as long as `state` exists."""
        if self._by_base is not None and chain.base:
            self._by_base[chain.base[0].address] = state.cells.columns

    async def _fold(self, state: ChangeSetState, sequence: int, commit: Commit, weight: int = 0) -> None:
        """Apply a commit to a state to which no other code has access yet. Other tasks run between the steps."""
        for _ in state.fold_in_steps(sequence, commit, weight):
            await cooperate()

    async def _load(self, key: ChangeSetKey, at: At | None) -> LoadedState:
        last = await self.newest_message(key, at)
        if last is None:
            return LoadedState(ChangeSetState())
        commit = self.decode(last.sequence, last.headers, last.data, history=False)
        newest = commit or await self._newest_commit(key, last)
        if newest is not None and (begin := newest.created_by):
            return await self._load_created(key, begin, last.sequence)
        checkpoint = None if newest is None else newest.checkpoint
        state, chain = (ChangeSetState(), Chain()) if checkpoint is None else await self.read_checkpoint(checkpoint)
        if state.last == last.sequence:
            return LoadedState(state, 0, chain)
        if state.last > last.sequence:  # reading from `state.last` up to `last` would never end
            raise BrokenChain(f"its checkpoint contains commit {state.last}, but its last commit is {last.sequence}")
        if commit is not None and commit.previous == state.last:
            weight = _weight(commit, last.data)
            await self._fold(state, last.sequence, await self.with_delta(commit), weight)
            return LoadedState(state, weight + search_weight(commit, commit.previous, last.sequence), chain)
        return LoadedState(state, await self._read_tail(key, state, last.sequence), chain)

    async def _load_created(self, key: ChangeSetKey, begin: int, until: int) -> LoadedState:
        """Load a change set that was created at log sequence `begin`, and has no checkpoint of its own yet."""
        message = await self._js.get(self._subjects.commits_stream, begin)
        created = None
        if message is not None and message.subject == self._subjects.commits(key):
            created = self.decode(begin, message.headers, message.data)
        if message is None or created is None or created.kind is not Kind.CREATE:
            raise BrokenChain(f"the log begins with commit {begin}, which was purged")
        state, chain = await self.origin_state(created)
        weight = _weight(created, message.data)
        state.fold(begin, created, weight)
        if until > begin:
            weight += await self._read_tail(key, state, until)
        return LoadedState(state, weight, chain)

    async def origin_state(self, created: Commit) -> tuple[ChangeSetState, Chain]:
        """Return the state of the parent from which the commit `created` created a change set.

        Also return the parts of the checkpoint of that state. Raise the errors of `load`, and `BrokenChain` if the
        commits that `created` copied from the parent do not lead to that state.
        """
        checkpoint = created.checkpoint
        state, chain = (ChangeSetState(), Chain()) if checkpoint is None else await self.read_checkpoint(checkpoint)
        origin = (await self.with_tail(created)).origin
        for row in () if origin is None else origin.tail:
            await cooperate()
            try:
                commit = read_row(row)
            except UnprocessableError as error:
                raise TransientError(f"commit {created.sequence} is damaged: {error.message}", code=DAMAGED) from error
            if commit is None:
                state.skip(row.sequence)
            else:
                await self._fold(state, row.sequence, await self.with_delta(commit))
        return state, chain

    async def _read_tail(self, key: ChangeSetKey, state: ChangeSetState, until: int) -> int:
        """Apply the commits up to log sequence `until` to `state`. Return their weight in bytes."""
        weight, cooperate_at, begun, progress = 0, 0.0, state.last, LOADING.get()
        if progress is not None:
            progress.begin("commits", until - begun)
        async with self._tails, self._consumer(key, state.last + 1) as consumer:
            async for message in consumer:
                if time.thread_time() >= cooperate_at:
                    cooperate_at = await cooperate()
                sequence = message.stream_sequence
                if progress is not None:
                    progress.add(len(message.data))
                    progress.done = sequence - begun
                commit = self.decode(sequence, message.headers, message.data, history=False)
                if commit is None:
                    state.skip(sequence)
                else:
                    added = _weight(commit, message.data)
                    weight += added + search_weight(commit, state.last, sequence)
                    if commit.folded_blobs:
                        async with self._tail_slot_released():
                            commit = await self.with_delta(commit)
                    await self._fold(state, sequence, commit, added)
                if sequence >= until:
                    break
        return weight

    @asynccontextmanager
    async def _tail_slot_released(self) -> AsyncIterator[None]:
        """Release the semaphore `_tails` while this reader waits for the blob store, which may take a long time."""
        self._tails.release()
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._tails.acquire()

    async def _newest_commit(self, key: ChangeSetKey, last: StoredMessage) -> Commit | None:
        """Return the newest commit of a log whose last message is not a commit; None if no commit can be decoded."""
        newest: Commit | None = None
        async with aclosing(self._messages(key, last.sequence)) as messages:
            async for message in messages:
                with suppress(TransientError):  # a damaged commit in the tail is reported when the tail is read
                    commit = self.decode(message.stream_sequence, message.headers, message.data)
                    newest = commit or newest
        return newest


class _ValuesLoader(StateLoader):
    """Loads states that contain only the values `ids`. `tails` limits how many logs are read at the same time."""

    def __init__(
        self, js: JetStream, subjects: Subjects, blobs: BlobStore, ids: frozenset[str], tails: anyio.Semaphore
    ) -> None:
        super().__init__(js, subjects, blobs)
        self._ids: frozenset[str] = ids
        self._words = [id_.encode() for id_ in ids]
        self._tails = tails

    async def read_checkpoint(self, checkpoint: CheckpointRef) -> tuple[ChangeSetState, Chain]:
        return await super().read_checkpoint(replace(checkpoint, changes=None))

    async def with_delta(self, commit: Commit) -> Commit:
        """Return `commit` with the part of its delta that concerns the wanted values."""
        if commit.delta_blob is None or commit.delta or not self._ids:
            return commit
        data = await self._blobs.get(commit.delta_blob.address, max_bytes=MAX_BLOB)
        try:
            return replace(commit, delta=await run_offloaded(len(data), self._decode, commit.kind, data))
        except UnprocessableError as error:
            raise damaged(commit.sequence, error) from error

    def _decode(self, kind: Kind, data: bytes) -> Delta:
        if len(self._words) <= MAX_SEARCHES and not any(word in data for word in self._words):
            return ()  # blobs contain ids as plain text, and this blob contains none of the wanted ids
        return select_delta(decode_delta(kind, data), self._ids)

    async def _fold(self, state: ChangeSetState, sequence: int, commit: Commit, weight: int = 0) -> None:
        for _ in fold_selected(state, sequence, commit, self._ids, weight):
            await cooperate()


def _is_text(id_: str) -> bool:
    """Return whether `id_` can be an id. An argument of a command may contain lone surrogates, but an id cannot."""
    try:
        return bool(id_.encode())
    except UnicodeEncodeError:
        return False


def search_weight(commit: Commit, previous: int, sequence: int) -> int:
    """Return the weight, in bytes, of finding `commit`, whose log sequence is `sequence`, after the message at
    `previous`. NATS looks at the messages of other logs between them.

    It finds the first message of a log at once (`previous` is 0). A commit that names a checkpoint has no such weight,
    because it would bring the next checkpoint nearer.
    """
    if not previous or commit.kind is _CHECKPOINT:
        return 0
    weight = (sequence - previous) // PASSED
    return weight if weight < MAX_SEARCH_WEIGHT else MAX_SEARCH_WEIGHT  # noqa: FURB136 - `min` takes longer


def _weight(commit: Commit, data: bytes) -> int:
    """Return the weight of a commit in bytes: its payload `data`, its blobs, and `COMMIT_OVERHEAD`."""
    tail = None if commit.origin is None else commit.origin.tail_blob
    return len(data) + COMMIT_OVERHEAD + sum(blob.size for blob in (*commit.folded_blobs, tail) if blob)


def _advice(key: ChangeSetKey) -> str:
    return f"see `{command('doctor', key.workspace, key.change_set)}`"

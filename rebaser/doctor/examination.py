"""Reads the log of a change set, however damaged it is, and tells what is wrong.

Invariant: nothing is written here. What cannot be told apart from an outage is none of the findings: a store that is
away is an error, and a blob is missing only if it is so for a while.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import anyio

from rebaser.doctor.entries import Entry, Reading, read_entry, told_of
from rebaser.doctor.history import Cost, Finding, History, name_of
from rebaser_client.blobs import BlobStore
from rebaser_client.cooperative import turn
from rebaser_client.jetstream import JetStream, OrderedConsumer
from rebaser_client.log.reader import DAMAGED, LASTING, LogReader
from rebaser_core.blob_address import is_address
from rebaser_core.commit import Applied, CheckpointRef, Commit
from rebaser_core.dead_letter import claimed_id
from rebaser_core.errors import TransientError, UnprocessableError, UnsupportedVersion
from rebaser_core.ids import ChangeSetKey, RequestId, sequence_id
from rebaser_core.messages import read_sweep_headers
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.subjects import Subjects

TRIES = 5  # of a log that is purged while it is read
BLOB_TRIES, BLOB_PAUSE = 3, 0.5  # seconds; a store may be behind its writer
SILENCE = 1.0  # seconds without a message until we ask whether there is one
QUEUED = 1000  # requests that are listed
UNSAID = -1  # the sequence of a checkpoint whose commit cannot be read

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stores:
    """Where an installation keeps what the doctor looks at."""

    js: JetStream
    subjects: Subjects
    blobs: BlobStore


@dataclass(frozen=True, slots=True)
class Queued:
    """A request that still stands in the queue, though a commit that is lost decided it."""

    sequence: int
    request_id: RequestId


@dataclass(slots=True)
class Examination:
    """What the log of `key` is like, read up to its message `last` (0: it has none).

    `newer`: why only a newer program can read it; nothing else is told then. `notes`: what is odd and does no harm.
    `base`: the log sequence of the checkpoint that `state` rests on; `whole_until`: up to where nothing is wrong;
    `carried`: commits behind that which `state` has. `queued`: what a repair leaves to the dead letters.
    `unreadable`: messages that a repair leaves behind, as they are.
    """

    key: ChangeSetKey
    messages: int = 0
    first: int = 0
    last: int = 0
    newer: str = ""
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    base: int = 0
    whole_until: int = 0
    carried: int = 0
    state: ChangeSetState = field(default_factory=ChangeSetState)
    queued: list[Queued] = field(default_factory=list)
    unreadable: list[Entry] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        return bool(self.findings)

    @property
    def loses(self) -> bool:
        """Whether a repair loses, or may lose, edits."""
        return any(finding.cost is not Cost.NOTHING for finding in self.findings)


async def examine(stores: Stores, key: ChangeSetKey) -> Examination:
    """Read the log of `key`. Raises `TransientError` if NATS or the blob store is away."""
    return await _Examiner(stores, key).run()


class _Examiner:
    def __init__(self, stores: Stores, key: ChangeSetKey) -> None:
        self._js, self._subjects = stores.js, stores.subjects
        self._reader = LogReader(stores.js, stores.subjects, stores.blobs)
        self._stream = stores.subjects.commits_stream
        self._subject = stores.subjects.commits(key)
        self._found = Examination(key)

    async def run(self) -> Examination:
        found, key = self._found, self._found.key
        queue = await self._js.stream_info(self._subjects.requests_stream)
        entries = await self._read()
        if not entries:
            found.notes.append("the log is empty: nothing was ever decided here, or all of it was purged")
            return found
        found.messages, found.first, found.last = len(entries), entries[0].sequence, entries[-1].sequence
        found.unreadable = [entry for entry in entries if entry.reading is Reading.DAMAGED]
        try:
            found.state = await self._base(entries)
            found.base = found.state.last
            await self._fold(entries, Applied(queue.created, queue.last_sequence))
        except UnsupportedVersion as error:
            found.newer, found.findings = error.message, []
            return found
        self._look_at_the_newest(entries[-1])
        if not found.findings:
            await self._cross_check()
        if found.findings:
            await self._look_at_the_queue(queue.created, key)
        return found

    async def _read(self) -> list[Entry]:
        """All messages of the log, as they stood at one time: none of them was purged meanwhile."""
        for _ in range(TRIES):
            first = await self._js.next(self._stream, self._subject, 1)
            last = await self._js.last(self._stream, self._subject)
            if first is None or last is None:
                return []
            entries = await self._read_to(last.sequence)
            if entries and entries[0].sequence == first.sequence:
                again = await self._js.next(self._stream, self._subject, 1)
                if again is not None and again.sequence == first.sequence:
                    return entries
        raise TransientError("the log is purged faster than it is read; try again")

    async def _read_to(self, last: int) -> list[Entry]:
        entries: list[Entry] = []
        position = 0
        async with OrderedConsumer(self._js, self._stream, self._subject) as consumer:
            while position < last:
                with anyio.move_on_after(SILENCE):
                    await consumer.wait()
                if not consumer.pending:
                    left = await self._js.next(self._stream, self._subject, position + 1)
                    if left is None or left.sequence > last:
                        break
                for message in consumer.take(64):
                    await turn()
                    position = message.stream_sequence
                    if position <= last:
                        entries.append(read_entry(position, message.timestamp_ns, message.headers, message.data))
        return entries

    async def _base(self, entries: list[Entry]) -> ChangeSetState:
        """The state in the newest checkpoint that can be read, an empty one if there is none."""
        for reference, sequence in reversed(_checkpoints(entries)):
            said = reference.sequence
            try:
                state, _ = await _patiently(partial(self._reader.read_checkpoint, reference))
            except TransientError as error:
                if error.code not in LASTING:
                    raise
                problem = f"names a checkpoint that cannot be read: {error.message}"
            else:
                problem = _misfit(state.last, sequence, entries)
                if not problem:
                    if said not in (UNSAID, state.last):
                        text = f"says that its checkpoint is of commit {said}, which is of {state.last}"
                        self._found.findings.append(Finding(sequence, text))
                    return state
            if said != UNSAID:
                self._found.findings.append(Finding(sequence, problem))
        return ChangeSetState()

    async def _fold(self, entries: list[Entry], queue: Applied) -> None:
        found = self._found
        known = {name_of(one.commit): one.sequence for one in entries if one.commit and one.sequence <= found.base}
        history = History(found.state, queue, known)
        for entry in entries:
            if entry.sequence <= found.base:
                if entry.reading in (Reading.DAMAGED, Reading.NEWER):
                    text = f"message {entry.sequence} cannot be read ({entry.reason}), and need not be: "
                    found.notes.append(f"{text}the checkpoint of commit {found.base} stands for it")
                continue
            await turn()
            if entry.reading is Reading.NEWER:
                raise UnsupportedVersion(f"message {entry.sequence}: {entry.reason}")
            if entry.reading is Reading.DAMAGED:
                history.damaged(entry)
            elif entry.reading is Reading.FOREIGN:
                found.notes.append(f"message {entry.sequence} is no commit ({entry.reason}): it is skipped")
                history.foreign(entry)
            else:
                history.commit(entry, *await self._with_delta(entry.full()))
        found.findings += history.findings
        found.whole_until, found.carried = history.whole_until, history.carried
        found.state = history.finish()

    async def _with_delta(self, commit: Commit) -> tuple[Commit, str]:
        """The commit with its delta, or why that cannot be had."""
        try:
            return await _patiently(partial(self._reader.with_delta, commit)), ""
        except TransientError as error:
            if error.code not in LASTING:
                raise
            reason = str(error.__cause__) if error.code == DAMAGED else error.message
            return commit, f"has a delta that cannot be read: {reason}"

    def _look_at_the_newest(self, entry: Entry) -> None:
        """Whether the sweeper can read whether an update is due."""
        commit = entry.commit
        if commit is None or entry.nameless or any(one.sequence == entry.sequence for one in self._found.findings):
            return
        try:
            fits = read_sweep_headers(entry.headers) == (commit.applied, commit.debt)
        except UnprocessableError:
            fits = False
        if not fits:
            text = "does not tell the sweeper in its headers what it owes"
            self._found.findings.append(Finding(entry.sequence, text, told=told_of(commit), time_ns=entry.time_ns))

    async def _cross_check(self) -> None:
        """What is well here has to be so for those who read it."""
        try:
            await self._reader.load(self._found.key)
        except TransientError as error:
            if error.code not in (*LASTING, "broken_chain"):
                raise
            self._found.findings.append(Finding(self._found.last, f"cannot be reached: {error.message}"))

    async def _look_at_the_queue(self, stream: str, key: ChangeSetKey) -> None:
        """Which requests are decided, as far as is known, and stand there without a recorded outcome."""
        applied = self._found.state.applied
        if applied is None or applied.stream != stream:
            return
        recorded = {one.decision.sequence for one in self._found.state.outcomes.values()}
        recorded |= {one.decision.sequence for one in self._found.state.redriven.values()}
        sequence = 0
        while len(self._found.queued) < QUEUED:
            subject = self._subjects.requests(key)
            message = await self._js.next(self._subjects.requests_stream, subject, sequence + 1)
            if message is None or message.sequence > applied.sequence:
                return
            sequence = message.sequence
            if sequence not in recorded:
                request_id = claimed_id(message.headers, key) or sequence_id(sequence)
                self._found.queued.append(Queued(sequence, request_id))


def _checkpoints(entries: list[Entry]) -> list[tuple[CheckpointRef, int]]:
    """All that are named, and by which message first; what a damaged one names is one more that may be tried."""
    named: dict[str, tuple[CheckpointRef, int]] = {}
    for entry in entries:
        if entry.commit is not None and entry.commit.checkpoint is not None:
            reference = entry.commit.checkpoint
        elif entry.reading is Reading.DAMAGED and is_address(entry.told().checkpoint):
            reference = CheckpointRef(entry.told().checkpoint, UNSAID, 0)
        else:
            continue
        before = named.get(reference.address)
        if before is None or before[0].sequence == UNSAID:
            named[reference.address] = reference, before[1] if before else entry.sequence
    return list(named.values())


def _misfit(checkpoint: int, named_by: int, entries: list[Entry]) -> str:
    """Why a checkpoint of that commit cannot be one of this log; empty if it can."""
    if checkpoint >= named_by:
        return f"names a checkpoint of commit {checkpoint}, which is not before it"
    behind = next((entry for entry in entries if entry.sequence > checkpoint), None)
    if behind is not None and behind.commit is not None and behind.commit.previous < checkpoint:
        follows = f"{behind.sequence} follows {behind.commit.previous}"
        return f"names a checkpoint of commit {checkpoint}, which never stood here: {follows}"
    return ""


async def _patiently(read: Callable[[], Awaitable[T]]) -> T:
    """What `read` gives; a blob that is missing may come, and one that is garbled may be read whole."""
    for _ in range(BLOB_TRIES - 1):
        try:
            return await read()
        except TransientError as error:
            if error.code not in ("blob_missing", "blob_corrupt"):
                raise
        await anyio.sleep(BLOB_PAUSE)
    return await read()

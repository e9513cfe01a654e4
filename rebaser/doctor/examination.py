"""Reads the log of a change set, even if it is damaged, and reports its defects.

Invariant: this module writes nothing. An outage is never reported as damage: if a store cannot be reached, an error is
raised, and a blob counts as missing only after several attempts.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import anyio

from rebaser.doctor.history import Cost, Finding, History, commit_identity
from rebaser.doctor.log_message import Classification, LogMessage, classify_message, summarize_commit
from rebaser_client.blobs import BlobStore
from rebaser_client.cooperative import cooperate
from rebaser_client.jetstream import JetStream, OrderedConsumer
from rebaser_client.log.commits import DAMAGED, LASTING_CODES
from rebaser_client.log.reader import StateLoader
from rebaser_core.blobs.address import is_address
from rebaser_core.commit import Applied, CheckpointRef, Commit, Kind
from rebaser_core.errors import RebaserError, TransientError, UnprocessableError, UnsupportedVersion
from rebaser_core.ids import ChangeSetKey, RequestId, sequence_id
from rebaser_core.messages import read_branch, read_protected, read_sweep_headers
from rebaser_core.messages.dead_letter import claimed_id
from rebaser_core.state.change_set import BrokenChain, ChangeSetState
from rebaser_core.streams.subjects import Subjects

READ_ATTEMPTS = 5  # maximum number of attempts to read a log while servers purge it
BLOB_ATTEMPTS = 3  # maximum number of attempts to read a blob
BLOB_PAUSE = 0.5  # seconds between these attempts, because a blob store may return a new blob only after a delay
SILENCE = 1.0  # seconds without a message until the reader asks NATS whether there are more
MAX_QUEUED = 1000  # maximum number of requests that `Examination.queued` lists
UNKNOWN_SEQUENCE = -1  # the sequence of a checkpoint whose commit cannot be read

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of an installation: its streams and its blobs."""

    js: JetStream
    subjects: Subjects
    blobs: BlobStore


@dataclass(frozen=True, slots=True)
class UnrecordedRequest:
    """A request that is still in the queue although it was decided, because the commit that decided it is lost."""

    sequence: int
    request_id: RequestId


@dataclass(slots=True)
class Examination:
    """The result of reading the log of `key` from the message at sequence `first` to the message at `last`. Both are 0
    if the log is empty.

    - `findings`: the defects of the log, in log order.
    - `newer`: the reason why only a newer version can read the log. If it is set, there are no findings.
    - `notes`: irregularities that do no harm.
    - `base`: the log sequence of the checkpoint from which `state` was built, 0 for none.
    - `intact_until`: the log sequence up to which the log is intact.
    - `carried`: the number of commits after `intact_until` that `state` contains.
    - `queued`: the requests that the next owner will move to the dead letters after a repair.
    - `unreadable`: the damaged messages, which a repair leaves in place.
    """

    key: ChangeSetKey
    messages: int = 0
    first: int = 0
    last: int = 0
    newer: str = ""
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    base: int = 0
    intact_until: int = 0
    carried: int = 0
    state: ChangeSetState = field(default_factory=ChangeSetState)
    queued: list[UnrecordedRequest] = field(default_factory=list)
    unreadable: list[LogMessage] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        return bool(self.findings)

    @property
    def loses_edits(self) -> bool:
        """Whether a repair loses, or may lose, edits."""
        return any(finding.cost is not Cost.NOTHING for finding in self.findings)


async def examine(stores: Stores, key: ChangeSetKey) -> Examination:
    """Read the log of `key`, and return its defects. Raise `TransientError` if NATS or the blob store cannot be
    reached."""
    return await _Examiner(stores, key).run()


class _Examiner:
    def __init__(self, stores: Stores, key: ChangeSetKey) -> None:
        self._js, self._subjects = stores.js, stores.subjects
        self._reader = StateLoader(stores.js, stores.subjects, stores.blobs)
        self._stream = stores.subjects.commits_stream
        self._subject = stores.subjects.commits(key)
        self._examination = Examination(key)

    async def run(self) -> Examination:
        examination, key = self._examination, self._examination.key
        queue = await self._js.stream_info(self._subjects.requests_stream)
        messages = await self._read()
        if not messages:
            examination.notes.append("the log is empty: no request was ever decided, or all messages were purged")
            return examination
        examination.messages, examination.first, examination.last = (
            len(messages),
            messages[0].sequence,
            messages[-1].sequence,
        )
        examination.unreadable = [message for message in messages if message.classification is Classification.DAMAGED]
        try:
            examination.state = await self._base(messages)
            examination.base = contained = examination.state.last
            created = next((one for one in reversed(messages) if one.commit and one.commit.kind is Kind.CREATE), None)
            if created is not None and contained < created.sequence:
                examination.state = await self._origin(created)
                contained = created.sequence - 1
            await self._fold(messages, Applied(queue.created, queue.last_sequence), contained)
        except UnsupportedVersion as error:
            examination.newer, examination.findings = error.message, []
            return examination
        self._check_newest_headers(messages[-1])
        if not examination.findings:
            await self._cross_check()
        if examination.findings:
            self._restore_marks(messages[-1])
            await self._list_unrecorded(queue.created, key)
        return examination

    async def _read(self) -> list[LogMessage]:
        """Return all messages that the log has at one moment. If a message is purged meanwhile, start again."""
        for _ in range(READ_ATTEMPTS):
            first = await self._js.next(self._stream, self._subject, 1)
            last = await self._js.last(self._stream, self._subject)
            if first is None or last is None:
                return []
            messages = await self._read_to(last.sequence)
            if messages and messages[0].sequence == first.sequence:
                again = await self._js.next(self._stream, self._subject, 1)
                if again is not None and again.sequence == first.sequence:
                    return messages
        raise TransientError("the log is being purged faster than it can be read; run the command again")

    async def _read_to(self, last: int) -> list[LogMessage]:
        messages: list[LogMessage] = []
        position = 0
        async with OrderedConsumer(self._js, self._stream, self._subject) as consumer:
            while position < last:
                with anyio.move_on_after(SILENCE):
                    await consumer.wait()
                if not consumer.pending:
                    next_message = await self._js.next(self._stream, self._subject, position + 1)
                    if next_message is None or next_message.sequence > last:
                        break
                for message in consumer.take(64):
                    await cooperate()
                    position = message.stream_sequence
                    if position <= last:
                        messages.append(classify_message(position, message.timestamp_ns, message.headers, message.data))
        return messages

    async def _base(self, messages: list[LogMessage]) -> ChangeSetState:
        """Return the state of the newest readable checkpoint, or an empty state."""
        for reference, sequence in reversed(_checkpoints(messages)):
            claimed = reference.sequence
            try:
                state, _ = await _retry_missing_blob(partial(self._reader.read_checkpoint, reference))
            except TransientError as error:
                if error.code not in LASTING_CODES:
                    raise
                problem = f"refers to a checkpoint that cannot be read: {error.message}"
            else:
                problem = _mismatch(state.last, sequence, messages)
                if not problem:
                    if claimed not in (UNKNOWN_SEQUENCE, state.last):
                        text = (
                            f"says its checkpoint is of commit {claimed}, but the checkpoint is of commit {state.last}"
                        )
                        self._examination.findings.append(Finding(sequence, text))
                    return state
            if claimed != UNKNOWN_SEQUENCE:
                self._examination.findings.append(Finding(sequence, problem))
        return ChangeSetState()

    async def _origin(self, message: LogMessage) -> ChangeSetState:
        """Return the state of the parent from which the commit in `message` created the change set. If that state
        cannot be read, report a finding and return an empty state."""
        created = message.decode_full()
        try:
            return (await _retry_missing_blob(partial(self._reader.origin_state, created)))[0]
        except TransientError as error:
            if error.code not in (*LASTING_CODES, BrokenChain.default_code):
                raise
            problem = f"creates the change set from commits that cannot be read: {error.message}"
            self._examination.findings.append(
                Finding(message.sequence, problem, Cost.EDITS, summarize_commit(created), message.time_ns)
            )
        state = ChangeSetState()
        state.skip(created.follows)
        return state

    async def _fold(self, messages: list[LogMessage], queue: Applied, contained: int) -> None:
        """Fold the messages after log sequence `contained` into the state, which already contains all earlier
        messages."""
        examination = self._examination
        known = {
            commit_identity(message.commit): message.sequence
            for message in messages
            if message.commit and message.sequence <= contained
        }
        history = History(examination.state, queue, known)
        for message in messages:
            if message.sequence <= contained:
                if message.classification in (Classification.DAMAGED, Classification.NEWER):
                    text = f"message {message.sequence} cannot be read ({message.reason}), which does no harm: "
                    examination.notes.append(
                        f"{text}the checkpoint of commit {examination.base} contains what it changed"
                    )
                continue
            await cooperate()
            if message.classification is Classification.NEWER:
                raise UnsupportedVersion(f"message {message.sequence}: {message.reason}")
            if message.classification is Classification.DAMAGED:
                history.damaged(message)
            elif message.classification is Classification.FOREIGN:
                examination.notes.append(
                    f"message {message.sequence} is not a commit ({message.reason}) and is skipped"
                )
                history.foreign(message)
            else:
                history.commit(message, *await self._with_delta(message.decode_full()))
        examination.findings += history.findings
        examination.intact_until, examination.carried = history.intact_until, history.carried
        examination.state = history.finish()

    async def _with_delta(self, commit: Commit) -> tuple[Commit, str]:
        """Return the commit with its delta, or the unchanged commit and the reason why its delta cannot be read."""
        try:
            return await _retry_missing_blob(partial(self._reader.with_delta, commit)), ""
        except TransientError as error:
            if error.code not in LASTING_CODES:
                raise
            reason = str(error.__cause__) if error.code == DAMAGED else error.message
            return commit, f"has a delta that cannot be read: {reason}"

    def _check_newest_headers(self, message: LogMessage) -> None:
        """Report a finding if the headers of the newest message do not show the sweeper whether an update is due."""
        commit = message.commit
        if (
            commit is None
            or message.unlabelled
            or any(finding.sequence == message.sequence for finding in self._examination.findings)
        ):
            return
        try:
            fits = read_sweep_headers(message.headers) == (commit.applied, commit.debt)
        except UnprocessableError:
            fits = False
        if not fits:
            text = "has headers from which the sweeper cannot tell whether an update is due"
            self._examination.findings.append(
                Finding(message.sequence, text, summary=summarize_commit(commit), time_ns=message.time_ns)
            )

    def _restore_marks(self, newest: LogMessage) -> None:
        """If a `mark` commit was lost, restore the protection or the status that it set from the headers of the newest
        message."""
        state, notes = self._examination.state, self._examination.notes
        if newest.commit is None or newest.reason:
            return
        if read_protected(newest.headers) and not state.protected:
            state.protected = True
            notes.append(
                f"the commit that protected the change set is lost; commit {newest.sequence} repeats its effect"
            )
        try:
            branch = read_branch(newest.headers)
        except RebaserError:
            return
        if branch is not None and state.branch is not None and state.branch.status is not branch.status:
            text = (
                f"the commit that set the status {branch.status} is lost; commit {newest.sequence} repeats the status"
            )
            state.branch.status = branch.status
            notes.append(text)

    async def _cross_check(self) -> None:
        """Load the log like all other readers, and report a finding if that fails. Call this only if no other defect
        was found."""
        try:
            await self._reader.load(self._examination.key)
        except TransientError as error:
            if error.code not in (*LASTING_CODES, "broken_chain"):
                raise
            self._examination.findings.append(
                Finding(self._examination.last, f"cannot be reached by a reader: {error.message}")
            )

    async def _list_unrecorded(self, stream: str, key: ChangeSetKey) -> None:
        """List requests that are still in the queue although a commit, now lost, decided them."""
        applied = self._examination.state.applied
        if applied is None or applied.stream != stream:
            return
        recorded = {outcome.decision.sequence for outcome in self._examination.state.outcomes.unpacked()}
        recorded |= {outcome.decision.sequence for outcome in self._examination.state.redriven.unpacked()}
        sequence = 0
        while len(self._examination.queued) < MAX_QUEUED:
            subject = self._subjects.requests(key)
            message = await self._js.next(self._subjects.requests_stream, subject, sequence + 1)
            if message is None or message.sequence > applied.sequence:
                return
            sequence = message.sequence
            if sequence not in recorded:
                request_id = claimed_id(message.headers, key) or sequence_id(sequence)
                self._examination.queued.append(UnrecordedRequest(sequence, request_id))


def _checkpoints(messages: list[LogMessage]) -> list[tuple[CheckpointRef, int]]:
    """Return every checkpoint that a message in the log refers to, even if the message is damaged, in log order. Each
    is paired with the sequence of the first message that refers to it."""
    named: dict[str, tuple[CheckpointRef, int]] = {}
    for message in messages:
        commit = message.commit
        if commit is not None and (commit.kind is Kind.CREATE or commit.begin):
            continue  # this commit refers to the checkpoint of another change set
        if message.commit is not None and message.commit.checkpoint is not None:
            reference = message.commit.checkpoint
        elif message.classification is Classification.DAMAGED and is_address(message.summary().checkpoint):
            reference = CheckpointRef(message.summary().checkpoint, UNKNOWN_SEQUENCE, 0)
        else:
            continue
        before = named.get(reference.address)
        if before is None or before[0].sequence == UNKNOWN_SEQUENCE:
            named[reference.address] = reference, before[1] if before else message.sequence
    return list(named.values())


def _mismatch(checkpoint: int, named_by: int, messages: list[LogMessage]) -> str:
    """Return the reason why a checkpoint cannot belong to this log, or an empty string. The checkpoint has the state
    after commit `checkpoint`, and message `named_by` refers to it."""
    if checkpoint >= named_by:
        return f"refers to a checkpoint of commit {checkpoint}, which is not before it"
    behind = next((message for message in messages if message.sequence > checkpoint), None)
    if behind is not None and behind.commit is not None and behind.commit.previous < checkpoint:
        follows = f"{behind.sequence} follows {behind.commit.previous}"
        return f"refers to a checkpoint of commit {checkpoint}, which was never in this log: {follows}"
    return ""


async def _retry_missing_blob(read: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `read`. If a blob is missing or corrupt, retry: the blob may be new, or the store may have
    failed once."""
    for _ in range(BLOB_ATTEMPTS - 1):
        try:
            return await read()
        except TransientError as error:
            if error.code not in ("blob_missing", "blob_corrupt"):
                raise
        await anyio.sleep(BLOB_PAUSE)
    return await read()

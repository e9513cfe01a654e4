"""Appends the commits of an owner to its log, and detects when another owner has taken over.

Invariants: commits are appended one at a time. NATS stores a commit only if nothing has been appended to the log since
this owner loaded it or last appended to it. A commit is folded into the state only after it has been appended. An
append whose answer is lost is repeated, with the same bytes and the same expected sequence, until it is answered. No
other commit is built meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio.lowlevel
import structlog

from rebaser.change_set.log.commit_parts import with_before_in_blob, with_delta_in_blob, with_replay_in_blob
from rebaser.change_set.log.drafter import CommitDrafter
from rebaser.change_set.log.encoded_commit import EncodedCommit, UnstorableCommit
from rebaser.change_set.log.needed_blobs import needs_blobs, with_blobs_named
from rebaser.change_set.log.summaries import Summaries
from rebaser.telemetry import feeds
from rebaser.telemetry.clocks import Append
from rebaser_client.backoff import Backoff
from rebaser_client.blobs import BlobStore
from rebaser_client.blobs.freshness import Freshness
from rebaser_client.cooperative import run_in_steps
from rebaser_client.jetstream import ApiError, JetStream, NoAnswerError, NoRespondersError
from rebaser_client.jetstream.errors import TRY_AGAIN, WRONG_LAST_SEQUENCE
from rebaser_client.log.reader import COMMIT_OVERHEAD, LoadedState, search_weight
from rebaser_core import thresholds
from rebaser_core.commit import Commit, Kind
from rebaser_core.errors import FencedError, TransientError, UnprocessableError, UnsupportedVersion
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import check_commit, covers_header, decode_commit, encode_commit
from rebaser_core.state.change_set import ChangeSetState, View
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.streams.subjects import Subjects

if TYPE_CHECKING:
    from rebaser.runtime.own_commits import OwnCommits
    from rebaser.telemetry.spans import ChangeSetSpans, ServerSpans

# The replaced definitions go to a blob first, because readers that fold the commit do not need them.
_MOVES = (with_before_in_blob, with_delta_in_blob, with_replay_in_blob)
_REBASE = Kind.REBASE  # a lookup of an enum member takes 0.1 µs in Python 3.11
log = structlog.get_logger(__name__)

APPEND_TIMEOUT = 5.0  # seconds for one attempt
RETRY, RETRY_MAX = 0.02, 1.0  # seconds until an append is repeated, doubled each time, and their maximum
GIVEN_UP = "NATS did not answer an append before the grace period of the shutdown was over"
PLAIN_MAX_EDITS = 100  # maximum number of edits in a commit for which `encode_plain` is tried
RECENT = 15.0  # seconds for which the duration of an append is reported
PINNED_CHECK = 0.05  # seconds between checks for threads that still read the state


class CommitLog(CommitDrafter):
    """Appends to the log of `key`, and holds the folded `state` of the change set.

    `tail_weight` and `chain` are those of `LoadedState`, for the newest checkpoint.
    `history` tells whether commits and checkpoints record the data from which the history of a value is read. If they
    do, servers of the previous release cannot read them. A delta of more than `inline_max` bytes goes to a blob.
    `now_ms` returns Unix ms, `new_id` a ULID. `on_unanswered` is called each time NATS has not answered an append.
    `logger` adds the name of the change set to its events.
    """

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        key: ChangeSetKey,
        loaded: LoadedState,
        *,
        blobs: BlobStore,
        owner: str,
        inline_max: int,
        retry_window: float,
        history: bool = True,
        now_ms: Callable[[], int],
        new_id: Callable[[], str],
        on_unanswered: Callable[[TransientError], None] = lambda _: None,
    ) -> None:
        super().__init__(loaded.state, owner, retry_window=retry_window, history=history, now_ms=now_ms, new_id=new_id)
        self.key = key
        self.tail_weight = loaded.tail_weight
        self.chain = loaded.chain
        self.logger = log.bind(workspace=key.workspace, change_set=key.change_set)
        self._js = js
        self._stream = subjects.commits_stream
        self.subjects = subjects
        self._subject = subjects.commits(key)
        self._blobs = blobs
        self._summaries = Summaries(owner)
        self._inline_max = inline_max
        self._on_unanswered = on_unanswered
        self._lock = asyncio.Lock()  # taken for every commit; a lock of anyio takes ten times as long
        self._viewing: anyio.Lock | None = None  # exists once a view has been opened
        self._folded: anyio.Event | None = None  # exists while a commit is being folded, and is set afterwards
        self._settling: anyio.CancelScope | None = None  # exists while an append of a cancelled caller is settled
        self._abandoned = False
        self.handed_over = False  # whether this owner's last commit replaced the state
        self.debt = feeds.DebtClock(owes=loaded.state.owes)
        self.left_debt = False  # whether a DVU is due after the commit that replaced the state
        self.traces: ServerSpans | None = None  # exists if traces are on
        self.own_commits: OwnCommits | None = None  # exists in a server
        self.spans: ChangeSetSpans | None = None  # exists while something is being recorded
        self.newest_append: Append | None = None
        self._append_began = 0.0  # when the append in progress began (`feeds.clock`); 0 if there is none

    def append_waits(self) -> float:
        """Return the seconds for which the append in progress has waited for NATS; 0 if there is none."""
        return feeds.clock() - self._append_began if self._append_began else 0.0

    def append_took(self) -> float:
        """Return the seconds that the newest append took; 0 if none ended in the last `RECENT` seconds."""
        newest = self.newest_append
        return newest[2] - newest[1] if newest is not None and feeds.clock() - newest[2] <= RECENT else 0.0

    @property
    def tail_max(self) -> int:
        """The maximum number of bytes that copied commits, or addresses of blobs, may take in a message."""
        return self._inline_max // 4

    def append_lock(self) -> asyncio.Lock:
        """Return the lock that gives the exclusive right to append. Only the task that holds it changes the state."""
        return self._lock

    @asynccontextmanager
    async def view(self) -> AsyncIterator[View]:
        """Open a view of the current state. Only one view is open at a time; a second caller waits."""
        self._viewing = self._viewing or anyio.Lock()
        async with self._viewing:
            while self.state.pinned:  # noqa: ASYNC110 - an abandoned thread may pin the state, and cannot set an event
                await anyio.sleep(PINNED_CHECK)
            while self._folded is not None or self.state.merge_overlay(thresholds.now.overlay_merge_step):
                await (anyio.lowlevel.checkpoint() if self._folded is None else self._folded.wait())
            with self.state.view() as view:
                yield view
        while self.state.merge_overlay(thresholds.now.overlay_merge_step):
            await anyio.lowlevel.checkpoint()

    def abandon(self) -> None:
        """Stop repeating an unanswered append, because a shutdown is running out of time. The append then raises
        `FencedError`.
        An attempt in progress ends at once if its caller is also cancelled, otherwise after `APPEND_TIMEOUT` seconds.
        """
        self._abandoned = True
        if self._settling is not None:
            self._settling.cancel()

    def log_loss(self, recreated_from: int) -> None:
        """Log what state was lost when the stream that holds all the logs was lost. The sequences of the recreated
        stream begin at `recreated_from`. A state that was read from the recreated stream is not lost."""
        state = self.state
        if 0 < state.last < recreated_from:
            checkpoint = state.checkpoint.address if state.checkpoint is not None else None
            self.logger.error("change_set_lost", seq=state.last, values=len(state.cells), checkpoint=checkpoint)

    async def append(self, commit: Commit, freshness: Freshness | None = None) -> int:
        """Encode, publish and fold `commit`; see `encode` and `publish`. The caller must hold `append_lock`."""
        return await self.publish(await self.encode(commit, freshness))

    async def encode(self, commit: Commit, freshness: Freshness | None = None) -> EncodedCommit:
        """Encode `commit` as it will be stored. Parts that are too large for a message go to blobs.

        `freshness` must have been created before the first blob that the commit refers to was stored, and before any
        address in the commit was read from another log. It may be None if the commit refers only to blobs that this
        call stores. Results that refer to rows of a view must be encoded while that view is open. Raise
        `UnstorableCommit` if the bytes do not decode to the commit, and `TransientError` if a blob cannot be stored.
        """
        limits, freshness = thresholds.now, freshness or Freshness()
        is_table = type(commit.delta) is ComputedTable
        inline_rows = limits.inline_table_max_rows if is_table else limits.inline_max_updates
        try:
            if (plain := self.encode_plain(commit)) is not None:
                check_commit(commit, plain.headers, plain.payload)
                return plain
            if len(commit.delta) > inline_rows:
                commit = await with_delta_in_blob(self._blobs, commit)
            if commit.before and len(commit.before) > limits.inline_max_updates:
                commit = await with_before_in_blob(self._blobs, commit)
            if commit.replay and len(commit.replay.bases) > limits.inline_max_updates:
                commit = await with_replay_in_blob(self._blobs, commit)
            headers, payload = encode_commit(commit)
            for move in _MOVES:
                if len(payload) <= self._inline_max and len(payload) <= limits.inline_max_bytes:
                    break
                commit = await move(self._blobs, commit)
                headers, payload = encode_commit(commit)
            in_blobs = needs_blobs(commit)
            if self.history and in_blobs:
                commit = await with_blobs_named(self._blobs, commit, self.tail_max)
                headers, payload = encode_commit(commit)
            headers |= covers_header(commit)
            check_commit(commit, headers, payload)
            headers |= await self._summaries.header(self.state, commit)
            size = sum(blob.size for blob in commit.folded_blobs) if in_blobs else 0
            return EncodedCommit(commit, headers, payload, size, freshness if in_blobs else None)
        except (UnprocessableError, UnsupportedVersion) as error:
            raise self._unreadable(commit, error.message) from error

    def encode_plain(self, commit: Commit) -> EncodedCommit | None:
        """Return what `encode` returns for a commit that needs no blob and leaves no errors, which nearly all commits
        do. Return None for any other commit. The result is not verified; call `check_commit` before publishing it."""
        summary = self._summaries.usual(self.state, commit)
        edits, limits = len(commit.delta), thresholds.now
        if summary is None or edits > PLAIN_MAX_EDITS or edits > limits.inline_max_updates or needs_blobs(commit):
            return None
        headers, payload = encode_commit(commit)
        if len(payload) > self._inline_max or len(payload) > limits.inline_max_bytes:
            return None
        if commit.covers is not None:
            headers |= covers_header(commit)
        return EncodedCommit(commit, headers | summary, payload, 0)

    def _unreadable(self, commit: Commit, reason: str) -> UnstorableCommit:
        self.logger.error("commit_unreadable", commit=commit.id, kind=commit.kind, reason=reason)
        text = f"a {commit.kind} commit of {self.key} was not stored because it cannot be read back: {reason}"
        return UnstorableCommit(text)

    async def publish(self, encoded: EncodedCommit) -> int:
        """Append and fold an encoded commit; return its log sequence. The caller must have held `append_lock` since the
        commit was drafted.

        Raise `FencedError` if another owner appended, if the append was abandoned, or if the commit may be in the log
        but its blobs may have been deleted. Raise `TransientError` if the commit was not stored, and `UnstorableCommit`
        if it is larger than NATS accepts. A cancelled caller still waits until the append is answered or abandoned.
        """
        spans = self.spans
        if spans is not None and spans.batch is None and not spans.uncovered and encoded.commit.requests:
            spans = None  # nearly always: nothing is recorded
        if spans is not None:
            encoded.headers.update(spans.append_begins(encoded.commit, len(encoded.payload)))
        size, began = len(encoded.payload), feeds.clock()
        self._append_began = began
        try:
            sequence = await self._publish(encoded, may_have_landed=False)
        except anyio.get_cancelled_exc_class():
            sequence = await self._settle(encoded)  # the caller is cancelled again at its next await
        finally:
            self._append_began = 0.0
        ended = feeds.commit_appended(began, encoded.commit, size, encoded.blob_size)
        self.newest_append = sequence, began, ended, encoded.commit.id, size
        if self.own_commits is not None:
            self.own_commits.add(sequence, self._subject, encoded.headers)
        if spans is not None:
            spans.append_ended(sequence)
        weight = size + encoded.blob_size + COMMIT_OVERHEAD
        if encoded.commit.kind is not _REBASE and self.state.replaced_by(encoded.commit):
            self._hand_over(sequence, encoded.commit)
            return sequence
        self.tail_weight += weight + search_weight(encoded.commit, self.state.last, sequence)
        if (steps := self._fold(sequence, encoded.commit, weight)) is not None:
            await self._end_fold(steps)
        if (owes := self.state.owes) or self.debt.since is not None:
            self.debt.committed(encoded.commit.kind, owes=owes)
        return sequence

    def _fold(self, sequence: int, commit: Commit, weight: int) -> Iterator[None] | None:
        """Fold a commit. If it is large, return the steps that are left; see `_end_fold`."""
        steps = self.state.fold_in_steps(sequence, commit, weight)
        return None if next(steps, steps) is steps else steps

    async def _end_fold(self, steps: Iterator[None]) -> None:
        """Fold the rest of a large commit in several time slices. No view is opened before the last slice."""
        folded = self._folded = anyio.Event()
        try:
            await run_in_steps(steps)
        finally:
            self._folded = None
            folded.set()

    def _hand_over(self, sequence: int, commit: Commit) -> None:
        """Hand the change set over to its next owner, which has to load the state, because the commit replaced it."""
        self.handed_over, self.left_debt = True, commit.debt > 0
        self.state = ChangeSetState()
        self.state.last, self.state.applied = sequence, commit.applied

    async def _settle(self, encoded: EncodedCommit) -> int:
        """Repeat an append whose caller was cancelled while it waited for the answer, until the append is answered.

        Other appends are not shielded, because a shield would add 5 % to the time that a request takes.
        """
        with anyio.CancelScope(shield=True) as self._settling:
            return await self._publish(encoded, may_have_landed=True)
        raise FencedError(GIVEN_UP)  # reached if `abandon` cancels the scope

    def _check_abandoned(self) -> None:
        """Raise an error if this owner must not append any more."""
        if self._abandoned:
            raise FencedError(GIVEN_UP)
        if self.handed_over:
            raise FencedError(
                "this owner has created, deleted or restored the change set; only the next owner may append to its log"
            )

    def _check_fresh(self, encoded: EncodedCommit, freshness: Freshness, *, may_have_landed: bool) -> None:
        """Raise an error if the garbage collection may have deleted blobs that the commit refers to.

        After that error, this owner or another one builds a new commit, and stores its blobs again.
        """
        if freshness.is_fresh:
            return
        self.logger.warning("append_too_late", commit=encoded.commit.id, seconds=round(freshness.age, 1))
        if may_have_landed:
            raise FencedError(
                "NATS did not answer an append for so long that blobs of the commit may have been deleted"
            )
        raise TransientError(
            "a commit was delayed for so long that its blobs may have been deleted", code="blobs_too_old"
        )

    async def _publish(self, encoded: EncodedCommit, *, may_have_landed: bool) -> int:
        commit_id, backoff = encoded.commit.id, None
        while True:
            self._check_abandoned()
            if encoded.freshness is not None:
                self._check_fresh(encoded, encoded.freshness, may_have_landed=may_have_landed)
            try:
                publishing = self._js.publish(
                    self._subject,
                    encoded.payload,
                    encoded.headers,
                    expected_last_subject_sequence=self.state.last,
                    timeout=APPEND_TIMEOUT,
                )
                return (await publishing).sequence
            except ApiError as error:
                if error.err_code == WRONG_LAST_SEQUENCE:
                    return await self._find_landed(commit_id)
                if error.err_code != TRY_AGAIN and not may_have_landed:
                    raise TransientError(f"NATS refused a commit: {error.message}", code="commit_refused") from error
                self.logger.warning("append_refused", commit=commit_id, reason=error.message)
            except UnprocessableError as error:  # raised before anything is sent
                self.logger.warning("commit_too_large", commit=commit_id, bytes=len(encoded.payload))
                text = f"a commit of {self.key} was not stored: {error.message} ({len(encoded.payload):,} bytes)"
                raise UnstorableCommit(text) from error
            except (NoAnswerError, NoRespondersError, TransientError) as error:
                may_have_landed = True
                self._on_unanswered(error)
                self.logger.warning("append_unanswered", commit=commit_id, reason=error.message)
            if self.spans is not None:
                self.spans.append_retried()
            backoff = backoff or Backoff(RETRY, RETRY_MAX)
            await anyio.sleep(backoff.next_delay())

    async def _find_landed(self, commit_id: str) -> int:
        """Return the log sequence of the commit `commit_id`, which may be in the log although no answer has arrived.

        Raise `FencedError` if the first message after the expected sequence is not this commit.
        """
        while True:
            self._check_abandoned()
            try:
                stored = await self._js.next(self._stream, self._subject, self.state.last + 1)
                break
            except TransientError as error:
                self.logger.warning("append_check_failed", commit=commit_id, reason=error.message)
                await anyio.sleep(RETRY_MAX)
        if stored is not None:
            try:
                if decode_commit(stored.headers, stored.data).id == commit_id:
                    return stored.sequence
            except (UnprocessableError, UnsupportedVersion):
                pass  # a message that is not a commit, or a commit of a newer server, also fences this owner
        text = f"the log of {self.key} does not end at commit {self.state.last} any more: another owner has appended"
        raise FencedError(f"{text} to it, or its stream was created again or restored from a backup")

"""Takes queued requests, decides them in order, makes the decisions durable in one commit, and sends the replies.

Invariant: a request is answered only from a commit that is in the log, and deleted only after it was answered. The one
exception is a request that reuses the id of another request: its refusal (`request_id_reused`) is not in the log. A
request that cannot be decided yet blocks the queue for a bounded time. Either it was written in a newer version, or its
blob is not available.
"""

import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rebaser.change_set.attempts.held_requests import HeldRequests
from rebaser.change_set.attempts.poison import PoisonDetector, Suspicion
from rebaser.change_set.log.commit_drafts import (
    compared,
    merged,
    of_large_batch,
    of_lifecycle,
    of_small_batch,
    with_moved,
)
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.log.encoded_commit import EncodedCommit, UnstorableCommit
from rebaser.change_set.readers.request_reader import INTERNAL_CODES, HeldRequest, RequestReader
from rebaser.change_set.replies import inbox_allowed, plain_reply, reply, with_result_read, with_result_stored
from rebaser.change_set.rounds import Preparation
from rebaser.change_set.settling import request_settling
from rebaser.runtime.context import Context
from rebaser.runtime.dead_letters import PendingDeadLetter
from rebaser.telemetry import feeds
from rebaser_client.blobs.freshness import Freshness
from rebaser_client.cooperative import cooperate
from rebaser_client.jetstream import Message
from rebaser_client.nats.header_lines import Headers
from rebaser_core import thresholds
from rebaser_core.branches.branch import Apply, Rebase
from rebaser_core.commit import Applied, Decision, Outcome, Reverts
from rebaser_core.decisions.decide import DecidedBatch, decide, recorded_outcome
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.encoding.envelope import REPLY_INBOX
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages.headers.traces import trace_fields
from rebaser_core.record import record

if TYPE_CHECKING:
    from rebaser.telemetry.spans import ServerSpans

LOOK_AFTER = 0.001  # minimum seconds between two reads of the thread's CPU time, because each read is a system call
_DEAD = Outcome.DEAD  # a lookup of an enum member takes 0.1 µs in Python 3.11


@record
class Processed:
    """The result of a batch: the requests to copy to the dead letters, and the messages that are still undecided."""

    dead: list[PendingDeadLetter]
    rest: Sequence[Message]


_ALL_ANSWERED = Processed([], [])


class BaseMoved(Exception):  # noqa: N818 - a state of the branch
    """Raised if the base of the branch moved after a request to rebase the branch was read. The request has to be read
    again."""


class Processor:
    """Processes the requests of the change set whose log is `commits`.

    `applied` is the creation time of the request stream, and the highest sequence that was decided in it. `detector`
    decides which requests are attempted one by one. `answered` is the sequence of the last request that was decided or
    answered. `rebasing` tells whether a request to rebase the branch is being decided.
    """

    def __init__(self, context: Context, commits: CommitLog, applied: Applied, detector: PoisonDetector) -> None:
        self._context = context
        self._commits = commits
        self._key, self._log = commits.key, commits.logger
        self.applied = applied
        self._detector = detector
        self._freshness = Freshness()  # the age of the blobs that were read or stored for the next commit
        self._reader = RequestReader(context, commits.key)
        self._replies_under = context.settings.replies_under()
        self._held_requests = HeldRequests(context, commits)
        self._pending_dead: dict[int, PendingDeadLetter] = {}  # dead letters to copy, by request sequence
        self.answered, self.rebasing = 0, False
        self._prepared: Preparation | None = None  # what was prepared for the next batch
        self._taken = 0  # when the current batch was taken from the queue (`time.monotonic_ns`)

    @property
    def owes_dead_letters(self) -> bool:
        """Whether some requests with the outcome `dead` still have to be copied, answered and deleted."""
        return bool(self._pending_dead)

    def process(self, messages: Sequence[Message]) -> Coroutine[Any, Any, Processed]:
        """Decide, commit and answer `messages`, in order: as many as fit into one commit. Await the result.

        If a request cannot be decided yet, raise `QueueBlocked` once the requests before it are done. Raise
        `FencedError` if this owner must not append any more, and `TransientError` in an outage. After either of the
        last two errors, all unanswered requests are still queued; the log tells which of them are decided.
        """
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.is_complete and prepared.messages is messages:
            return self._process_prepared(prepared)
        count = self._detector.batchable_prefix(messages)
        if count == len(messages):  # nearly always; a coroutine here would cost each request a little
            return self._process(messages, self._detector.examine(messages))
        return self._process_first(messages, count)

    def prepare(self, messages: Sequence[Message]) -> Preparation | None:
        """Return a preparation of the commit for `messages`, which `process` uses once it is complete. Return None if
        `process` has to do everything itself."""
        if len(messages) != 1 or not self._detector.batchable_prefix(messages):
            return None
        if self._detector.examine(messages).rejections:
            return None
        self._taken = time.monotonic_ns()
        self._prepared = Preparation(messages, self._reader, self._commits, self.applied)
        return self._prepared

    async def _process_prepared(self, prepared: Preparation) -> Processed:
        """Commit and answer the request for which a commit was prepared."""
        commits, messages, decided = self._commits, prepared.messages, prepared.decided
        sequence: int | None = None
        lock = commits.append_lock()
        await lock.acquire()  # `async with` takes twice as long
        try:
            if prepared.is_current(self.applied):
                if commits.traces is not None:
                    self._trace(commits.traces, messages, decided)
                sequence = await commits.publish(prepared.encoded)
                self.applied = decided.applied
        except UnstorableCommit:
            pass  # `_process` gets the same error, and handles it
        finally:
            lock.release()
        if sequence is None:
            return await self._process(messages, self._detector.examine(messages))
        await self._answer_all(messages, decided, sequence)
        return _ALL_ANSWERED

    async def _process_first(self, messages: Sequence[Message], count: int) -> Processed:
        if count:
            done = await self._process(messages[:count], self._detector.examine(messages[:count]))
            return Processed(done.dead, [*done.rest, *messages[count:]])
        async with self._detector.attempt_alone(messages[0]) as suspicion:
            done = await self._process(messages[:1], suspicion)
            return Processed(done.dead, [*done.rest, *messages[1:]])

    async def _process(self, messages: Sequence[Message], suspicion: Suspicion) -> Processed:
        self._freshness = Freshness()
        self._taken = time.monotonic_ns()
        requests, held = await self._read(messages, suspicion)
        try:
            dead = await self._commit(messages, requests) if requests else []
        except BaseMoved:
            return Processed([], messages)
        except UnstorableCommit as error:
            if len(requests) > 1:  # they do not fit into one commit, or one of them is at fault; halving isolates it
                half = len(requests) // 2
                first = await self._process(messages[:half], suspicion)
                return Processed(first.dead, [*first.rest, *messages[half:]])
            held = HeldRequest(requests[0], RebaserError(error.message, code=INTERNAL_CODES[0]))
            expired = self._held_requests.expired(held, messages[0], self.applied)
            if expired is None:
                raise await self._held_requests.block(held, messages[0], suspicion, []) from error
            return Processed(await self._commit(messages, [expired]), messages[1:])
        if held is not None:
            raise await self._held_requests.block(held, messages[len(requests)], suspicion, dead)
        if not dead and len(requests) == len(messages):
            return _ALL_ANSWERED
        return Processed(dead, messages[len(requests) :])

    async def _read(
        self, messages: Sequence[Message], suspicion: Suspicion
    ) -> tuple[list[QueuedRequest], HeldRequest | None]:
        """Read `messages` until one commit is full or a request has to wait. Return the requests for the commit, and
        the request that has to wait, if any."""
        requests: list[QueuedRequest] = []
        self._reader.room = self._context.settings.batch_max_bytes
        until, looked_at = await cooperate(), time.monotonic()
        for message in messages:
            if requests and (now := time.monotonic()) - looked_at >= LOOK_AFTER:
                looked_at = now
                if time.thread_time() >= until:
                    until = await cooperate()
            try:
                request = suspicion.rejections.get(message.stream_sequence) or await self._reader.read(message)
                if request.action is not None:  # a request with an action is decided in a commit of its own
                    if requests:  # decide the requests before it first; the next batch reads it again
                        return requests, None
                    return [await self._with_sources(request, message)], None
                requests.append(request)
            except HeldRequest as held:
                expired = self._held_requests.expired(held, message, self.applied)
                if expired is None:
                    return requests, held
                requests.append(expired)
            if self._reader.room <= 0:
                break
        return requests, None

    async def _with_sources(self, request: QueuedRequest, message: Message) -> QueuedRequest:
        """Return `request`, which has an action, with the log data that its action needs. If the request is already
        decided, return it unchanged."""
        state = self._commits.state
        recorded = recorded_outcome(state, self.applied, request.request_id, request.sequence, request.redrive)
        if recorded is not None or request.sequence <= self.applied.sequence:
            return request
        self.rebasing = isinstance(request.action, Rebase)
        return await self._reader.with_sources(request, self._commits, message.timestamp_ns // 1_000_000)

    async def _commit(self, messages: Sequence[Message], requests: list[QueuedRequest]) -> list[PendingDeadLetter]:
        commits = self._commits
        lock = commits.append_lock()
        await lock.acquire()  # `async with` takes twice as long
        try:
            decided = await self._decide(requests)
            if commits.traces is not None:
                self._trace(commits.traces, messages, decided)
            encoded = await self._encode(messages, requests, decided)
            sequence = commits.state.last
            if encoded is not None:
                sequence = await commits.publish(encoded)
                self.applied = decided.applied
                if decided.skipped:
                    self._log.error("requests_skipped", commit=encoded.commit.id, count=decided.skipped)
            self.rebasing = False
        finally:
            lock.release()
        if repeated := len(decided.answers) - len(decided.decisions):
            feeds.requests_repeated(repeated)
        if requests[0].action is not None:
            await self._settle(requests[0], messages[0], *decided.answers[0], sequence)
        return await self._answer_all(messages, decided, sequence)

    async def _decide(self, requests: list[QueuedRequest]) -> DecidedBatch:
        """Decide `requests`. The caller must hold the append lock."""
        state = self._commits.state
        if requests[0].action is not None:
            requests[0] = await self._compared(requests[0])
        for number, request in enumerate(requests):
            if request.expect_at is not None and len(request.patch or request.updates) > thresholds.now.fold_step:
                requests[number] = await with_moved(state, request)
        decided = decide(state, self.applied, requests)
        return await self._with_result(decided) if decided.decisions and decided.decisions[0].conflicts else decided

    async def _encode(
        self, messages: Sequence[Message], requests: list[QueuedRequest], decided: DecidedBatch
    ) -> EncodedCommit | None:
        """Return the commit for `decided`; None if it decides nothing new. The caller must hold the append lock."""
        commits = self._commits
        if not decided.decisions:
            return None
        stored_ms = messages[len(requests) - 1].timestamp_ns // 1_000_000
        if decided.fork is not None or decided.marking is not None:
            commit = await of_lifecycle(self._context.blobs, commits, messages[0], decided)
        elif len(decided.delta) <= thresholds.now.fold_step:
            commit = of_small_batch(commits, decided, stored_ms)
        else:
            commit = await of_large_batch(commits, decided, stored_ms)
        return await commits.encode(commit, self._freshness)

    def _trace(self, traces: "ServerSpans", messages: Sequence[Message], decided: DecidedBatch) -> None:
        chosen = traces.maker.chosen(messages, len(decided.answers))
        if chosen or self._commits.spans is not None:
            traces.of(self._commits).decided(messages, decided, self._taken, chosen)

    async def _settle(
        self, request: QueuedRequest, message: Message, decision: Decision, earlier: int | None, sequence: int
    ) -> None:
        """If the request applied a branch, send that branch a request to take over the commit that applied it.
        `sequence` is the new commit; if an earlier commit decided the request, `earlier` is that commit."""
        if isinstance(request.action, Apply) and decision.outcome is Outcome.SUCCESS and decision.position:
            branch = ChangeSetKey.of(self._key.workspace, request.action.source)
            commit, spans = sequence if earlier is None else earlier, self._commits.spans
            trace = {} if spans is None else spans.headers_after(message)
            await request_settling(self._context, branch, decision.position, commit, trace)

    async def _with_result(self, decided: DecidedBatch) -> DecidedBatch:
        """Store the conflicts of the reply in a blob if they contain the definitions of both sides. Only a request that
        is decided in a batch of its own can have such conflicts."""
        if not (self._commits.history and len(decided.decisions) == 1 and decided.decisions[0].conflicts):
            return decided
        (decision,) = decided.decisions
        if not any(conflict.sides for conflict in decision.conflicts):
            return decided
        stored = await with_result_stored(self._context.blobs, decision)
        answers = [(stored if one is decision else one, commit) for one, commit in decided.answers]
        return replace(decided, decisions=(stored,), answers=tuple(answers))

    async def _compared(self, request: QueuedRequest) -> QueuedRequest:
        """Return a request that has an action, with the result of comparing what it brings with the current state. The
        caller must hold the append lock.

        Raise `BaseMoved` if a pull moved the base after the target of a rebase was read.
        """
        if isinstance(request.action, (Reverts, Apply)):
            return await merged(self._commits.state, request)
        branch, theirs, action = self._commits.state.branch, request.theirs, request.action
        if branch is None or theirs is None or not isinstance(action, Rebase):
            return request  # `decide` refuses it
        if not theirs.fits(branch):
            raise BaseMoved
        return replace(request, replayed=await compared(self._commits.state, branch, theirs, action.strategy))

    async def _answer_all(
        self, messages: Sequence[Message], decided: DecidedBatch, sequence: int
    ) -> list[PendingDeadLetter]:
        answers, dead, done, room, at = decided.answers, [], [], True, 0
        for decision, earlier in answers:
            message, commit = messages[at], sequence if earlier is None else earlier
            at += 1
            if decision.outcome is _DEAD and decision.sequence == message.stream_sequence:
                self._pending_dead[decision.sequence] = PendingDeadLetter(message, decision, commit)
                dead.append(self._pending_dead[decision.sequence])
            elif (original := self._pending_dead.get(decision.sequence)) is not None:
                original.duplicates.append(message)
            else:
                if decision.result is not None:
                    decision = await with_result_read(self._context.blobs, decision)  # noqa: PLW2901 - still the same
                room = self.answer(message, decision, commit) and room
                done.append(message.stream_sequence)
        if not room:
            await self._context.connection.flush()
        answered = messages if len(messages) == at else messages[:at]
        now, commits = feeds.requests_answered(answered, self._taken), self._commits
        if (traces := commits.traces) is not None:
            recording = commits.spans is not None and commits.spans.batch is not None
            # The first message is the oldest: if it was not slow, none was.
            if recording or now - messages[0].timestamp_ns > traces.maker.slower_than:
                spans, append = traces.of(commits), commits.newest_append
                feeds.requests_traced(spans.answered(sequence, messages, decided, self._taken, append), now)
                spans.drop_if_idle(commits)
        self._context.deleter.add(done, self.applied.stream)
        self.answered = messages[at - 1].stream_sequence
        return dead

    def answer(self, message: Message, decision: Decision, commit: int) -> bool:
        """Send the reply if the client asked for one and its inbox is allowed.

        A failure is only logged, because the decision is in the log already. Return False if many bytes are unsent; the
        caller should then await `Connection.flush`.
        """
        inbox = (message.headers or {}).get(REPLY_INBOX)
        if inbox is None:
            return True
        if not inbox_allowed(inbox, self._replies_under):
            self._log.warning(
                "reply_refused", seq=message.stream_sequence, inbox=inbox[:80], **trace_fields(message.headers)
            )
            return True
        about, spans = (message.headers, self._key, decision, commit), self._commits.spans
        trace: dict[str, str] = {}
        if spans is not None and spans.batch is not None and message.stream_sequence in spans.batch.spans:
            trace = spans.headers_after(message)
        encoded: tuple[Headers, bytes] | None = None if trace else plain_reply(*about)
        if encoded is None:
            headers, payload = reply(*about)
            encoded = headers | trace, payload
        try:
            return self._context.connection.publish_soon(inbox, encoded[1], encoded[0])
        except RebaserError as error:
            self._log.warning("reply_failed", seq=message.stream_sequence, reason=error.message)
            return True

    async def publish_dead_letter(self, pending: PendingDeadLetter) -> None:
        """Copy a dead request to the dead letters, answer it, and delete it.

        Raise `TransientError` if the request could not be copied; the call can be repeated.
        """
        context, decision = self._context, pending.decision
        await context.dead_letters.publish(self._key, pending.message, decision, context.now_ms())
        fields = {"seq": decision.sequence, "id": decision.request_id, "code": decision.code}
        fields |= trace_fields(pending.message.headers)
        self._log.warning("request_dead", **fields, reason=decision.message)
        self._pending_dead.pop(decision.sequence, None)  # from now on, repeated messages are answered at once
        for message in (pending.message, *pending.duplicates):
            if not self.answer(message, decision, pending.commit):
                await context.connection.flush()
            self._context.deleter.add([message.stream_sequence], self.applied.stream)

"""Takes queued requests, decides them in order, makes them durable in one commit, and answers.

Invariant: a request is answered only from a commit that is in the log, and deleted only after it was answered. What
cannot be decided yet (a newer version, a blob that is away) stops the queue there, for a bounded time.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import structlog

from rebaser.change_set.commit_log import CommitLog, UnreadableCommit
from rebaser.change_set.poison import PoisonDetector
from rebaser.change_set.replies import inbox_allowed, reply
from rebaser.change_set.request_reader import INTERNAL_CODES, DeferredRequest, RequestReader
from rebaser.change_set.retry_budget import RetryBudget
from rebaser.runtime.context import Context
from rebaser_client.cooperative import cooperate
from rebaser_client.jetstream import Message
from rebaser_core.commit import Applied, Attempt, Decision, Kind, Outcome
from rebaser_core.decide import QueuedRequest, decide, recorded_outcome
from rebaser_core.encoding.envelope import REPLY_INBOX
from rebaser_core.errors import RebaserError, TransientError, UnprocessableError

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PendingDeadLetter:
    """A request decided `dead`, still to be copied, answered and deleted.

    `commit`: where the log says so, or where it holds the other request that has the same id.
    `again`: the same request, sent once more meanwhile; it is answered when the copy is stored, no sooner.
    """

    message: Message
    decision: Decision
    commit: int
    again: list[Message] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Processed:
    """The result of a batch: `dead` requests, yet to be published, and `rest`, which did not fit into the commit."""

    dead: list[PendingDeadLetter]
    rest: Sequence[Message]


class QueueBlocked(TransientError):  # noqa: N818 - a state of the queue
    """The first request in line cannot be decided yet: its code is that of the reason.

    `delay` (s): when to try again; `left` (s): how long it may still be held; `dead`: dead requests in front of it,
    decided but not yet copied.
    """

    def __init__(self, error: RebaserError, delay: float, left: float, dead: list[PendingDeadLetter]) -> None:
        super().__init__(error.message, code=error.code)
        self.delay = delay
        self.left = left
        self.dead = dead


class Processor:
    """Processes the requests of the change set whose log is `commits`.

    `epoch`: the request stream (creation time) and the highest sequence that is decided in it; `detector`: which
    requests are decided one by one.
    """

    def __init__(self, context: Context, commits: CommitLog, epoch: Applied, detector: PoisonDetector) -> None:
        self._context = context
        self._commits = commits
        self._key = commits.key
        self.epoch = epoch
        self._detector = detector
        self._reader = RequestReader(context, commits.key)
        outcomes = [*commits.state.outcomes.values(), *commits.state.redriven.values()]
        self._budget = RetryBudget(int(context.settings.retry_for * 1000), outcomes)
        self._pending_dead: dict[int, PendingDeadLetter] = {}  # by request sequence

    async def process(self, messages: Sequence[Message]) -> Processed:
        """Decide, commit and answer `messages`, in order, as many as one commit may hold.

        Raises `QueueBlocked` after everything in front of the held request is done, `FencedError`, or `TransientError`
        with nothing decided.
        """
        together = self._detector.batchable_prefix(messages)
        if together:
            done = await self._process(messages[:together])
            return Processed(done.dead, [*done.rest, *messages[together:]])
        async with self._detector.attempt_alone(messages[0]) as rejection:
            if rejection is None:
                done = await self._process(messages[:1])
            else:
                done = Processed(await self._commit(messages[:1], [rejection]), ())
            return Processed(done.dead, messages[1:])

    async def _process(self, messages: Sequence[Message]) -> Processed:
        incoming: list[QueuedRequest] = []
        held: tuple[DeferredRequest, Attempt] | None = None
        self._reader.room = self._context.settings.batch_max_bytes
        until = await cooperate()
        for number, message in enumerate(messages):
            if number and time.thread_time() >= until:
                until = await cooperate()
            try:
                incoming.append(self._detector.known_poison(message) or await self._reader.read(message))
            except DeferredRequest as problem:
                tried = self._tried(problem, message)
                late = self._give_up(problem, tried)
                if late is None:
                    held = problem, tried
                    break
                incoming.append(late)
            if self._reader.room <= 0:
                break
        try:
            dead = await self._commit(messages, incoming) if incoming else []
        except UnreadableCommit as error:
            if len(incoming) > 1:  # one of them is to blame, and its neighbours must not wait for it
                return Processed((await self._process(messages[:1])).dead, messages[1:])
            dead = await self._commit_unreadable(messages[0], incoming[0], error)
        if held is not None:
            raise await self._hold(*held, dead)
        return Processed(dead, messages[len(incoming) :])

    async def _commit_unreadable(
        self, message: Message, incoming: QueuedRequest, error: RebaserError
    ) -> list[PendingDeadLetter]:
        """Declare a request dead whose commit could not be read back, if that was tried often enough; else hold it."""
        problem = DeferredRequest(incoming, RebaserError(error.message, code=INTERNAL_CODES[0]))
        tried = self._tried(problem, message)
        late = self._give_up(problem, tried)
        if late is None:
            raise await self._hold(problem, tried, [])
        return await self._commit([message], [late])

    async def _commit(self, messages: Sequence[Message], incoming: list[QueuedRequest]) -> list[PendingDeadLetter]:
        commits = self._commits
        async with commits.append_lock():
            state = commits.state
            decided = decide(state, self.epoch, incoming)
            sequence = state.last
            if decided.decisions:
                owes = state.owes or state.wakes(decided.delta) or bool(decided.recompute)
                # A clock that is far behind must not let outcomes look so old that the next owner forgets them.
                stored_ms = messages[len(incoming) - 1].timestamp_ns // 1_000_000
                commit = commits.draft(
                    Kind.REBASE,
                    not_before_ms=stored_ms,
                    applied=decided.applied,
                    requests=decided.decisions,
                    delta=decided.delta,
                    delta_blob=decided.delta_blob,
                    covers=state.covers if owes else None,
                    recompute=decided.recompute,
                    debt=state.debt + len(decided.delta) + len(decided.recompute) if owes else 0,
                )
                sequence = await commits.append(commit)
                self.epoch = decided.applied
                if decided.skipped:
                    log.error("requests_skipped", **self._names(), commit=commit.id, count=decided.skipped)
        return await self._answer_all(messages, decided.answers, sequence)

    async def _answer_all(
        self, messages: Sequence[Message], answers: Sequence[tuple[Decision, int | None]], sequence: int
    ) -> list[PendingDeadLetter]:
        dead: list[PendingDeadLetter] = []
        done: list[int] = []
        for message, (decision, earlier) in zip(messages, answers, strict=False):
            commit = sequence if earlier is None else earlier
            if decision.outcome is Outcome.DEAD and decision.sequence == message.stream_sequence:
                self._pending_dead[decision.sequence] = PendingDeadLetter(message, decision, commit)
                dead.append(self._pending_dead[decision.sequence])
            elif (original := self._pending_dead.get(decision.sequence)) is not None:
                original.again.append(message)
            else:
                await self.answer(message, decision, commit)
                done.append(message.stream_sequence)
        self._context.deleter.add(done)
        return dead

    async def answer(self, message: Message, decision: Decision, commit: int) -> None:
        """Send the reply, if one is asked for and may be sent. A failure is logged: the commit stands."""
        inbox = (message.headers or {}).get(REPLY_INBOX)
        if inbox is None:
            return
        if not inbox_allowed(inbox, self._context.settings.inbox_prefix):
            log.warning("reply_refused", **self._names(), seq=message.stream_sequence, inbox=inbox[:80])
            return
        headers, payload = reply(message.headers, self._key, decision, commit)
        try:
            await self._context.connection.publish(inbox, payload, headers)
        except RebaserError as error:
            log.warning("reply_failed", **self._names(), seq=message.stream_sequence, reason=error.message)

    async def publish_dead_letter(self, pending: PendingDeadLetter) -> None:
        """Copy a dead request to the dead letters, answer it, delete it; raises `TransientError` to be tried again."""
        context, decision = self._context, pending.decision
        await context.dead_letters.publish(self._key, pending.message, decision, context.now_ms())
        names = {**self._names(), "seq": decision.sequence, "id": decision.request_id}
        log.warning("request_dead", **names, code=decision.code, reason=decision.message)
        self._pending_dead.pop(decision.sequence, None)  # from here on its like are answered at once
        for message in (pending.message, *pending.again):
            await self.answer(message, decision, pending.commit)
            self._context.deleter.add([message.stream_sequence])

    def _tried(self, problem: DeferredRequest, message: Message) -> Attempt:
        """How often a request was held before, and since when it waits."""
        attempt = self._commits.state.attempts.get(message.stream_sequence)
        if attempt is not None and attempt.count:
            return attempt
        stored = message.timestamp_ns // 1_000_000
        return Attempt(
            message.stream_sequence, 0, self._budget.wait_start(problem.error.code, stored, self._context.now_ms())
        )

    def _give_up(self, problem: DeferredRequest, tried: Attempt) -> QueuedRequest | None:
        """A request that was held too long, as dead; None if it may wait. An outage or a deploy kills nobody."""
        state, settings, error, request = self._commits.state, self._context.settings, problem.error, problem.incoming
        if recorded_outcome(state, self.epoch, request.request_id, request.sequence, request.redrive) is not None:
            return request
        now = self._context.now_ms()
        waited = (now - tried.first_ms) / 1000
        # A defect of ours, or a hostile payload: time would not mend it, and a new version may.
        if tried.count < settings.max_attempts if error.code in INTERNAL_CODES else waited < settings.retry_for:
            return None
        self._budget.record_exhausted(error.code, now)
        text = f"{error.message} (given up after {waited:.0f} s and {tried.count} tries)"
        return replace(request, error=UnprocessableError(text, code=error.code), attempts=tried.count)

    async def _hold(self, problem: DeferredRequest, tried: Attempt, dead: list[PendingDeadLetter]) -> QueueBlocked:
        """Record one more try, so that the time a request may wait is bounded whoever owns it."""
        commits, settings, sequence = self._commits, self._context.settings, tried.sequence
        # A clock that is behind the one that noted the first try counts from its own now.
        count, first = tried.count + 1, min(tried.first_ms, self._context.now_ms())
        async with commits.append_lock():
            attempt = Attempt(sequence, count, first, self._detector.deaths_before(sequence))
            await commits.append(commits.draft(Kind.ATTEMPT, attempt=attempt, debt=commits.state.debt))
        reason = problem.error.message
        log.warning("request_held", **self._names(), seq=sequence, attempt=count, reason=reason)
        left = max(settings.retry_for - (self._context.now_ms() - first) / 1000, 0.0)
        return QueueBlocked(problem.error, min(0.25 * 2 ** min(count, 10), 5.0, left + 0.05), left, dead)

    def _names(self) -> dict[str, str]:
        return {"workspace": self._key.workspace, "change_set": self._key.change_set}

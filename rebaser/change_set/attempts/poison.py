"""Finds the request that kills or hangs its owners, and rejects it without rejecting the requests around it.

Invariant: a death counts against a request only if its owner recorded the attempt in the log, and no later commit
records that the attempt ended. An owner that is stopped, is fenced, or runs into an outage withdraws its attempt: it
records that the attempt ended. An owner that stalled until its lease ran out does not withdraw its attempt. The stall
counts as a hang, even if there is no other server that could take over.

Withdrawing an attempt appends a commit, so it fails while the stream of all logs is full. The owner then keeps its task
and retries until there is room. It does not give the task back, because the next owner might find enough room to record
another attempt, but not enough to decide the request. Each owner would then leave one more death in the log, until a
harmless request counted as poison only because the stream is full.

If a task is redelivered, its previous owner may have died. The request that killed that owner is one of the requests
that the owner had taken: at most one batch, from the front of the queue. The next owner decides these requests one by
one, and appends an `attempt` commit before each of them. Requests behind them, and requests that arrive later, are
batched as usual. A message that repeats a decided request does not count towards that batch. Answering such a message
leaves no trace in the log, so each further owner would count it again, and would examine fewer of the requests behind
it. A process attempts only one request with a recorded death at a time. If the process dies, its death then counts
against no other such request.

The attempt that killed the first owner was not recorded, because recording every attempt would double the writes. So a
request has killed or hung one more owner than the log counts against it.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field, replace

import anyio
import anyio.lowlevel

from rebaser.change_set.log.commit_log import CommitLog
from rebaser.runtime.context import Context
from rebaser_client.backoff import Backoff
from rebaser_client.jetstream import Message
from rebaser_core.commit import Attempt, Kind
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.errors import RebaserError, TransientError, UnprocessableError
from rebaser_core.ids import sequence_id
from rebaser_core.messages.dead_letter import claimed_id, read_redrive
from rebaser_core.record import record

POISON = "poison"  # error code of a request that is rejected because it killed or hung its owners
WITHDRAW_RETRY = 0.1  # seconds until an owner retries the refused commit that withdraws an attempt; doubled each time
WITHDRAW_RETRY_MAX = 5.0  # maximum seconds until the owner retries the refused commit


@record
class Suspicion:
    """The detector's findings about messages that are about to be decided.

    The keys of both fields are request sequences. For each message that must be rejected unread, `rejections` has a
    request that carries only the error. `deaths` has the number of deaths that count against each request, not
    including the attempt in progress.
    """

    rejections: Mapping[int, QueuedRequest] = field(default_factory=dict)
    deaths: Mapping[int, int] = field(default_factory=dict)


_NONE_SUSPECTED = Suspicion()


class PoisonDetector:
    """Decides for one owner which requests are attempted one by one, and which are rejected.

    `redelivered` tells whether the task had an earlier owner, which may have died. `after` is the highest request
    sequence that was decided so far. `until` is the last sequence of the request stream at the time when this owner
    loaded the log. `hung` returns whether this owner stalled and lost its lease.
    """

    def __init__(
        self,
        context: Context,
        commits: CommitLog,
        *,
        redelivered: bool,
        after: int,
        until: int,
        hung: Callable[[], bool],
    ) -> None:
        self._context = context
        self._commits = commits
        self._hung = hung
        self._after = after
        self._until = until
        state = commits.state
        outcomes = [*state.outcomes.unusual(), *state.redriven.unusual()]
        poison = [outcome.decision for outcome in outcomes if outcome.decision.code == POISON]
        self._poison_ids = {decision.request_id for decision in poison}
        self._decided = frozenset([decision.sequence for decision in poison if decision.sequence <= after])
        recorded = any(attempt.deaths for attempt in state.attempts.values() if attempt.sequence > after)
        # The number of requests that are still to be attempted alone.
        self._suspects = context.settings.batch_max_requests if redelivered or recorded else 0

    def batchable_prefix(self, messages: Sequence[Message]) -> int:
        """Return how many of `messages`, counted from the first, may be decided together; 0 if the first message must
        be attempted alone."""
        if self._suspects:
            for index, message in enumerate(messages):
                if self._after < message.stream_sequence <= self._until:
                    return index
        return len(messages)

    def examine(self, messages: Sequence[Message]) -> Suspicion:
        """Return what the log records about `messages`, which are about to be decided together."""
        attempts = self._commits.state.attempts
        if not attempts and not self._poison_ids:
            return _NONE_SUSPECTED
        sequences = [message.stream_sequence for message in messages]
        deaths = {sequence: attempts[sequence].deaths for sequence in sequences if sequence in attempts}
        return Suspicion(self._known_poison(messages), deaths)

    @asynccontextmanager
    async def attempt_alone(self, message: Message) -> AsyncIterator[Suspicion]:
        """Enter a context in which to decide only the request `message`. The attempt is recorded in the log. If
        `max_deaths` deaths already count against the request, it is rejected instead.

        Raise the errors of `CommitLog.append`.
        """
        commits, sequence = self._commits, message.stream_sequence
        before = commits.state.attempts.get(sequence) or Attempt(sequence, 0, self._context.now_ms())
        applied = commits.state.applied
        if before.deaths >= self._context.settings.max_deaths:
            servers = "1 server" if before.deaths == 1 else f"{before.deaths} servers"
            reason = f"{servers} died, hung or failed while processing this request"
            rejection = self._rejection(message, reason, before)
            self._poison_ids.add(rejection.request_id)
            yield Suspicion({sequence: rejection})
        else:
            async with AsyncExitStack() as stack:
                if before.deaths:
                    await stack.enter_async_context(self._context.suspect_request_lock)
                    commits.logger.warning("request_suspected", seq=sequence, deaths=before.deaths)
                # Any exception other than a `RebaserError` points to a bug that this request triggers. The attempt then
                # stays recorded, as if the server had died.
                async with recorded_attempt(self._context, commits, before, self._hung):
                    yield Suspicion(self._known_poison([message]), {sequence: before.deaths})
        if commits.state.applied != applied:
            self._suspects -= 1

    def _known_poison(self, messages: Sequence[Message]) -> dict[int, QueuedRequest]:
        """Return a rejection for each of `messages` whose request was rejected as poison before, by request sequence.

        Such a request may be in the queue because its client sent it again, or because an owner died before it deleted
        the message. A request that was redriven since its rejection is not rejected here, because the cause may have
        been fixed.
        """
        rejections = {}
        for message in messages if self._poison_ids else ():
            sequence = message.stream_sequence
            if read_redrive(message.headers) and sequence not in self._decided:
                continue
            if claimed_id(message.headers, self._commits.key) in self._poison_ids:
                reason = "this request was rejected before, because servers died, hung or failed while processing it"
                rejections[sequence] = self._rejection(message, reason)
        return rejections

    def _rejection(self, message: Message, reason: str, attempt: Attempt | None = None) -> QueuedRequest:
        sequence = message.stream_sequence
        return QueuedRequest(
            sequence,
            claimed_id(message.headers, self._commits.key) or sequence_id(sequence),
            error=UnprocessableError(reason, code=POISON),
            redrive=read_redrive(message.headers),
            attempts=attempt.count + attempt.deaths if attempt else 0,
        )


@asynccontextmanager
async def recorded_attempt(
    context: Context, commits: CommitLog, before: Attempt, hung: Callable[[], bool]
) -> AsyncIterator[None]:
    """Enter a context that records an attempt, as one more death than `before` has. The attempt is withdrawn when the
    body of the context ends as expected.

    The body ends as expected if it returns, raises a `RebaserError`, or is cancelled. After any other exception, the
    attempt stays recorded. If NATS refuses the commit that withdraws the attempt, the context keeps trying to append it
    until the context is cancelled.

    An attempt that is cancelled because its owner `hung` is not withdrawn. Raise the errors of `CommitLog.append`.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()  # an owner that has lost its lease must not record an attempt
    await _write(commits, replace(before, deaths=before.deaths + 1))
    try:
        yield
    except (RebaserError, anyio.get_cancelled_exc_class()):
        if not hung():
            await _withdraw(context, commits, before)
        raise
    await _withdraw(context, commits, before)


async def _write(commits: CommitLog, attempt: Attempt) -> None:
    async with commits.append_lock():
        await commits.append(commits.draft(Kind.ATTEMPT, attempt=attempt, debt=commits.state.debt))


async def _withdraw(context: Context, commits: CommitLog, before: Attempt) -> None:
    """Record that the attempt ended, unless the log no longer counts it because it succeeded.

    Retry while NATS refuses the commit. If the owner is cancelled, try only once.
    """
    backoff = Backoff(WITHDRAW_RETRY, WITHDRAW_RETRY_MAX)
    while (recorded := commits.state.attempts.get(before.sequence)) is not None and recorded.deaths > before.deaths:
        with anyio.CancelScope(shield=True):
            try:
                await _write(commits, replace(recorded, deaths=before.deaths))
            except RebaserError as error:
                commits.logger.warning("attempt_not_taken_back", seq=before.sequence, reason=error.message)
                if not isinstance(error, TransientError):
                    return
                context.health.record(context.now(), error, key=commits.key)
            else:
                return
        await anyio.sleep(backoff.next_delay())

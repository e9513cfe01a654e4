"""Decides how long a request that cannot be decided yet may block the queue of its change set."""

from dataclasses import replace

from rebaser.change_set.attempts.poison import Suspicion
from rebaser.change_set.attempts.retry_budget import RetryBudget
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.readers.request_reader import INTERNAL_CODES, HeldRequest
from rebaser.runtime.context import Context
from rebaser.runtime.dead_letters import PendingDeadLetter
from rebaser_client.jetstream import Message
from rebaser_core.backoff import exponential_delay
from rebaser_core.commit import Applied, Attempt, Kind
from rebaser_core.decisions.decide import recorded_outcome
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.errors import RebaserError, TransientError, UnprocessableError
from rebaser_core.messages.headers.traces import trace_fields

BLOCKED_RETRY = 0.5  # seconds until the owner retries a blocked queue; doubled after each attempt
BLOCKED_RETRY_MAX = 5.0  # maximum seconds until the owner retries a blocked queue


class QueueBlocked(TransientError):  # noqa: N818 - a state of the queue
    """Raised if the first queued request cannot be decided yet. The message and the code say why.

    `delay` is the number of seconds until the next attempt. `time_left` is the number of seconds for which the request
    may still block the queue. `dead` are earlier requests that still have to be copied to the dead letters.
    """

    def __init__(self, error: RebaserError, delay: float, time_left: float, dead: list[PendingDeadLetter]) -> None:
        super().__init__(error.message, code=error.code)
        self.delay = delay
        self.time_left = time_left
        self.dead = dead


class HeldRequests:
    """The requests of the change set whose log is `commits` that blocked its queue, as far as the log records them."""

    def __init__(self, context: Context, commits: CommitLog) -> None:
        self._context = context
        self._commits = commits
        outcomes = [*commits.state.outcomes.unusual(), *commits.state.redriven.unusual()]
        self._budget = RetryBudget(int(context.settings.retry_for * 1000), outcomes)

    def _first_attempt(self, held: HeldRequest, message: Message) -> Attempt:
        """Return a record of how often the request has blocked the queue, and when it began to wait."""
        attempt = self._commits.state.attempts.get(message.stream_sequence)
        if attempt is not None and attempt.count:
            return attempt
        stored = message.timestamp_ns // 1_000_000
        waiting_since = self._budget.wait_start(held.error.code, stored, self._context.now_ms())
        return Attempt(message.stream_sequence, 0, waiting_since)

    def expired(self, held: HeldRequest, message: Message, applied: Applied) -> QueuedRequest | None:
        """Return the request if it is already decided. If it has blocked the queue for too long, return it with an
        error, so that its outcome will be `dead`. Return None if it may still wait.

        An outage or a deployment never causes a request to be given up.
        """
        state, settings, error, request = self._commits.state, self._context.settings, held.error, held.request
        if recorded_outcome(state, applied, request.request_id, request.sequence, request.redrive) is not None:
            return request
        attempt = self._first_attempt(held, message)
        now = self._context.now_ms()
        waited = (now - attempt.first_ms) / 1000
        # A bug in Rebaser or a hostile payload may cause these errors. Waiting does not fix them, so the number of
        # attempts is bounded instead of the time.
        if attempt.count < settings.max_attempts if error.code in INTERNAL_CODES else waited < settings.retry_for:
            return None
        self._budget.record_exhausted(error.code, now)
        text = f"{error.message} (given up after {waited:.0f} s and {attempt.count} attempts)"
        return replace(request, error=UnprocessableError(text, code=error.code), attempts=attempt.count)

    async def block(
        self, held: HeldRequest, message: Message, suspicion: Suspicion, dead: list[PendingDeadLetter]
    ) -> QueueBlocked:
        """Record in the log that the request has blocked the queue once more, so that no request blocks the queue
        forever. Return the error to raise."""
        commits, settings, sequence = self._commits, self._context.settings, message.stream_sequence
        first = self._first_attempt(held, message)
        # If this server's clock is behind that of the owner that recorded the first attempt, the wait begins now.
        count, first_ms = first.count + 1, min(first.first_ms, self._context.now_ms())
        async with commits.append_lock():
            attempt = Attempt(sequence, count, first_ms, suspicion.deaths.get(sequence, 0))
            await commits.append(commits.draft(Kind.ATTEMPT, attempt=attempt, debt=commits.state.debt))
        self._context.health.record_of(self._commits.key, self._context.now(), held.error, settings.retry_for)
        fields = {"seq": sequence, "attempt": count, "code": held.error.code, **trace_fields(message.headers)}
        self._commits.logger.warning("request_held", **fields, reason=held.error.message)
        time_left = max(settings.retry_for - (self._context.now_ms() - first_ms) / 1000, 0.0)
        delay = min(exponential_delay(count - 1, BLOCKED_RETRY, BLOCKED_RETRY_MAX), time_left + 0.05)
        return QueueBlocked(held.error, delay, time_left, dead)

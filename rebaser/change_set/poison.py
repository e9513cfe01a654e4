"""Finds the request that kills or hangs its owners, and spares its neighbours.

Invariant: a death counts against a request only if its owner said before that it would try it, and nobody said after
that the try ended. An owner that is stopped, fenced, or meets an outage takes its word back. One that stood still until
its lease ran out does not: that is a hang, also where no other server is there to take over.

A task that is delivered again may have had an owner that died, and what killed it is among the requests which that
owner had taken: at most one batch, from the front of the queue. These are decided one by one, each announced by an
`attempt` commit; what is queued behind them, and all that comes later, is not. One that was decided earlier and came
twice is not counted as one of the batch: answering it leaves no trace in the log, so every owner finds it in front
again. A process tries only one request at a time that was announced in vain before, so that its death accuses nobody
else of those.

What the first owner died of was not announced: announcing everything would double the writes. So a request has ended
one owner more than are held against it.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import anyio
import structlog

from rebaser.change_set.commit_log import CommitLog
from rebaser.runtime.context import Context
from rebaser_client.jetstream import Message
from rebaser_core.commit import Attempt, Kind
from rebaser_core.dead_letter import claimed_id, read_redrive
from rebaser_core.decide import QueuedRequest
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.ids import sequence_id

POISON = "poison"  # the code of a request that was given up for what it does to its owners

log = structlog.get_logger(__name__)


class PoisonDetector:
    """For one owner. `redelivered`: its task had an owner before, who may have died; `after` and `until`: the highest
    request sequence that is decided, and the last one that was queued then; `hung`: it stood still and lost its lease.
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
        self._trying: Attempt | None = None  # as it was before the attempt
        self._after = after
        self._until = until
        state = commits.state
        outcomes = [*state.outcomes.values(), *state.redriven.values()]
        poison = [one.decision for one in outcomes if one.decision.code == POISON]
        self._poison_ids = {one.request_id for one in poison}
        self._decided = {one.sequence for one in poison if one.sequence <= after}
        announced = any(one.deaths for one in state.attempts.values() if one.sequence > after)
        self._left = context.settings.batch_max_requests if redelivered or announced else 0

    def batchable_prefix(self, messages: Sequence[Message]) -> int:
        """How many at the front of `messages` may be decided together; 0: the first one is to be attempted alone."""
        if self._left:
            for number, message in enumerate(messages):
                if self._after < message.stream_sequence <= self._until:
                    return number
        return len(messages)

    def known_poison(self, message: Message) -> QueuedRequest | None:
        """The rejection of a request that was rejected as poison before, or None.

        Such a request comes again if its client resends it, or if an owner died before it deleted the message. A
        request that was redriven since then is not rejected: its cause may be fixed.
        """
        if self._poison_ids and (not read_redrive(message.headers) or message.stream_sequence in self._decided):
            request_id = claimed_id(message.headers, self._commits.key)
            if request_id in self._poison_ids:
                return self._rejection(message, "it was given up before")
        return None

    @asynccontextmanager
    async def attempt_alone(self, message: Message) -> AsyncIterator[QueuedRequest | None]:
        """Decide `message` alone, inside. Yields its rejection if its attempts are used up: then do not read it.

        Raises what appending a commit raises.
        """
        sequence = message.stream_sequence
        before = self._recorded(sequence) or Attempt(sequence, 0, self._context.now_ms())
        applied = self._commits.state.applied
        if before.deaths >= self._context.settings.max_deaths:
            rejection = self._rejection(
                message, f"each of the {before.deaths} servers that tried it died, hung or broke", before
            )
            self._poison_ids.add(rejection.request_id)
            yield rejection
        else:
            async with AsyncExitStack() as stack:
                if before.deaths:
                    await stack.enter_async_context(self._context.suspects)
                    names = {"workspace": self._commits.key.workspace, "change_set": self._commits.key.change_set}
                    log.warning("request_suspected", **names, seq=sequence, deaths=before.deaths)
                self._trying = before
                # Any other exception is a defect that this request sets off: it stays announced, as in a death.
                async with recorded_attempt(self._commits, before, self._hung):
                    yield None
        if self._commits.state.applied != applied:
            self._left -= 1

    def deaths_before(self, sequence: int) -> int:
        """The deaths that stand against a request, without the try at work."""
        attempt = self._recorded(sequence)
        if self._trying is not None and self._trying.sequence == sequence:
            attempt = self._trying
        return attempt.deaths if attempt else 0

    def _recorded(self, sequence: int) -> Attempt | None:
        return self._commits.state.attempts.get(sequence)

    def _rejection(self, message: Message, reason: str, tried: Attempt | None = None) -> QueuedRequest:
        sequence = message.stream_sequence
        return QueuedRequest(
            sequence,
            claimed_id(message.headers, self._commits.key) or sequence_id(sequence),
            error=UnprocessableError(reason, code=POISON),
            redrive=read_redrive(message.headers),
            attempts=tried.count + tried.deaths if tried else 0,
        )


@asynccontextmanager
async def recorded_attempt(commits: CommitLog, before: Attempt, hung: Callable[[], bool]) -> AsyncIterator[None]:
    """Tell the log that what `before` counts is tried once more; and that the try is over, if it ends as ours do.

    One that is cancelled because its owner `hung` is not over.

    Raises what appending a commit raises.
    """
    await _write(commits, replace(before, deaths=before.deaths + 1))
    try:
        yield
    except (RebaserError, anyio.get_cancelled_exc_class()):
        if not hung():
            await _take_back(commits, before)
        raise
    await _take_back(commits, before)


async def _write(commits: CommitLog, attempt: Attempt) -> None:
    async with commits.append_lock():
        await commits.append(commits.draft(Kind.ATTEMPT, attempt=attempt, debt=commits.state.debt))


async def _take_back(commits: CommitLog, before: Attempt) -> None:
    """The try is over; if it ended in what its owner was after, the log has forgotten it already."""
    recorded = commits.state.attempts.get(before.sequence)
    if recorded is None or recorded.deaths <= before.deaths:
        return
    with anyio.CancelScope(shield=True):
        try:
            await _write(commits, replace(recorded, deaths=before.deaths))
        except RebaserError as error:
            log.warning("attempt_not_taken_back", seq=before.sequence, reason=error.message)

"""Takes queued requests, decides them in order, makes them durable in one commit, and answers.

Invariant: a request is answered only from a commit that is in the log, and deleted only after it was answered. What
cannot be decided yet (a newer version, a blob that is away) stops the queue there, for a bounded time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from anyio import to_thread

from rebaser.change_set.commit_log import CommitLog
from rebaser.change_set.replies import inbox_allowed, response
from rebaser.context import Context
from rebaser_client.blobs import BlobMissing
from rebaser_client.jetstream import Message
from rebaser_core.commit import Applied, Attempt, Decision, Kind, Outcome
from rebaser_core.decide import Incoming, decide
from rebaser_core.envelope import REPLY_INBOX
from rebaser_core.errors import RebaserError, TransientError, UnprocessableError, UnsupportedVersion
from rebaser_core.messages import EnqueueUpdatesRequest, decode, decode_updates_blob, encode

log = structlog.get_logger(__name__)

DECODE_HERE = 256 * 1024  # bytes; decoding more than that would hold up the loop


@dataclass(frozen=True, slots=True)
class Buried:
    """A request decided `dead`, still to be copied, answered and deleted."""

    message: Message
    decision: Decision
    commit: int


@dataclass(frozen=True, slots=True)
class Processed:
    """What became of a batch: the dead that have yet to be buried, and `rest`, which did not fit into the commit."""

    buried: list[Buried]
    rest: Sequence[Message]


class Held(TransientError):  # noqa: N818 - a state of the queue
    """The first request in line cannot be decided yet. `delay` (s): when to try again.

    `buried`: dead requests in front of it, decided but not yet copied.
    """

    default_code = "held"

    def __init__(self, message: str, delay: float, buried: list[Buried]) -> None:
        super().__init__(message)
        self.delay = delay
        self.buried = buried


class _NotYet(Exception):  # noqa: N818 - a state of a request
    """A request that cannot be read now, and why."""

    def __init__(self, sequence: int, request_id: str, error: RebaserError) -> None:
        super().__init__(error.message)
        self.sequence = sequence
        self.request_id = request_id
        self.error = error


class Processor:
    """Processes the requests of the change set whose log is `commits`.

    `epoch`: the request stream (creation time) and the highest sequence that is decided in it.
    """

    def __init__(self, context: Context, commits: CommitLog, epoch: Applied) -> None:
        self._context = context
        self._commits = commits
        self._key = commits.key
        self.epoch = epoch
        self._room = 0  # bytes of blobs that the batch at hand may still bring in

    async def process(self, messages: Sequence[Message]) -> Processed:
        """Decide, commit and answer `messages`, in order, as many as one commit may hold.

        Raises `Held` after everything in front of the held request is done, `FencedError`, or `TransientError`
        with nothing decided.
        """
        incoming: list[Incoming] = []
        not_yet: _NotYet | None = None
        self._room = self._context.settings.batch_max_bytes
        for message in messages:
            try:
                incoming.append(await self._read(message))
            except _NotYet as problem:
                late = self._give_up(problem)
                if late is None:
                    not_yet = problem
                    break
                incoming.append(late)
            if self._room <= 0:
                break
        buried = await self._commit(messages, incoming) if incoming else []
        if not_yet is not None:
            raise await self._hold(not_yet, buried)
        return Processed(buried, messages[len(incoming) :])

    async def _commit(self, messages: Sequence[Message], incoming: list[Incoming]) -> list[Buried]:
        commits = self._commits
        async with commits.turn():
            state = commits.state
            decided = decide(state, self.epoch, incoming)
            sequence = state.last
            if decided.decisions:
                owes = state.owes or state.wakes(decided.delta)
                commit = commits.draft(
                    Kind.REBASE,
                    applied=decided.applied,
                    requests=decided.decisions,
                    delta=decided.delta,
                    covers=state.covers if owes else None,
                    debt=len(state.roots) + len(decided.delta) if owes else 0,
                )
                sequence = await commits.append(commit)
                self.epoch = decided.applied
                if decided.skipped:
                    log.error("requests_skipped", **self._names(), commit=commit.id, count=decided.skipped)
        return await self._answer_all(messages, decided.answers, sequence)

    async def _answer_all(
        self, messages: Sequence[Message], answers: Sequence[tuple[Decision, int | None]], sequence: int
    ) -> list[Buried]:
        buried: list[Buried] = []
        done: list[int] = []
        for message, (decision, earlier) in zip(messages, answers, strict=False):
            commit = sequence if earlier is None else earlier
            if decision.outcome is Outcome.DEAD and decision.sequence == message.stream_sequence:
                buried.append(Buried(message, decision, commit))
            else:
                await self.answer(message, decision, commit)
                done.append(message.stream_sequence)
        self._context.deleter.add(done)
        return buried

    async def answer(self, message: Message, decision: Decision, commit: int) -> None:
        """Send the reply, if one is asked for and may be sent. A failure is logged: the commit stands."""
        inbox = (message.headers or {}).get(REPLY_INBOX)
        if inbox is None:
            return
        if not inbox_allowed(inbox, self._context.settings.inbox_prefix):
            log.warning("reply_refused", **self._names(), seq=message.stream_sequence, inbox=inbox[:80])
            return
        headers, payload = encode(response(self._key, decision, commit))
        try:
            await self._context.connection.publish(inbox, payload, headers)
        except RebaserError as error:
            log.warning("reply_failed", **self._names(), seq=message.stream_sequence, reason=error.message)

    async def bury(self, buried: Buried) -> None:
        """Copy a dead request to the dead letters, answer it, delete it; raises `TransientError` to be tried again."""
        decision = buried.decision
        await self._context.dead_letters.bury(self._key, buried.message, decision, self._context.now_ms())
        log.warning("request_dead", **self._names(), seq=decision.sequence, code=decision.code, reason=decision.message)
        await self.answer(buried.message, decision, buried.commit)
        self._context.deleter.add([decision.sequence])

    async def _read(self, message: Message) -> Incoming:
        """The request in `message`; raises `_NotYet` for what may become readable, `TransientError` in an outage."""
        sequence = message.stream_sequence
        limits = self._context.settings.limits
        # Where a message gives no id that can be trusted, it is recorded under one that no request can have.
        request_id = f"@{sequence}"
        try:
            request = decode(message.headers, message.data, limits, expect=EnqueueUpdatesRequest)
            if request.workspace_id != self._key.workspace or request.change_set_id != self._key.change_set:
                elsewhere = UnprocessableError("the request names another change set", code="wrong_change_set")
                return Incoming(sequence, request_id, error=elsewhere)
            request_id = request.id
            updates = request.updates
            if updates is None:
                address = request.updates_address or ""
                data = await self._context.blobs.get(address, max_bytes=limits.max_request_bytes)
                self._room -= len(data)
                if len(data) < DECODE_HERE:
                    updates = decode_updates_blob(data, limits)
                else:
                    updates = await to_thread.run_sync(decode_updates_blob, data, limits)
        except UnprocessableError as error:
            return Incoming(sequence, request_id, error=error)
        except (UnsupportedVersion, BlobMissing) as error:
            raise _NotYet(sequence, request_id, error) from error
        except RebaserError:
            raise
        except Exception as error:
            log.exception("request_unreadable", **self._names(), seq=sequence)
            internal = RebaserError(f"reading it failed: {type(error).__name__}", code="internal")
            raise _NotYet(sequence, request_id, internal) from error
        return Incoming(sequence, request_id, updates, request.from_change_set_id)

    def _give_up(self, problem: "_NotYet") -> Incoming | None:
        """A request that was held too long, as dead; None if it may wait. An outage or a deploy kills nobody."""
        state, settings, error = self._commits.state, self._context.settings, problem.error
        if problem.request_id in state.outcomes:
            return Incoming(problem.sequence, problem.request_id, error=error)
        attempt = state.attempts.get(problem.sequence)
        if attempt is None:
            return None
        waited = (self._context.now_ms() - attempt.first_ms) / 1000
        by_count = error.code == "internal"  # a defect of ours: time would not mend it, and a new version may
        if attempt.count < settings.max_attempts if by_count else waited < settings.retry_for:
            return None
        text = f"{error.message} (given up after {waited:.0f} s and {attempt.count} tries)"
        return Incoming(problem.sequence, problem.request_id, error=UnprocessableError(text, code=error.code))

    async def _hold(self, problem: "_NotYet", buried: list[Buried]) -> "Held":
        """Record one more try, so that the time a request may wait is bounded whoever owns it."""
        commits, settings = self._commits, self._context.settings
        async with commits.turn():
            now = self._context.now_ms()
            before = commits.state.attempts.get(problem.sequence)
            count, first = (before.count + 1, before.first_ms) if before else (1, now)
            attempt = Attempt(problem.sequence, count, first)
            await commits.append(commits.draft(Kind.ATTEMPT, attempt=attempt, debt=len(commits.state.roots)))
        reason = problem.error.message
        log.warning("request_held", **self._names(), seq=problem.sequence, attempt=count, reason=reason)
        left = max(settings.retry_for - (now - first) / 1000, 0.0)
        return Held(reason, min(0.25 * 2 ** min(count, 10), 5.0, left + 0.05), buried)

    def _names(self) -> dict[str, str]:
        return {"workspace": self._key.workspace, "change_set": self._key.change_set}

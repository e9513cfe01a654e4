"""The shell around the lifecycle: it turns effects into I/O, and what I/O brings into events.

Invariant: this module decides nothing. Every effect runs as a child of `run` and ends by posting the event that the
lifecycle names for it.
"""

import asyncio
import gc
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import anyio
import structlog

from rebaser.change_set import checkpointer as checkpoint
from rebaser.change_set.actor import Actor
from rebaser.change_set.commit_log import CommitLog, open_log
from rebaser.change_set.healing import heal
from rebaser.change_set.lease import Lease, Task
from rebaser.change_set.lifecycle import (
    Arrived,
    Cancelled,
    Command,
    Decided,
    Dvu,
    DvuEnded,
    DvuFailed,
    Effect,
    Event,
    Failed,
    JobEnded,
    JobStarted,
    Loaded,
    Nak,
    Phase,
    Reason,
    Rechecked,
    Released,
    Stop,
    Timing,
)
from rebaser.change_set.poison import PoisonDetector
from rebaser.change_set.processor import PendingDeadLetter, Processor, QueueBlocked
from rebaser.change_set.serial_dvu import SerialDvu
from rebaser.runtime.context import Context
from rebaser.runtime.progress import Progress
from rebaser_client.jetstream import Message, OrderedConsumer
from rebaser_core.commit import Applied
from rebaser_core.decide import decided_through
from rebaser_core.errors import FencedError, RebaserError, UnsupportedVersion

log = structlog.get_logger(__name__)

RETRY_LOAD = 0.5  # seconds, for the nak after a second failure that says nothing of its own; then doubled each time
RETRY_LOAD_MAX = 5.0  # seconds
DEAD_LETTER_RETRY_MAX = 5.0  # seconds
LARGE = 100_000  # values

T = TypeVar("T")


def retry_delay(delivered: int) -> float:
    """Seconds until a task that failed in its so many-th delivery comes again: at once after the first.

    A long outage is no reason to load everything twice a second.
    """
    if delivered <= 1:
        return 0.0
    return min(RETRY_LOAD * 2.0 ** min(delivered - 2, 10), RETRY_LOAD_MAX)


class Owner(Actor):
    """Owns the change set of `task` until the lifecycle is done."""

    def __init__(self, context: Context, task: Task, changed: Callable[[bool], None]) -> None:
        settings = context.settings
        super().__init__(context.now, Timing(quiescent_period=settings.quiescent_period), changed)
        self.key = task.key
        self.lease = Lease(task, context.subjects)
        self.since = math.inf  # when its turn began: loading may take longer than a turn, and would be in vain
        self.scope = anyio.CancelScope(shield=True)
        self._context = context
        self._awaiting = False
        self._wanted = asyncio.Event()  # the decider has something to decide
        self._consumer: OrderedConsumer | None = None
        self._commits: CommitLog | None = None
        self._processor: Processor | None = None
        self._dvu: SerialDvu | None = None
        self._rest: Sequence[Message] = ()  # taken from the queue, not yet decided
        self._checkpointing = False
        self._save = False  # write a whole checkpoint, due or not
        self._hung = False
        self.newer_server_wait = 0.0  # seconds that a request which only a newer server can read still has

    # -- what the server may ask -----------------------------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Whether the task is being given back, so that a new delivery needs a new owner."""
        return self.state.phase in (Phase.RELEASING, Phase.RECHECKING, Phase.DONE)

    @property
    def progress(self) -> Progress | None:
        """Of the update at work, if there is one."""
        return self._dvu.progress if self._dvu is not None else None

    def idle_for(self, now: float) -> float:
        """Seconds since it had anything to do for its requests, or loaded; 0 while it has."""
        return 0.0 if self.state.queued or self.state.busy else now - self.state.active_at

    def adopt(self, task: Task) -> None:
        """The task was delivered again, to the server that owns it already."""
        self.lease.task = task

    def stop(self, reason: Reason) -> None:
        """Ask for the end; `run` returns when it is reached."""
        if reason is Reason.FENCED:
            self.lease.lost = self._hung = True
        self.post(Stop(reason))

    def lose_task(self) -> None:
        """Ask for the end: the task is gone with its stream, and nobody is to blame."""
        self.lease.lost = True
        self.post(Stop(Reason.FENCED))

    def log_loss(self) -> None:
        """The log is gone with its stream: say what was in it."""
        state = self._commits.state if self._commits is not None else None
        if state is not None and state.last:
            checkpoint = state.checkpoint.address if state.checkpoint is not None else None
            values = len(state.cells)
            log.error("change_set_lost", **self._names(), seq=state.last, values=values, checkpoint=checkpoint)

    def save_full_checkpoint(self) -> None:
        """Write a whole checkpoint: the one before is gone, and the log may not go back far enough without it."""
        if self.state.phase is Phase.ACTIVE:
            self._save = True
            self._start_checkpoint()

    def abandon(self) -> None:
        """The time of a graceful end is over: give up an append that is not answered."""
        if self._commits is not None:
            self._commits.abandon()

    def perform(self, effects: tuple[Effect, ...]) -> None:
        group = self.group
        assert group is not None  # noqa: S101 - set by `run`, which alone lets this be called
        for effect in effects:
            match effect:
                case Command.LOAD:
                    group.start_soon(self._load)
                case Command.AWAIT:
                    self._awaiting = True
                    self._look_at_queue()
                case Command.DECIDE:
                    self._wanted.set()
                case Command.RUN_DVU:
                    group.start_soon(self._run_dvu)
                case Command.CANCEL_WORK:
                    self.cancel_work()
                case Command.STOP_CONSUMING:
                    self._awaiting = False
                    group.start_soon(self.resources.aclose)
                case Command.ACK:
                    group.start_soon(self._ack)
                case Command.RECHECK:
                    group.start_soon(self._look)
                case Command.PUBLISH_TASK:
                    group.start_soon(self.lease.publish_again)
                case Nak(delay=delay):
                    group.start_soon(self.lease.give_back, delay)

    # -- effects ---------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        assert self.group is not None  # noqa: S101 - as above
        context, key, subjects = self._context, self.key, self._context.subjects
        event: Event = Cancelled()
        try:
            with self.cancelled_with_work():
                stream = await context.js.stream_info(subjects.requests_stream)
                self._commits = await open_log(context, key)
                await heal(self._commits)
                state = self._commits.state
                start = decided_through(state, stream.created, stream.last_sequence)
                again = self.lease.task.message.delivered > 1
                detector = PoisonDetector(
                    context,
                    self._commits,
                    redelivered=again,
                    after=start,
                    until=stream.last_sequence,
                    hung=lambda: self._hung,
                )
                self._dvu = SerialDvu(context, self._commits, redelivered=again, hung=lambda: self._hung)
                self._processor = Processor(context, self._commits, Applied(stream.created, start), detector)
                consumer = OrderedConsumer(
                    context.js, subjects.requests_stream, subjects.requests(key), on_ready=self._look_at_queue
                )
                self._consumer = await self.resources.enter_async_context(consumer)
                self.group.start_soon(self._decider)
                if len(state.cells) > LARGE:
                    gc.freeze()  # else each full collection walks through all of it
                event = Loaded(state.owes, self._dvu.deferral())
                self.since = context.now()
                log.info("change_set_owned", **self._names(), seq=state.last, values=len(state.cells), owes=state.owes)
        except RebaserError as error:
            event = self._failure_of("load_failed", error)
        finally:
            self.post(event)

    def _look_at_queue(self) -> None:
        """Report what is queued, if the lifecycle awaits it. The consumer calls this when it gets or ends something."""
        consumer = self._consumer
        if not self._awaiting or consumer is None:
            return
        if consumer.failure is not None and not consumer.pending:
            self._awaiting = False
            self.post(self._failure_of("consume_failed", consumer.failure))
        elif consumer.pending:
            self._awaiting = False
            self.post(Arrived())

    async def _decider(self) -> None:
        """Decide what is queued whenever the lifecycle says so; one task for the life of the owner."""
        event: Event = Cancelled()
        try:
            with self.cancelled_with_work():
                while True:
                    await self._wanted.wait()
                    self._wanted.clear()
                    event = await self._decide()
                    if isinstance(event, Failed):
                        return
                    self.post(event)
                    event = Cancelled()
        finally:
            self.post(event)

    async def _decide(self) -> Event:
        consumer, processor, commits = self._consumer, self._processor, self._commits
        assert consumer is not None  # noqa: S101 - set by the load that came first, as the others are
        assert processor is not None  # noqa: S101
        assert commits is not None  # noqa: S101
        settings = self._context.settings
        try:
            messages = self._rest or consumer.take(settings.batch_max_requests, settings.batch_max_bytes)
            processed = await processor.process(messages)
            self._rest = processed.rest
            self._publish_all_dead(processed.dead)
        except QueueBlocked as blocked:
            self._publish_all_dead(blocked.dead)
            if blocked.code == UnsupportedVersion.default_code:
                self.newer_server_wait = blocked.left
            return Failed(Reason.QUEUE_BLOCKED, blocked.delay, grace=blocked.left / 2)
        except RebaserError as error:
            return self._failure_of("decide_failed", error)
        if not commits.state.owes or self.state.dvu is Dvu.WAITING:  # else after the DVU, which would wait for its view
            self._start_checkpoint()
        return Decided(commits.state.owes, more=bool(self._rest) or consumer.pending > 0)

    async def _run_dvu(self) -> None:
        commits, dvu = self._commits, self._dvu
        assert commits is not None  # noqa: S101 - as above
        assert dvu is not None  # noqa: S101
        event: Event = DvuFailed()
        try:
            with self.cancelled_with_work():
                await dvu.run()
                self._start_checkpoint()
                event = DvuEnded(commits.state.owes)
        except FencedError as error:
            log.warning("dvu_fenced", **self._names(), reason=error.message)
            event = DvuFailed(fenced=True)
        except RebaserError as error:
            self._context.health.record(self._context.now(), error)
            log.warning("dvu_failed", **self._names(), attempt=self.state.failures + 1, reason=error.message)
            self._start_checkpoint()
        finally:
            self.post(event)

    def _publish_all_dead(self, dead: list[PendingDeadLetter]) -> None:
        for pending in dead:
            self._start_job(self._publish_dead_letter, pending)

    async def _publish_dead_letter(self, pending: PendingDeadLetter) -> None:
        assert self._processor is not None  # noqa: S101 - it made the argument
        pause = 0.1
        try:
            with self.cancelled_with_work():
                while True:
                    try:
                        return await self._processor.publish_dead_letter(pending)
                    except RebaserError as error:
                        seq = pending.decision.sequence
                        self._context.stream_watch.check_soon()
                        log.warning("dead_letter_failed", **self._names(), seq=seq, reason=error.message)
                    await anyio.sleep(pause)
                    pause = min(pause * 2, DEAD_LETTER_RETRY_MAX)
        finally:
            self.post(JobEnded())

    def _start_checkpoint(self) -> None:
        commits = self._commits
        if commits is None or self._checkpointing:
            return
        if self._save or checkpoint.due(commits, self._context.settings.checkpoint_bytes):
            self._checkpointing = True
            self._start_job(self._write_checkpoint, commits)

    def _start_job(self, run: Callable[[T], Coroutine[Any, Any, None]], argument: T) -> None:
        assert self.group is not None  # noqa: S101 - as above
        self.post(JobStarted())
        self.group.start_soon(run, argument)

    async def _write_checkpoint(self, commits: CommitLog) -> None:
        whole, self._save = self._save, False
        try:
            with self.cancelled_with_work():
                await checkpoint.write(self._context, commits, whole=whole)
        except FencedError:
            self.post(Failed(Reason.FENCED))
        except RebaserError as error:
            self._save |= whole
            self._context.stream_watch.check_soon()
            log.warning("checkpoint_failed", **self._names(), reason=error.message)
        finally:
            self._checkpointing = False
            if self._save and self.state.phase is Phase.ACTIVE:  # it failed, or was asked for meanwhile
                self._start_checkpoint()
            self.post(JobEnded())

    async def _ack(self) -> None:
        try:
            await self.lease.release()
        finally:
            self.post(Released())

    async def _look(self) -> None:
        """The last look: requests that came while we were leaving, or debt that we leave behind."""
        context, commits, processor = self._context, self._commits, self._processor
        found = True  # if we cannot look, somebody else should
        try:
            if commits is not None and processor is not None:
                subject = context.subjects.requests(self.key)
                after = processor.epoch.sequence + 1
                left = await context.js.next(context.subjects.requests_stream, subject, after)
                found = left is not None or commits.state.owes
        except RebaserError as error:
            log.warning("last_look_failed", **self._names(), reason=error.message)
        finally:
            self.post(Rechecked(found))

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _failure_of(self, what: str, error: RebaserError) -> Failed:
        fenced = isinstance(error, FencedError)
        log.warning(what, **self._names(), code=error.code, reason=error.message, fenced=fenced)
        self._context.stream_watch.check_soon()
        if not fenced:
            self._context.health.record(self._context.now(), error)
        return Failed(Reason.FENCED if fenced else Reason.TRANSIENT, retry_delay(self.lease.task.message.delivered))

    def _names(self) -> dict[str, str]:
        return {"workspace": self.key.workspace, "change_set": self.key.change_set}

"""Performs the effects of the lifecycle as I/O, and turns the results of I/O into events.

Invariant: this module decides nothing, except when a checkpoint is due. An effect for which `Command` lists events ends
by posting one of these events. I/O runs in child tasks of `run`; `AWAIT` only looks at the queue, and `DECIDE` only
joins the round.
"""

import gc
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup

from rebaser.change_set.actor import Actor
from rebaser.change_set.attempts.held_requests import QueueBlocked
from rebaser.change_set.attempts.poison import PoisonDetector
from rebaser.change_set.branch_puller import BranchPuller
from rebaser.change_set.healing import heal
from rebaser.change_set.lease import Lease, Task, retry_delay
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
from rebaser.change_set.loading import open_change_set
from rebaser.change_set.log import checkpointer
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.processor import Processor
from rebaser.change_set.recheck import recheck
from rebaser.change_set.rounds import Preparation, prepare_together
from rebaser.change_set.serial_dvu import SerialDvu
from rebaser.runtime import quiet_checkpoints
from rebaser.runtime.context import Context
from rebaser.runtime.dead_letters import PendingDeadLetter, dead_letter_refused
from rebaser.telemetry.feeds import log_loaded
from rebaser_client.backoff import Backoff
from rebaser_client.jetstream import Message, OrderedConsumer
from rebaser_client.signal import Signal
from rebaser_core.errors import FencedError, RebaserError, UnsupportedVersion

log = structlog.get_logger(__name__)

DEAD_LETTER_RETRY, DEAD_LETTER_RETRY_MAX = 0.1, 5.0  # seconds until a refused one is sent again; doubled each time
LARGE = 100_000  # number of values above which Python's garbage collector skips a change set

_ARRIVED, _CANCELLED, _DECIDED = Arrived(), Cancelled(), Decided(owes=False, more=False)
_AWAIT, _DECIDE = Command.AWAIT, Command.DECIDE  # a lookup of an enum member takes 0.1 µs in Python 3.11


class Owner(Actor):
    """Owns the change set of `task` until the lifecycle is done. For `changed`, see `Actor`."""

    def __init__(self, context: Context, task: Task, changed: Callable[[bool], None]) -> None:
        super().__init__(context.now, Timing(quiescent_period=context.settings.quiescent_period), changed)
        self.key = task.key
        self.lease = Lease(task, context.subjects)
        self.log = log.bind(workspace=task.key.workspace, change_set=task.key.change_set)
        self.since = math.inf  # when this owner's turn began: after loading, which may take longer than a turn
        self.scope = anyio.CancelScope(shield=True)
        self._context = context
        self.decide_now = Signal()
        self.queue: OrderedConsumer | None = None  # the queued requests; None until the queue is open
        self.commits: CommitLog | None = None  # the log; None until it is loaded
        self._processor: Processor | None = None
        self._dvu: SerialDvu | None = None
        self._puller: BranchPuller | None = None  # only for a branch that follows its target
        self._rest: Sequence[Message] = ()  # messages that were taken from the queue and are still undecided
        self._awaiting = self._checkpointing = self._hung = False
        self._full_checkpoint_due = False  # write a full checkpoint, even if the log is short
        self.state_bytes = 0  # the memory of the folded state in bytes, as last measured; 0 until it is loaded
        self.newer_server_wait = 0.0  # seconds that the first queued request may still wait for a newer server

    # -- for the server --------------------------------------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Whether this owner is releasing its task. If so, a task that is delivered now needs a new owner."""
        return self.lifecycle.phase in (Phase.RELEASING, Phase.RECHECKING, Phase.DONE)

    def idle_for(self, now: float) -> float:
        """Return the seconds since the owner last decided a request, ran an update or loaded; 0 while it is deciding
        requests."""
        return 0.0 if self.lifecycle.queued or self.lifecycle.busy else now - self.lifecycle.active_at

    def measure(self) -> None:
        """Estimate the memory of the folded state anew."""
        if self.commits is not None:
            self.state_bytes = self.commits.state.memory

    def drop_resources(self) -> None:
        """After `run`, drop the references that lead back to this owner, so that its memory is freed at once."""
        self.lease.lost = True
        self._context.quiet_checkpoints.leave(self.key)
        self.queue = self._processor = self._dvu = self._puller = self.group = None

    def stop(self, reason: Reason) -> None:
        """Begin to stop this owner for `reason`. `run` returns once the owner has stopped."""
        self.post(Stop(reason))

    def lose_task(self, *, hung: bool) -> None:
        """Begin to stop this owner because it lost its task: this process `hung`, or the stream of tasks is gone."""
        self.lease.lost = True
        self._hung |= hung
        self.post(Stop(Reason.TASK_LOST))

    def log_loss(self, recreated_from: int) -> None:
        """Log what state was lost when the stream that holds all the logs was lost; see `CommitLog.log_loss`."""
        if self.commits is not None:
            self.commits.log_loss(recreated_from)

    def save_full_checkpoint(self) -> None:
        """Write a full checkpoint. The last one is lost, and the commits before it may no longer be in the log."""
        if self.lifecycle.phase is Phase.ACTIVE:
            self._full_checkpoint_due = True
            self._start_checkpoint()

    def abandon(self) -> None:
        """Stop waiting for the answer to an append, because the grace period of the shutdown is over."""
        if self.commits is not None:
            self.commits.abandon()

    def prepare(self) -> Preparation | None:
        """Take the queued requests, and return a preparation of their commit, if it can be prepared."""
        if self.queue is None or self._processor is None:
            return None
        self._rest = self._take(self.queue)
        return self._processor.prepare(self._rest)

    def _take(self, queue: OrderedConsumer) -> Sequence[Message]:
        settings = self._context.settings
        return self._rest or queue.take(settings.batch_max_requests, settings.batch_max_bytes)

    def perform(self, effects: tuple[Effect, ...]) -> None:
        group = self.group
        assert group is not None  # noqa: S101 - set by `run`, which is the only caller
        for effect in effects:
            if effect is _AWAIT:  # this effect and the next are checked first, because each commit has one
                self._awaiting = True
                self.check_queue()
            elif effect is _DECIDE:
                self._context.round.join(self, prepare_together)
            elif effect is Command.LOAD:
                group.start_soon(self._load_and_decide)
            elif effect is Command.RUN_DVU:
                group.start_soon(self._run_dvu)
            elif effect is Command.CANCEL_WORK:
                self.cancel_work()
            elif effect is Command.STOP_CONSUMING:
                self._stop_consuming(group)
            elif effect is Command.ACK:
                group.start_soon(self._ack)
            elif effect is Command.RECHECK:
                group.start_soon(self._recheck)
            elif effect is Command.PUBLISH_TASK:
                group.start_soon(self.lease.publish_again)
            elif isinstance(effect, Nak):
                group.start_soon(self.lease.give_back, effect.delay)

    def _stop_consuming(self, group: TaskGroup) -> None:
        self._awaiting = False
        group.start_soon(self.close)
        if self._puller is not None:
            self._puller.wake()  # stops a pull that is waiting for requests to be decided

    async def close(self) -> None:
        if self.queue is not None:
            await self.queue.__aexit__(None, None, None)

    # -- effects ---------------------------------------------------------------------------------------------------

    async def _load_and_decide(self) -> None:
        if await self._load():
            if self._puller is not None and self.group is not None:
                self.group.start_soon(self._follow_target, self._puller)
            await self._decide_requests()

    async def _load(self) -> bool:
        """Load the log and open the queue. Return whether both succeeded."""
        context = self._context
        event: Event = Cancelled()
        try:
            with self.cancelled_with_work():
                loaded = await open_change_set(context, self.key, lambda: context.round.arrived(self))
                commits = self.commits = loaded.commits
                self.queue = loaded.consumer
                await heal(commits)
                self.log = commits.logger  # share the log's logger instead of keeping a second one
                state, applied = commits.state, loaded.applied
                self.measure()
                redelivered, hung = self.lease.task.message.delivered > 1, lambda: self._hung
                detector = PoisonDetector(
                    context, commits, redelivered=redelivered, after=applied.sequence, until=loaded.end, hung=hung
                )
                self._dvu = SerialDvu(context, commits, redelivered=redelivered, hung=hung)
                self._processor = Processor(context, commits, applied, detector)
                if state.branch is not None and state.branch.follows:
                    self._puller = BranchPuller(context, commits, self._processor, redelivered=redelivered, hung=hung)
                if len(state.cells) > LARGE:
                    gc.freeze()  # otherwise, each full garbage collection would visit all values
                event, self.since = Loaded(state.owes, self._dvu.deferral()), context.now()
                took = self.since - self.lifecycle.active_at
                log_loaded(took, self.key, redelivered=redelivered, traces=context.traces)
                self.log.info("change_set_owned", seq=state.last, values=len(state.cells), owes=state.owes)
        except RebaserError as error:
            event = self._failure_of("load_failed", error)
        finally:
            self.post(event)
        return isinstance(event, Loaded)

    def check_queue(self) -> None:
        """Post `Arrived` if the lifecycle awaits requests and some are queued; post `Failed` if the consumer has ended.
        The round calls this after the queue has stopped being empty, and after the consumer has ended."""
        if not self._awaiting or (consumer := self.queue) is None:
            return
        if consumer.pending:
            self._awaiting = False
            self.post(_ARRIVED)
        elif consumer.failure is not None:
            self._awaiting = False
            self.post(self._failure_of("consume_failed", consumer.failure))

    async def _decide_requests(self) -> None:
        """Decide queued requests each time the lifecycle commands `DECIDE`. Stop when the lifecycle cancels work, when
        a request has to wait, or after another error."""
        event: Event = _CANCELLED
        try:
            with self.cancelled_with_work():
                while True:
                    await self.decide_now.wait()
                    self.decide_now.clear()
                    event = await self._decide()
                    if isinstance(event, Failed):
                        return
                    self.post(event)
                    event = _CANCELLED
        finally:
            self.post(event)

    async def _decide(self) -> Event:
        consumer, processor, commits = self.queue, self._processor, self.commits
        assert consumer is not None and processor is not None and commits is not None  # noqa: S101, PT018 - loaded
        try:
            messages, self._rest = self._take(consumer), ()
            processed = await processor.process(messages)
            self._rest = processed.rest
            self._publish_all_dead(processed.dead)
        except QueueBlocked as blocked:
            self._publish_all_dead(blocked.dead)
            if blocked.code == UnsupportedVersion.default_code:
                self.newer_server_wait = blocked.time_left
            return Failed(Reason.QUEUE_BLOCKED, blocked.delay, grace=blocked.time_left / 2)
        except RebaserError as error:
            return self._failure_of("decide_failed", error)
        if self._puller is not None:
            self._puller.wake()
        if commits.handed_over:  # the next owner loads the state, if there is anything to do
            # Delete the request now that it has been decided; otherwise, the sweeper would wake another owner for it.
            await self._context.deleter.flush()
            self.post(Stop(Reason.HANDED_OVER))
            return _DECIDED
        # If a DVU is about to run, write the checkpoint after it: no DVU begins while a checkpoint has its view open.
        if not (owes := commits.state.owes) or self.lifecycle.dvu is Dvu.WAITING:
            self._start_checkpoint()
        more = bool(self._rest) or consumer.pending > 0
        return Decided(owes, more) if owes or more else _DECIDED

    async def _run_dvu(self) -> None:
        commits, dvu = self.commits, self._dvu
        assert commits is not None and dvu is not None  # noqa: S101, PT018 - `_load` ran first, and sets both
        event: Event = DvuFailed()
        try:
            with self.cancelled_with_work():
                await dvu.run()
                self._start_checkpoint()
                event = DvuEnded(commits.state.owes)
        except FencedError as error:
            self.log.warning("dvu_fenced", reason=error.message)
            event = DvuFailed(fenced=not commits.handed_over)
        except RebaserError as error:
            self._context.health.record(self._context.now(), error, key=self.key)
            self.log.warning("dvu_failed", code=error.code, attempt=self.lifecycle.failures + 1, reason=error.message)
            self._start_checkpoint()
        finally:
            self.post(event)

    async def _follow_target(self, puller: BranchPuller) -> None:
        with self.cancelled_with_work():
            await puller.run(self.post, lambda: self.lifecycle.phase is Phase.ACTIVE, self._start_checkpoint)

    def _publish_all_dead(self, dead: list[PendingDeadLetter]) -> None:
        for pending in dead:
            self._start_job(self._publish_dead_letter, pending)

    async def _publish_dead_letter(self, pending: PendingDeadLetter) -> None:
        assert self._processor is not None  # noqa: S101 - `self._processor` made `pending`
        backoff = Backoff(DEAD_LETTER_RETRY, DEAD_LETTER_RETRY_MAX)
        try:
            with self.cancelled_with_work():
                while True:
                    try:
                        return await self._processor.publish_dead_letter(pending)
                    except RebaserError as error:
                        self._context.stream_watch.check_soon()
                        self._context.health.record(self._context.now(), dead_letter_refused(error), key=self.key)
                        self.log.warning("dead_letter_failed", seq=pending.decision.sequence, reason=error.message)
                    if self.lifecycle.phase is not Phase.ACTIVE:
                        break  # leave the copy to the next owner: a lasting failure must not delay the end of this one
                    await anyio.sleep(backoff.next_delay())
        finally:
            self.post(JobEnded())

    def before_tick(self, *, quiet: bool) -> bool:
        context, commits, turns = self._context, self.commits, self._context.quiet_checkpoints
        bound = context.settings.checkpoint_bytes // quiet_checkpoints.SHARE
        if not quiet or turns.is_paused(context.now()) or commits is None or not checkpointer.due(commits, bound):
            turns.leave(self.key)
            return True
        if may_write := turns.enter(self.key, self.tick_soon):
            self._start_checkpoint(quiet=True)
        return may_write

    def _start_checkpoint(self, *, quiet: bool = False) -> None:
        if (commits := self.commits) is None or self._checkpointing:
            return
        if quiet or self._full_checkpoint_due or checkpointer.due(commits, self._context.settings.checkpoint_bytes):
            self._checkpointing = True
            self._start_job(self._write_checkpoint, commits)

    def _start_job(self, run: Callable[..., Coroutine[Any, Any, None]], argument: object) -> None:
        assert self.group is not None  # noqa: S101 - set by `run`
        self.post(JobStarted())
        self.group.start_soon(run, argument)

    async def _write_checkpoint(self, commits: CommitLog) -> None:
        full, self._full_checkpoint_due = self._full_checkpoint_due, False
        try:
            with self.cancelled_with_work():
                await checkpointer.write(self._context, commits, full=full)
        except FencedError as error:
            if not commits.handed_over:  # otherwise, this owner ends anyway and acks its task
                self.post(self._failure_of("checkpoint_fenced", error))
        except RebaserError as error:
            self._full_checkpoint_due |= full
            self._context.quiet_checkpoints.pause(self._context.now())
            self._context.stream_watch.check_soon()
            self.log.warning("checkpoint_failed", reason=error.message)
        finally:
            self._checkpointing = False
            self._context.quiet_checkpoints.leave(self.key)
            if self._full_checkpoint_due and self.lifecycle.phase is Phase.ACTIVE:  # checkpoint failed or is due again
                self._start_checkpoint()
            self.post(JobEnded())

    async def _ack(self) -> None:
        try:
            await self.lease.release()
        finally:
            self.post(Released())

    async def _recheck(self) -> None:
        """Look for work that arrived while the owner was ending."""
        left = True  # if the recheck fails, another owner has to look for work
        try:
            if self.commits is not None and self._processor is not None:
                left = await recheck(self._context, self.commits, self._processor, self._puller)
        except RebaserError as error:
            self.log.warning("recheck_failed", reason=error.message)
        finally:
            self.post(Rechecked(left))

    def _failure_of(self, event: str, error: RebaserError) -> Failed:
        """Log `error` as `event`, and return the lifecycle event that reports it."""
        fenced = isinstance(error, FencedError)
        self.log.warning(event, code=error.code, reason=error.message, fenced=fenced)
        self._context.stream_watch.check_soon()
        if not fenced:
            self._context.health.record(self._context.now(), error, key=self.key)
        return Failed(Reason.FENCED if fenced else Reason.TRANSIENT, retry_delay(self.lease.task.message.delivered))

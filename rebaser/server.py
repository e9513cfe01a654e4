"""Pulls tasks for the free slots of a server, and runs an owner for each task.

Invariant: this process has at most one owner per change set. A separate loop sends progress acks, independent of the
owners. A cancelled server settles its commits in flight, returns every task to NATS at once, and leaves no task of the
event loop running.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace

import anyio
import anyio.lowlevel
import structlog
from anyio.abc import TaskGroup

from rebaser import crowd
from rebaser.change_set.lease import Lease, ReturnedTasks, Task, retry_delay
from rebaser.change_set.lifecycle import Phase, Reason
from rebaser.change_set.owner import Owner
from rebaser.gc.schedule import CollectionSchedule
from rebaser.keepalive import keep_tasks_alive
from rebaser.owner_view import describe_owner, take_census
from rebaser.runtime.context import Context
from rebaser.runtime.context_view import view_context
from rebaser.runtime.progress_reporter import ProgressReporter
from rebaser.runtime.python_gc import FrozenGarbage
from rebaser.runtime.queue_watch import QueueWatch
from rebaser.runtime.slots import SlotCount
from rebaser.snapshot import Census, Snapshot, Stage
from rebaser.sweeper.starting import make_sweeper
from rebaser.sweeper.unroutable import UNROUTABLE_KEY
from rebaser.telemetry.feeds import ownership_ended
from rebaser_client.jetstream import OrderedConsumer, PullConsumer, PullMessage
from rebaser_core.commit import Decision, Outcome
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.streams.topology import TASKS_CONSUMER, TASKS_GROUP

log = structlog.get_logger(__name__)

CROWD_LOOK = 0.1  # seconds between searches for idle owners while all slots are taken
CROWD_CHECK = 1.0  # seconds between checks for tasks that wait in NATS while all slots are taken
OVERBOOKING = 64  # while all slots are taken, one task is requested in advance for every 64 slots
MAX_OVERBOOKED = 16  # maximum number of tasks requested in advance
SLICE = 64  # owners that are started, stopped or abandoned in one iteration of the event loop
TASKS_SLICE = 1000  # tasks that are accepted in one iteration
HANDOVER_DELAY = 0.25  # seconds until a task that needs a newer server is offered to the next server


class Server:
    """Owns change sets until it is cancelled. `context` must be open; see `rebaser.serving`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sweeper = make_sweeper(context)
        self._collection = CollectionSchedule(context, context.settings.collection_interval())
        self._owners: OrderedDict[ChangeSetKey, Owner] = OrderedDict()  # an owner's methods may reorder this dict
        self._updates_reporter = ProgressReporter(context)
        self._held: dict[ChangeSetKey, Task] = {}  # tasks without an owner, because no slot is free
        self._successor_tasks: dict[ChangeSetKey, Task] = {}  # delivered while their previous owners end
        self._returned = ReturnedTasks(context.now)
        self._declined_until: dict[ChangeSetKey, float] = {}  # change sets whose tasks are left to newer servers
        self._group: TaskGroup
        self._pull: PullConsumer | None = None
        self._slots = SlotCount(context.settings.concurrency, context.memory)
        self._garbage = FrozenGarbage()
        self._slots_taken = 0
        self._started = 0  # number of owners that were started in this slice
        self._slice_full = anyio.Event()
        self._tasks_requested = 0  # tasks that were requested and not delivered yet
        self._overbooked = 0  # how many tasks to request beyond the free slots
        self._stopping = False
        self._stage: Stage = "starting"
        self._ended = anyio.Event()  # set when an owner ends
        self._kept_alive_at = context.now()

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled; `ready` is called once tasks are being pulled."""
        context = self._context
        consumer = PullConsumer(
            context.js,
            context.subjects.tasks_stream,
            TASKS_CONSUMER,
            group=TASKS_GROUP,
            min_pending=context.settings.overflow_pending,
            min_ack_pending=context.settings.overflow_ack_pending,
            on_warning=lambda _: context.stream_watch.check_soon(),
        )
        accepted = 0
        async with anyio.create_task_group() as self._group, consumer as self._pull:
            self._group.start_soon(self._note_shutdown)
            try:
                async with anyio.create_task_group() as loops:
                    loops.start_soon(self._keepalive_loop)
                    loops.start_soon(self._crowd_loop)
                    loops.start_soon(QueueWatch(context, self._queue_of).run)
                    loops.start_soon(self._start_loop)
                    loops.start_soon(context.deleter.run)
                    loops.start_soon(self._sweeper.run)
                    loops.start_soon(self._collection.run, lambda: self._sweeper.pinned)
                    loops.start_soon(self._updates_reporter.run)
                    loops.start_soon(context.stream_watch.run, self)
                    self._fill_slots()
                    self._stage = "serving"
                    ready()
                    async for message in consumer:
                        self._accept(message)
                        accepted += 1
                        if accepted % TASKS_SLICE == 0:
                            await anyio.lowlevel.checkpoint()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._shut_down(self._group)

    def snapshot(self) -> Snapshot:
        """Return the state of this server without the state of its owners, which `census` returns."""
        return replace(
            view_context(self._context, self._stage),
            progress_silent=self._context.now() - self._kept_alive_at,
            slots=self._slot_total(),
            slots_used=self._slots_taken,
            owned=len(self._owners),
            sweeper=self._sweeper.pinned,
            sweep=self._sweeper.seen,
            tasks_held=len(self._held),
            tasks_following=len(self._successor_tasks),
            tasks_returned=self._returned.count(),
        )

    def census(self) -> Census:
        """Count the owners by their states. This takes time in proportion to their number."""
        running, slow = self._context.running_updates.values(), self._updates_reporter.slow()
        return take_census(self._owners.values(), running, slow, self._context.now())

    def about(self, key: ChangeSetKey) -> dict[str, object]:
        """Return this server's report on the change set `key`; empty if this server does not hold its task."""
        if key not in self._owners:
            return {"phase": "no_slot"} if key in self._held else {}
        progress = self._context.running_updates.get(key)
        return describe_owner(self._owners[key], progress, self._context.now())

    def _queue_of(self, key: ChangeSetKey) -> OrderedConsumer | None:
        return self._owners[key].queue if key in self._owners else None

    # -- tasks and slots -------------------------------------------------------------------------------------------

    def _accept(self, message: PullMessage) -> None:
        self._tasks_requested -= 1
        try:
            _, key = self._context.subjects.parse(message.subject)
        except UnprocessableError as error:
            self._group.start_soon(self._refuse, message, error)
            self._fill_slots()
            return
        task = Task(key, message, self._context.js)
        owner = self._owners.get(key)
        if owner is not None and owner.ending:
            self._successor_tasks[key] = task
        elif owner is not None:
            owner.lease.task = task  # NATS has delivered the message again
        elif self._declined_until.get(key, 0.0) > self._context.now():
            self._group.start_soon(Lease(task, self._context.subjects).give_back, HANDOVER_DELAY)
            self._returned.add(HANDOVER_DELAY)
        else:
            self._held[key] = task
        self._fill_slots()
        if self._held:
            self._make_room()

    async def _refuse(self, message: PullMessage, error: UnprocessableError) -> None:
        """Move a task whose subject identifies no change set to the dead letters. If that fails, NATS redelivers it."""
        log.warning("task_unreadable", subject=message.subject[:120], reason=error.message)
        context, sequence = self._context, message.stream_sequence
        decision = Decision(sequence, RequestId(f"@task{sequence}"), Outcome.DEAD, 0, error.code, error.message)
        try:
            await context.dead_letters.publish(UNROUTABLE_KEY, message, decision, context.now_ms())
            await context.js.term(message, error.code)
        except RebaserError as failure:
            log.warning("task_refusal_failed", reason=failure.message)

    def _start(self, task: Task) -> None:
        owner = self._owners[task.key] = Owner(self._context, task, changed=self._slot_changed)
        self._slots_taken += 1
        self._group.start_soon(self._own, owner)

    async def _own(self, owner: Owner) -> None:
        """Run `owner` to its end. A failure of one owner does not affect the others."""
        try:
            with owner.scope:  # shielded, because a cancelled server stops its owners through their lifecycles
                await owner.run()
        except Exception:
            owner.log.exception("owner_failed")
            await owner.lease.give_back(retry_delay(owner.lease.task.message.delivered))
        finally:
            ownership_ended(owner.lifecycle.stopping, done=owner.lifecycle.phase is Phase.DONE)
            del self._owners[owner.key]
            self._returned.add(owner.lease.returned_for)
            self._update_declined(owner)
            self._ended.set()
            if owner.lifecycle.holds_slot:
                self._slots_taken -= 1
            task = self._successor_tasks.pop(owner.key, None)
            if task is not None:
                self._start(task)
            self._fill_slots()
            owner.drop_resources()
            self._garbage.owners_ended += 1

    def _update_declined(self, owner: Owner) -> None:
        """Decline tasks of the change set for a while if only newer servers can read its first queued request."""
        now = self._context.now()
        if owner.newer_server_wait:
            self._declined_until = {key: until for key, until in self._declined_until.items() if until > now}
            self._declined_until[owner.key] = now + owner.newer_server_wait
        else:
            self._declined_until.pop(owner.key, None)

    def _slot_changed(self, taken: bool) -> None:
        self._slots_taken += 1 if taken else -1
        self._fill_slots()

    def _slot_total(self) -> int:
        return self._slots.total(without_slot=len(self._owners) - self._slots_taken)

    def _fill_slots(self) -> None:
        """Give free slots to held tasks. Request a task for each slot that is still free, unless one is on its way."""
        if self._stopping:
            return
        total = self._slot_total()
        while self._held and self._slots_taken < total:
            if self._started >= SLICE:
                self._slice_full.set()
                break
            self._started += 1
            self._start(self._held.pop(next(iter(self._held))))
        wanted = total + self._overbooked - self._slots_taken - len(self._held) - self._tasks_requested
        if wanted > 0 and self._pull is not None:
            self._tasks_requested += wanted
            self._pull.add_credit(wanted)

    def _make_room(self) -> None:
        """For each held task without a free slot, stop an idle owner, if there is one, to free its slot."""
        now = self._context.now()
        for _ in range(self._slots_taken + len(self._held) - self._slot_total()):
            owner = crowd.find_idle(self._owners, now)
            if owner is None:
                self._overbooked = 0
                return
            owner.stop(Reason.YIELD)

    # -- streams that disappear ------------------------------------------------------------------------------------

    def streams_lost(self, streams: Mapping[str, int]) -> None:
        """End the owners that depend on `streams` (see `StreamLossListener`). Later owners use the new streams."""
        subjects = self._context.subjects
        if subjects.requests_stream in streams:
            self._context.deleter.clear()
        if subjects.tasks_stream in streams:
            self._successor_tasks.clear()
            self._held.clear()
        for owner in list(self._owners.values()):
            if subjects.commits_stream in streams:
                owner.log_loss(streams[subjects.commits_stream])
            if subjects.tasks_stream in streams:
                owner.lose_task(hung=False)
            elif streams.keys() & {subjects.commits_stream, subjects.requests_stream}:
                owner.stop(Reason.TRANSIENT)

    def streams_recreated(self, streams: frozenset[str]) -> None:
        """Make the owners write full checkpoints if the stream of blobs was recreated without the old blobs."""
        context = self._context
        if context.settings.blobs is None and f"OBJ_{context.subjects.blobs_bucket}" in streams:
            for owner in list(self._owners.values()):
                owner.save_full_checkpoint()

    # -- loops -----------------------------------------------------------------------------------------------------

    async def _keepalive_loop(self) -> None:
        """Send progress acks for all tasks of this server. After a pause longer than `ack_wait`, end all owners."""
        context = self._context
        ack_wait = context.settings.ack_wait
        for number in itertools.count():
            now = context.now()
            if now - self._kept_alive_at > ack_wait:
                log.warning("lease_lost", paused_seconds=round(now - self._kept_alive_at, 1), owned=len(self._owners))
                for owner in list(self._owners.values()):
                    owner.lose_task(hung=True)
                self._successor_tasks.clear()
                self._held.clear()
            self._kept_alive_at = now
            try:
                tasks = [*self._successor_tasks.values(), *self._held.values()]
                self._slots.state_bytes = await keep_tasks_alive(context.js, [*self._owners.values()], tasks, number)
            except RebaserError as error:
                log.warning("progress_ack_failed", reason=error.message)
            self._garbage.collect_if_due(len(self._owners))
            await anyio.sleep(max(self._kept_alive_at + ack_wait / 3 - context.now(), 0.0))

    async def _start_loop(self) -> None:
        """After each slice of owners, start the next slice in a later iteration of the event loop."""
        while True:
            await self._slice_full.wait()
            self._slice_full = anyio.Event()
            await anyio.lowlevel.checkpoint()
            self._started = 0
            self._fill_slots()

    async def _crowd_loop(self) -> None:
        """While all slots are taken, stop owners to free slots for waiting tasks: idle owners at once, the others when
        their turn is over.

        While there are idle owners, the server requests more tasks than it has free slots. For each additional task, it
        stops an idle owner.
        """
        checked_at = self._context.now()
        while True:
            await anyio.sleep(min(CROWD_LOOK, CROWD_CHECK))
            total, now = self._slot_total(), self._context.now()
            self._overbooked = 0
            if self._slots_taken < total:
                continue
            if crowd.find_idle(self._owners, now) is not None:
                self._overbooked = min(total // OVERBOOKING + 1, MAX_OVERBOOKED)
            self._make_room()
            self._fill_slots()
            if now - checked_at >= CROWD_CHECK:
                checked_at = now
                await self._check_crowd()

    async def _check_crowd(self) -> None:
        """Stop idle and overdue owners, at most one for each task that waits in NATS or that this server holds."""
        context = self._context
        try:
            info = await context.js.consumer_info(context.subjects.tasks_stream, TASKS_CONSUMER)
        except RebaserError as error:
            log.warning("crowd_check_failed", reason=error.message)
            return
        waiting = info.num_pending + len(self._held)
        if not waiting and info.num_waiting:
            return  # a server is pulling and has received no task, so no task waits
        holders = [owner for owner in self._owners.values() if owner.lifecycle.holds_slot]
        leaving = crowd.yielding(holders, context.now(), context.settings.turn)
        for owner in leaving[:waiting]:
            owner.stop(Reason.YIELD)
        if leaving and not waiting and not info.num_waiting:
            # NATS does not count returned tasks as pending. As no server is pulling, one may wait: request one task.
            self._overbooked = 1
            self._fill_slots()

    async def _note_shutdown(self) -> None:
        """Set the stage to `draining` at once when the server is cancelled: `_shut_down` may begin seconds later."""
        try:
            await anyio.sleep_forever()
        finally:
            self._stage = "draining"

    async def _shut_down(self, owners: TaskGroup) -> None:
        """Settle commits in flight, and return every task to NATS. Stop waiting when `shutdown_grace` is over."""
        context = self._context
        # The owners are shielded already. If the task group's scope were not shielded, too, anyio would search all
        # owners for tasks to cancel in each iteration of the event loop.
        owners.cancel_scope.shield = True
        log.info("shutting_down", owned=len(self._owners))
        self._stopping = True
        try:
            if self._pull is not None:
                await self._pull.stop()
            without_owner = [*self._successor_tasks.values(), *self._held.values()]
            self._successor_tasks, self._held = {}, {}
            with anyio.move_on_after(context.settings.shutdown_grace):
                for task in without_owner:
                    await Lease(task, context.subjects).give_back(0.0)
                await self._end_owners()
                await context.deleter.flush()
        finally:  # otherwise, an error above would keep the server from ending
            for number, owner in enumerate(list(self._owners.values()), 1):
                owner.abandon()
                owner.scope.cancel()
                if number % SLICE == 0:
                    await anyio.lowlevel.checkpoint()
            owners.cancel_scope.shield = False
            owners.cancel_scope.cancel()

    async def _end_owners(self) -> None:
        # A list of the owners would keep ended owners alive, and then free thousands of them at once.
        for number, key in enumerate(list(self._owners), 1):
            if key in self._owners:
                self._owners[key].stop(Reason.SHUTDOWN)
            if number % SLICE == 0:
                await anyio.lowlevel.checkpoint()
        while self._owners:
            self._ended = anyio.Event()
            await self._ended.wait()

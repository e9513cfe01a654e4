"""The server: pulls tasks for its free slots, and runs an owner for each task.

Invariant: this process has at most one owner per change set. A separate loop sends progress acks, whatever the owners
do. A cancelled server settles its commits in flight, gives every task back at once, and leaves nothing running.
"""

import gc
from collections.abc import Callable, Iterator

import anyio
import structlog
from anyio.abc import TaskGroup

from rebaser import __version__
from rebaser.change_set.lease import Lease, Task
from rebaser.change_set.lifecycle import Phase, Reason
from rebaser.change_set.owner import Owner, retry_delay
from rebaser.change_set.replies import inbox_allowed
from rebaser.dvu.functions import registry
from rebaser.embedded.spark import Jvm
from rebaser.runtime.context import Context, open_context
from rebaser.runtime.progress import Progress, ProgressReporter
from rebaser.runtime.watchdog import watched_loop
from rebaser.settings import Settings
from rebaser.sweeper.sweeper import Sweeper
from rebaser.sweeper.unroutable import UNROUTABLE_KEY, UnroutableMessages
from rebaser_client.jetstream import PullConsumer, PullMessage
from rebaser_core.commit import Decision, Outcome
from rebaser_core.encoding.envelope import JSON, dumps
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.topology import TASKS_CONSUMER, TASKS_GROUP

log = structlog.get_logger(__name__)

CROWD_CHECK = 1.0  # seconds between checks for waiting tasks while all slots are taken
IDLE_AFTER = 0.25  # seconds without a request until an owner is idle: its first request may be on its way
HANDOVER_DELAY = 0.25  # seconds until a task that needs a newer server is offered to the next server


class Server:
    """Owns change sets until it is cancelled. `context` must be open; see `serve`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        unroutable = UnroutableMessages(context.js, context.subjects, context.dead_letters, context.now_ms)
        interval, on_stream_error = context.settings.sweep_interval, context.stream_watch.check_soon
        self._sweeper = Sweeper(context.js, context.subjects, interval, unroutable, on_stream_error)
        self._progress = ProgressReporter(context, self._updates)
        self._owners: dict[ChangeSetKey, Owner] = {}
        self._successor_tasks: dict[ChangeSetKey, Task] = {}  # delivered while the previous owner was ending
        self._declined_until: dict[ChangeSetKey, float] = {}  # for change sets that need a newer server
        self._pull: PullConsumer | None = None
        self._tasks_requested = 0  # and not delivered yet
        self._slots_taken = 0
        self._stopping = False
        self._ended = anyio.Event()  # set when an owner ends
        self._progress_at = context.now()

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
        async with anyio.create_task_group() as owners, consumer as self._pull:
            try:
                async with anyio.create_task_group() as loops:
                    loops.start_soon(self._progress_loop)
                    loops.start_soon(self._crowd_loop)
                    loops.start_soon(context.deleter.run)
                    loops.start_soon(self._sweeper.run)
                    loops.start_soon(self._progress.run)
                    loops.start_soon(context.stream_watch.run, self)
                    self._fill_slots()
                    ready()
                    async for message in consumer:
                        self._accept(owners, message)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._shut_down(owners)

    def describe(self) -> dict[str, object]:
        """Return the answer to a ping."""
        context = self._context
        return {
            "id": context.settings.server_id,
            "version": __version__,
            "owned": len(self._owners),
            "slots": context.settings.concurrency,
            "dvu": context.engine.state,
            "sweeper": self._sweeper.pinned,
            "durability": context.settings.durability,
            "ready": not context.stream_watch.problem,
            "trouble": context.stream_watch.problem or context.health.current(context.now()),
            "losses": list(context.stream_watch.losses),
            "functions": sorted(registry().functions),
            "signatures": {
                function.name: {"inputs": function.inputs, "params": function.params}
                for function in registry().functions.values()
            },
            "updates": [
                {
                    "workspace": update.workspace_id,
                    "change_set": update.change_set_id,
                    "done": update.done,
                    "total": update.total,
                    "seconds": update.seconds,
                }
                for update in self._progress.slow()
            ],
        }

    def _updates(self) -> Iterator[tuple[ChangeSetKey, Progress]]:
        for key, owner in self._owners.items():
            if (progress := owner.progress) is not None:
                yield key, progress

    # -- tasks and slots -------------------------------------------------------------------------------------------

    def _accept(self, owners: TaskGroup, message: PullMessage) -> None:
        self._tasks_requested -= 1
        try:
            _, key = self._context.subjects.parse(message.subject)
        except UnprocessableError as error:
            owners.start_soon(self._refuse, message, error)
            self._fill_slots()
            return
        task = Task(key, message, self._context.js)
        owner = self._owners.get(key)
        if owner is not None and owner.ending:
            self._successor_tasks[key] = task
        elif owner is not None:
            owner.adopt(task)
        elif self._declined_until.get(key, 0.0) > self._context.now():
            owners.start_soon(Lease(task, self._context.subjects).give_back, HANDOVER_DELAY)
        else:
            self._start(owners, task)
        self._fill_slots()

    async def _refuse(self, message: PullMessage, error: UnprocessableError) -> None:
        """Move a task that names no change set to the dead letters. If that fails, the task is redelivered."""
        log.warning("task_unreadable", subject=message.subject[:120], reason=error.message)
        context, sequence = self._context, message.stream_sequence
        decision = Decision(sequence, RequestId(f"@task{sequence}"), Outcome.DEAD, 0, error.code, error.message)
        try:
            await context.dead_letters.publish(UNROUTABLE_KEY, message, decision, context.now_ms())
            await context.js.term(message, error.code)
        except RebaserError as failure:
            log.warning("task_refusal_failed", reason=failure.message)

    def _start(self, owners: TaskGroup, task: Task) -> None:
        owner = self._owners[task.key] = Owner(self._context, task, changed=self._slot_changed)
        self._slots_taken += 1
        owners.start_soon(self._own, owners, owner)

    async def _own(self, owners: TaskGroup, owner: Owner) -> None:
        """Run `owner` to its end. A failure of one owner does not affect the others."""
        try:
            with owner.scope:  # shielded: a cancelled server ends its owners through their lifecycles
                await owner.run()
        except Exception:
            owner.log.exception("owner_failed")
            await owner.lease.give_back(retry_delay(owner.lease.task.message.delivered))
        finally:
            del self._owners[owner.key]
            self._update_declined(owner)
            self._ended.set()
            if owner.state.holds_slot:
                self._slots_taken -= 1
            task = self._successor_tasks.pop(owner.key, None)
            if task is not None:
                self._start(owners, task)
            self._fill_slots()

    def _update_declined(self, owner: Owner) -> None:
        """Leave the change set to newer servers for a while, if its first request needs a newer version."""
        now = self._context.now()
        if owner.newer_server_wait:
            self._declined_until = {key: until for key, until in self._declined_until.items() if until > now}
            self._declined_until[owner.key] = now + owner.newer_server_wait
        else:
            self._declined_until.pop(owner.key, None)

    def _slot_changed(self, taken: bool) -> None:
        self._slots_taken += 1 if taken else -1
        self._fill_slots()

    def _fill_slots(self) -> None:
        """Pull a task for each free slot for which no task has been requested yet."""
        free = self._context.settings.concurrency - self._slots_taken - self._tasks_requested
        if free > 0 and self._pull is not None and not self._stopping:
            self._tasks_requested += free
            self._pull.add_credit(free)

    # -- streams that disappear ------------------------------------------------------------------------------------

    def streams_lost(self, streams: frozenset[str]) -> None:
        """End the owners that depend on `streams`; their successors start from the new streams."""
        subjects = self._context.subjects
        if subjects.requests_stream in streams:
            self._context.deleter.clear()
        if subjects.tasks_stream in streams:
            self._successor_tasks.clear()
        for owner in list(self._owners.values()):
            if subjects.commits_stream in streams:
                owner.log_loss()
            if subjects.tasks_stream in streams:
                owner.lose_task()
            elif streams & {subjects.commits_stream, subjects.requests_stream}:
                owner.stop(Reason.TRANSIENT)

    def streams_recreated(self, streams: frozenset[str]) -> None:
        """Have the owners store again what the streams lost and the owners still hold."""
        context = self._context
        if context.settings.blobs is None and f"OBJ_{context.subjects.blobs_bucket}" in streams:
            for owner in self._owners.values():
                owner.save_full_checkpoint()

    # -- loops -----------------------------------------------------------------------------------------------------

    async def _progress_loop(self) -> None:
        """Tell NATS that the tasks are in progress. End the owners if the process was paused for over `ack_wait`."""
        context = self._context
        ack_wait = context.settings.ack_wait
        while True:
            now = context.now()
            if now - self._progress_at > ack_wait:
                log.warning("lease_lost", paused=round(now - self._progress_at, 1), owned=len(self._owners))
                for owner in self._owners.values():
                    owner.stop(Reason.FENCED)
                self._successor_tasks.clear()
            self._progress_at = now
            tasks = [owner.lease.task for owner in self._owners.values() if owner.state.phase is not Phase.DONE]
            for task in [*tasks, *self._successor_tasks.values()]:
                try:
                    await task.progress()
                except RebaserError as error:
                    log.warning("progress_failed", reason=error.message)
                    break
            await anyio.sleep(ack_wait / 3)

    async def _crowd_loop(self) -> None:
        """While tasks wait and all slots are taken, ask owners to yield: idle ones first, then overdue ones."""
        context = self._context
        settings = context.settings
        while True:
            await anyio.sleep(CROWD_CHECK)
            holders = [owner for owner in self._owners.values() if owner.state.holds_slot]
            if len(holders) < settings.concurrency:
                continue
            try:
                info = await context.js.consumer_info(context.subjects.tasks_stream, TASKS_CONSUMER)
            except RebaserError as error:
                log.warning("crowd_check_failed", reason=error.message)
                continue
            now = context.now()
            idle = [owner for owner in holders if owner.idle_for(now) > IDLE_AFTER]
            idle.sort(key=lambda owner: owner.state.active_at)
            overdue = [owner for owner in holders if owner not in idle and now - owner.since > settings.turn]
            overdue.sort(key=lambda owner: owner.since)
            for owner in [*idle, *overdue][: info.num_pending]:
                owner.stop(Reason.YIELD)

    async def _shut_down(self, owners: TaskGroup) -> None:
        """Settle commits in flight and give every task back, within the grace period."""
        context = self._context
        log.info("shutting_down", owned=len(self._owners))
        self._stopping = True
        if self._pull is not None:
            await self._pull.stop()
        self._successor_tasks, waiting = {}, self._successor_tasks
        with anyio.move_on_after(context.settings.shutdown_grace):
            for task in waiting.values():
                await task.nak(0)
            for owner in self._owners.values():
                owner.stop(Reason.SHUTDOWN)
            while self._owners:
                self._ended = anyio.Event()
                await self._ended.wait()
            await context.deleter.flush()
        for owner in self._owners.values():
            owner.abandon()
            owner.scope.cancel()
        owners.cancel_scope.cancel()


async def serve(
    settings: Settings,
    *,
    ready: Callable[[], None] = lambda: None,
    warm: Callable[[], None] = lambda: None,
    jvm: Jvm | None = None,
) -> None:
    """Run a server until cancelled.

    `ready` is called once the server accepts requests, `warm` once Spark is ready for the first DVU. `jvm` is the
    embedded Spark, if it was started already.

    Raises `ConfigError` if the configuration must be corrected, `NotConnectedError` if NATS cannot be reached at the
    start.
    """
    # Requests create many short-lived objects and hardly any cycles. By default, the collector runs after every 700 of
    # them.
    gc.set_threshold(50_000, 10, 10)
    with watched_loop(settings.loop_blocked_after):
        await _serve(settings, ready, warm, jvm)


async def _serve(settings: Settings, ready: Callable[[], None], warm: Callable[[], None], jvm: Jvm | None) -> None:
    async with open_context(settings, jvm) as context, anyio.create_task_group() as group:
        server = Server(context)

        async def report_warm() -> None:
            await context.engine.ready.wait()
            log.info("dvu_ready", spark=settings.spark)
            warm()

        def report_ready() -> None:
            log.info("server_ready", server=settings.server_id, concurrency=settings.concurrency)
            ready()

        group.start_soon(report_warm)
        group.start_soon(_answer_pings, context, server)
        await server.run(report_ready)


async def _answer_pings(context: Context, server: Server) -> None:
    """Answer each ping that has an inbox. The inbox is chosen by the sender, as for requests (see `replies`)."""
    async with context.connection.subscribe(context.subjects.ping) as pings:
        async for ping in pings:
            if not ping.reply:
                continue
            if not inbox_allowed(ping.reply, context.settings.inbox_prefix):
                log.warning("ping_refused", inbox=ping.reply[:80])
                continue
            try:
                await context.connection.publish(ping.reply, dumps(JSON, server.describe()))
            except RebaserError as error:  # for instance, the connection was lost since the ping arrived
                log.warning("ping_not_answered", reason=error.message)

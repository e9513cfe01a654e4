"""Publishes the task of every change set that needs an owner but has no task.

A request is stranded if its client died after it published the request and before it published the task. A dependent
values update is stranded if its owner died during its recheck. In both cases, the streams show that the change set has
no task, although it has queued requests or its newest commit says that an update is due.

One server of the fleet sweeps. The sweep stream holds one message that is never acknowledged. NATS delivers it to the
client that JetStream has pinned (ADR-42). The pinned server returns the message with a delay, and the redelivery starts
the next sweep. If the pinned server dies, it loses the pin, and the message goes to another server. If several servers
sweep at the same time, no harm is done, because NATS refuses a second task for a change set.

The sweeper also moves messages whose subject identifies no change set to the dead letters (see `unroutable`), purges
history that owners leave in the log (see `old_history`), and sends requests to delete change sets that were closed long
ago (see `closed`).
"""

from collections.abc import Callable, Iterable

import anyio
import structlog
from anyio import lowlevel

from rebaser.runtime.concurrency import run_concurrently
from rebaser.runtime.own_commits import OwnCommits
from rebaser.snapshot import Sweep
from rebaser.sweeper.closed import ClosedChangeSets
from rebaser.sweeper.debts import DebtTracker
from rebaser.sweeper.old_history import OldHistory
from rebaser.sweeper.unroutable import UnroutableMessages
from rebaser.telemetry.clocks import NATS_CLOCK
from rebaser.telemetry.feeds import clock, swept
from rebaser_client.admin.provisioning import retire_old_sweep
from rebaser_client.jetstream import ApiError, JetStream, PullConsumer, PullMessage
from rebaser_client.jetstream.errors import STORE_FAILED, is_full, is_subject_full
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, is_key
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import MIN_SWEEP_LEASE, NANOS, SWEEP_CONSUMER, SWEEP_GROUP

log = structlog.get_logger(__name__)

MAX_CONCURRENT = 32  # number of tasks that are published concurrently
RETRY_REFUSED = 5.0  # maximum seconds until the sweep message is published again after NATS refused to store it
# Between sweeps, the headers of new commits are read in steps. A step is skipped if fewer commits are new, because
# creating its consumer takes as long as 300 headers.
READ_AHEAD_LEAST = 1000
# Seconds until the next step; doubled for each that is skipped, up to half of the time between sweeps.
READ_AHEAD = 0.25
GIVE_BACK_TIMEOUT = 2.0  # maximum seconds for returning the sweep message, or for giving up the pin


class Sweeper:
    """Sweeps every `interval` seconds while this server is pinned; call `run` in a task group.

    A sweep requests the deletion of change sets that have been closed for `closed_for` seconds, unless `closed_for` is
    0. `own_commits` are commits of this server.

    `seen` is the result of the last sweep; None if this server is not pinned, or has not swept yet.

    `on_stream_error` is called after an error that a missing stream may have caused. `on_refusal` is called with the
    reason if NATS has no room for the sweep message, and with an empty string if it can store messages.
    """

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        interval: float,
        unroutable: UnroutableMessages,
        history: OldHistory,
        *,
        closed_for: float = 0.0,
        own_commits: OwnCommits | None = None,
        on_stream_error: Callable[[], None] = lambda: None,
        on_refusal: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._interval = interval
        self._lease = max(interval, MIN_SWEEP_LEASE)
        self._own_commits = OwnCommits() if own_commits is None else own_commits
        self._debts = DebtTracker(js, subjects, self._own_commits)
        self._unroutable = unroutable
        self._history = history
        self._closed = ClosedChangeSets(js, subjects, closed_for)
        self._on_stream_error = on_stream_error
        self._on_refusal = on_refusal
        self._old_sweep_retired = False  # whether the sweep message in the stream of tasks (older releases) is deleted
        self.pinned = False
        self.seen: Sweep | None = None

    async def run(self) -> None:
        """Sweep whenever this server is pinned, until cancelled.

        After a cancellation, this server gives up the pin, so that NATS pins another server at once.
        """
        consumer = PullConsumer(
            self._js,
            self._subjects.sweep_stream,
            SWEEP_CONSUMER,
            group=SWEEP_GROUP,
            expires=max(self._lease / 2, 1.0),
            idle_heartbeat=max(self._lease / 4, 0.5),
            on_warning=lambda _: self._on_stream_error(),
            on_pinned=self._on_pinned,
            on_unpinned=self._on_unpinned,
        )
        # A NATS server that crashed may have lost the newest commits.
        forget = self._js.connection.on_reconnect(self._own_commits.clear)
        async with consumer, anyio.create_task_group() as group:
            group.start_soon(self._keep_message)
            consumer.add_credit()
            swept_before = False
            try:
                async for message in consumer:
                    await self._sweep_once(message)
                    consumer.add_credit()
                    if not swept_before:  # most servers of a fleet are never pinned
                        swept_before = True
                        group.start_soon(self._read_ahead)
            finally:
                forget()
                with anyio.move_on_after(GIVE_BACK_TIMEOUT, shield=True):
                    await consumer.stop()  # otherwise this server could be pinned again
                    if self.pinned:
                        await self._unpin()

    async def sweep(self) -> int:
        """Publish the missing tasks; return their number. Raise `TransientError` if NATS does not answer."""
        subjects = self._subjects
        # Requests are read before tasks: a task that a client publishes in between is then not published again.
        waiting = await self._names(subjects.requests_stream, f"{subjects.root}.requests.", "")
        has_unroutable = not all(map(is_key, waiting))
        owing = await self._debts.read()
        # NATS stamped the commits, and Prometheus has a clock of its own, so the clock of this machine does not count.
        now, since = NATS_CLOCK.now_ns(), min(self._debts.owing_since.values(), default=0)
        oldest = max(now - since, 0) / NANOS if since else 0.0
        self.seen = Sweep(now / NANOS, len(waiting), len(owing), oldest)
        if not waiting and not owing:
            return 0
        tasks = await self._names(subjects.tasks_stream, f"{subjects.root}.tasks.", ".process")
        waiting -= tasks
        if waiting:  # read the queues again, because a change set needs no owner if its requests were decided meanwhile
            waiting &= await self._names(subjects.requests_stream, f"{subjects.root}.requests.", "")
        waiting |= owing - tasks
        published = await self._publish(waiting)
        if published:
            log.warning("stranded_change_sets", count=published, example=next(iter(waiting)))
        if has_unroutable:
            await self._unroutable.move()
        return published

    async def _names(self, stream: str, head: str, tail: str) -> set[str]:
        """Return the name `ws.cs` of each subject `<head>ws.cs<tail>` in `stream`. The names may be invalid, because
        they are not parsed: there may be 100,000 names."""
        counts = await self._js.subject_counts(stream, f"{head}*.*{tail}")
        await lowlevel.checkpoint()
        return {subject[len(head) : len(subject) - len(tail)] for subject in counts}

    async def _publish(self, names: Iterable[str]) -> int:
        published = 0

        async def publish(name: str) -> None:
            nonlocal published
            try:
                key = ChangeSetKey.of(*name.split("."))
            except UnprocessableError:
                return  # the name is not valid, so no server can own the change set
            had_none = await publish_task(self._js, self._subjects, key)
            published += had_none

        await run_concurrently(names, publish, MAX_CONCURRENT)
        return published

    async def _sweep_once(self, message: PullMessage) -> None:
        """Sweep, and send progress acks for `message` meanwhile. Then return the message to NATS, which redelivers it
        for the next sweep."""
        delay, began = self._interval, clock()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._progress, message)
                for part in (self.sweep, self._history.purge, self._delete_closed, self._retire_old):
                    try:  # if one part always fails, the other parts must still run
                        await part()
                    except RebaserError as error:
                        self._on_stream_error()
                        log.warning("sweep_failed", code=error.code, reason=error.message)
                swept(began)
                group.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            delay = 0.0
            raise
        finally:
            with anyio.move_on_after(GIVE_BACK_TIMEOUT, shield=True):
                try:
                    await self._js.nak(message, delay)
                except RebaserError as error:
                    log.debug("sweep_nak_failed", reason=error.message)

    async def _delete_closed(self) -> None:
        await self._closed.delete(self._debts.closed, self._debts.newest_ns)

    async def _retire_old(self) -> None:
        try:
            self._old_sweep_retired = self._old_sweep_retired or await retire_old_sweep(self._js, self._subjects)
        except RebaserError as error:  # the old message does no harm, so there is no second attempt
            self._old_sweep_retired = True
            log.warning("old_sweep_not_removed", stream=self._subjects.tasks_stream, reason=error.message)

    async def _progress(self, message: PullMessage) -> None:
        while True:
            await anyio.sleep(self._lease / 3)
            try:
                await self._js.progress(message)
            except RebaserError as error:
                log.debug("sweep_progress_failed", reason=error.message)

    async def _read_ahead(self) -> None:
        """Read the headers of new commits in small steps. Otherwise, a sweep would receive megabytes of them at once,
        and the requests that arrive meanwhile would wait behind them."""
        delay = READ_AHEAD
        while True:
            await anyio.sleep(delay)
            delay = max(min(2 * delay, self._interval / 2), READ_AHEAD)
            if self.pinned:
                try:
                    if await self._debts.read_ahead(READ_AHEAD_LEAST):
                        delay = READ_AHEAD
                except RebaserError as error:  # the next sweep will report it
                    log.debug("read_ahead_failed", reason=error.message)

    async def _keep_message(self) -> None:
        """Publish the sweep message whenever it is missing, for instance because an operator deleted it.

        This also shows whether NATS has room: a message that is refused only because it is there could be stored.
        """
        while True:
            delay = self._interval
            try:
                await self._js.publish(self._subjects.sweep, b"")
                self._on_refusal("")
            except ApiError as error:
                if is_subject_full(error):
                    self._on_refusal("")
                else:
                    delay = min(delay, RETRY_REFUSED)
                    log.warning("sweep_message_failed", code=error.code, reason=error.message)
                    if is_full(error) or error.err_code == STORE_FAILED:  # others pass, such as a change of leaders
                        self._on_refusal(error.message)
            except RebaserError as error:
                self._on_stream_error()
                log.warning("sweep_message_failed", code=error.code, reason=error.message)
            await anyio.sleep(delay)

    async def _unpin(self) -> None:
        try:
            await self._js.unpin(self._subjects.sweep_stream, SWEEP_CONSUMER, SWEEP_GROUP)
        except RebaserError as error:
            log.debug("unpin_failed", reason=error.message)

    def _on_pinned(self, _: str) -> None:
        self.pinned = True
        self._own_commits.begin()
        log.info("sweeper_pinned")

    def _on_unpinned(self) -> None:
        self.pinned = False
        self.seen = None
        self._own_commits.end()
        log.info("sweeper_unpinned")

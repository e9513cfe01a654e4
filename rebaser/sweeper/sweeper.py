"""The sweeper: publishes the task of every change set that waits for an owner and has none.

A request is stranded if its client died between publishing it and its task; a dependent values update, if its owner
died in its last look. Both are seen from outside: requests stand in REQUESTS or the newest commit tells of debt, and
TASKS holds no task.

One server of the fleet sweeps: a stream of its own, SWEEP, holds one message that is never acknowledged, and it goes
to the client that JetStream has pinned (ADR-42). Giving it back with a delay is the timer of the next sweep; a holder
who dies loses the pin, and the message comes to another. If several sweep all the same nothing is wrong, because a task
that is there already is refused.

What stands in REQUESTS under a subject that names no change set is moved to the dead letters meanwhile (`strays`).
"""

from collections.abc import Callable, Iterable

import anyio
import structlog
from anyio.lowlevel import checkpoint

from rebaser.runtime.concurrency import run_concurrently
from rebaser.sweeper.debts import DebtTracker
from rebaser.sweeper.unroutable import UnroutableMessages
from rebaser_client.admin.provisioning import retire_old_sweep
from rebaser_client.jetstream import ApiError, JetStream, PullConsumer, PullMessage
from rebaser_client.jetstream.errors import is_subject_full
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, is_key
from rebaser_core.subjects import Subjects
from rebaser_core.topology import MIN_SWEEP_LEASE, SWEEP_CONSUMER, SWEEP_GROUP

log = structlog.get_logger(__name__)

AT_ONCE = 32  # tasks published at once


GIVE_BACK_BOUND = 2.0  # seconds


class Sweeper:
    """Sweeps each `interval` (seconds) while this server is the one pinned; call `run` in a task group.

    `on_stream_error` is called when something fails as it would if a stream were gone.
    """

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        interval: float,
        unroutable: UnroutableMessages,
        on_stream_error: Callable[[], None] = lambda: None,
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._interval = interval
        self._lease = max(interval, MIN_SWEEP_LEASE)
        self._debts = DebtTracker(js, subjects)
        self._unroutable = unroutable
        self._on_stream_error = on_stream_error
        self._alone = False  # no server of a release that kept its sweep message in TASKS waits any more
        self.pinned = False

    async def run(self) -> None:
        """Wait to be pinned, sweep, and go on so until cancelled; then somebody else is pinned at once."""
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
        async with consumer, anyio.create_task_group() as group:
            group.start_soon(self._keep_message)
            consumer.add_credit()
            try:
                async for message in consumer:
                    await self._turn(message)
                    consumer.add_credit()
            finally:
                with anyio.move_on_after(GIVE_BACK_BOUND, shield=True):
                    await consumer.stop()  # else we could be the next to be pinned
                    if self.pinned:
                        await self._unpin()

    async def sweep(self) -> int:
        """Publish the missing tasks; returns how many were missing. Raises `TransientError`."""
        subjects = self._subjects
        # What waits is read before the tasks: an owner that comes in between is seen, and left alone.
        waiting = await self._names(subjects.requests_stream, f"{subjects.root}.requests.", "")
        has_unroutable = not all(map(is_key, waiting))
        waiting |= await self._debts.read()
        if not waiting:
            return 0
        waiting -= await self._names(subjects.tasks_stream, f"{subjects.root}.tasks.", ".process")
        published = await self._publish(waiting)
        if published:
            log.warning("stranded_change_sets", count=published, example=next(iter(waiting)))
        if has_unroutable:
            await self._unroutable.move()
        return published

    async def _names(self, stream: str, head: str, tail: str) -> set[str]:
        """What stands in `stream` between `head` and `tail`: `ws.cs`. Not parsed, since there may be 100,000."""
        counts = await self._js.subject_counts(stream, f"{head}*.*{tail}")
        await checkpoint()
        return {subject[len(head) : len(subject) - len(tail)] for subject in counts}

    async def _publish(self, names: Iterable[str]) -> int:
        published = 0

        async def publish(name: str) -> None:
            nonlocal published
            try:
                key = ChangeSetKey.of(*name.split("."))
            except UnprocessableError:
                return  # nobody could own it
            had_none = await publish_task(self._js, self._subjects, key)
            published += had_none

        await run_concurrently(names, publish, AT_ONCE)
        return published

    async def _turn(self, message: PullMessage) -> None:
        """Sweep once, keeping the message meanwhile; then have it come again."""
        delay = self._interval
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._progress, message)
                try:
                    await self.sweep()
                    await self._retire_old()
                except RebaserError as error:
                    self._on_stream_error()
                    log.warning("sweep_failed", code=error.code, reason=error.message)
                group.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            delay = 0.0
            raise
        finally:
            with anyio.move_on_after(GIVE_BACK_BOUND, shield=True):
                try:
                    await self._js.nak(message, delay)
                except RebaserError as error:
                    log.debug("sweep_nak_failed", reason=error.message)

    async def _retire_old(self) -> None:
        try:
            self._alone = self._alone or await retire_old_sweep(self._js, self._subjects)
        except RebaserError as error:  # it hurts nobody: not worth a sweep, nor another try
            self._alone = True
            log.warning("old_sweep_left", stream=self._subjects.tasks_stream, reason=error.message)

    async def _progress(self, message: PullMessage) -> None:
        while True:
            await anyio.sleep(self._lease / 3)
            try:
                await self._js.progress(message)
            except RebaserError as error:
                log.debug("sweep_progress_failed", reason=error.message)

    async def _keep_message(self) -> None:
        """Make sure that there is a message to hold, also if somebody deleted it."""
        while True:
            try:
                await self._js.publish(self._subjects.sweep, b"")
            except ApiError as error:
                if not is_subject_full(error):
                    log.warning("sweep_message_failed", reason=error.message)
            except RebaserError as error:
                self._on_stream_error()
                log.warning("sweep_message_failed", reason=error.message)
            await anyio.sleep(self._interval)

    async def _unpin(self) -> None:
        try:
            await self._js.unpin(self._subjects.sweep_stream, SWEEP_CONSUMER, SWEEP_GROUP)
        except RebaserError as error:
            log.debug("unpin_failed", reason=error.message)

    def _on_pinned(self, _: str) -> None:
        self.pinned = True
        log.info("sweeper_pinned")

    def _on_unpinned(self) -> None:
        self.pinned = False
        log.info("sweeper_unpinned")

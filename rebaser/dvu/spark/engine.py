"""The one engine of a process: computes packets on Spark for all change sets.

Invariant: every `evaluate` ends, with results, a `DvuError` or a cancellation.

Small calls that are ready together share a job; a large one has a job and a lane of its own, see `lanes`. An embedded
Spark has room for all that run at once. A job of several callers that fails or takes too long is split, so that a bad
packet fails its own caller only, and a slow one holds up the others but once. One under which a worker dies is repeated
with plug-ins in processes of their own: what ends one fails its value only.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from rebaser.dvu.spark.blocking import DeadlineExceeded, run_interruptible
from rebaser.dvu.spark.scheduler import EvaluateCall, Job, JobScheduler
from rebaser.dvu.spark.session import SessionError, WorkerDied
from rebaser.dvu.spark.session_manager import ActiveSession, EngineSettings, SessionManager
from rebaser.dvu.wire.packet import Encoded
from rebaser.dvu.wire.structure import Structure
from rebaser.dvu.worker.structure_cache import StructureCache
from rebaser.embedded import MAX_CONCURRENT_JOBS
from rebaser_core.errors import DvuError, RebaserError

__all__ = ["Engine", "EngineSettings"]
_log = structlog.get_logger(__name__)

_GRACE = 5.0  # seconds an interrupted job has before its connection is cut
_INTERRUPT_AGAIN = 0.5
_ASK_EVERY = 1.0
_SHARED, _SHARED_EACH = 5.0, 0.05  # seconds that a shared job may take, and more for each caller, until it is halved


class Engine:
    """`async with Engine(remote) as engine`. `remote` is `local[*]` or the like, for an embedded Spark, or
    `sc://host:port`.

    Entering raises `ConfigError` (no usable Java, a URL that is none) and does not wait for Spark, which starts in the
    background; leaving stops it.
    """

    def __init__(self, remote: str = "local[*]", settings: EngineSettings | None = None) -> None:
        self._settings = settings or EngineSettings()
        self._keeper = SessionManager(remote, self._settings, self._spark_down)
        self._lanes = JobScheduler()
        self._changed = anyio.Event()  # something arrived, or a job ended
        self._closing = False
        self._running: dict[str, tuple[ActiveSession, Job]] = {}  # by tag
        self._tasks: TaskGroup

    @property
    def ready(self) -> anyio.Event:
        """Set once the first job has gone through."""
        return self._keeper.ready

    @property
    def state(self) -> str:
        """How Spark is, for people: starting, ready, restarting, stopped, or down with the reason."""
        return self._keeper.state

    async def __aenter__(self) -> Self:
        await self._keeper.check()
        self._limiter = anyio.CapacityLimiter(2 * MAX_CONCURRENT_JOBS)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._keeper.run)
        self._tasks.start_soon(self._keeper.compile)
        self._tasks.start_soon(self._dispatch)
        self._tasks.start_soon(self._ask)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._closing = True
        for call in self._lanes.drain():
            call.fail(_stopping())
        self._tasks.cancel_scope.cancel()
        try:
            return await self._tasks.__aexit__(kind, error, trace)
        finally:
            with anyio.CancelScope(shield=True):
                await self._keeper.close()

    async def evaluate(
        self,
        packets: Sequence[bytes],
        *,
        label: str,
        timeout: float | None = None,  # noqa: ASYNC109 - a late job is ours to interrupt, and its callers' to split
        arrived: Callable[[int, int], None] | None = None,
    ) -> list[list[Encoded]]:
        """The results of each packet, in the order of the packets; `arrived` is told how many have theirs, and how many
        values of others are computed.

        `timeout` (seconds; default: a setting) bounds a job, not the wait for Spark to start; cancel to stop waiting.
        Raises `DvuError`: Spark is not to be had, the job failed or took too long, or the workers run other code.
        """
        results: list[list[Encoded]] = []
        for part in _parts(packets, self._settings.job_bytes):
            if self._closing:
                raise _stopping()
            call = EvaluateCall(part, label, timeout or self._settings.job_timeout, anyio.current_time())
            call.told = partial(arrived, len(results)) if arrived is not None else None
            self._lanes.add(call)
            self._changed.set()
            try:
                await call.done.wait()
            finally:
                if not call.done.is_set():
                    self._abandon(call)
            if call.error is not None:
                raise call.error
            results += call.results
            if arrived is not None:
                arrived(len(results), 0)
        return results

    async def available(self) -> None:
        """Wait while Spark starts. Raises `DvuError` if it is not to be had now."""
        if self.state == "starting":
            await self.ready.wait()
        if self.state != "ready":
            raise DvuError(f"Spark is not available: {self.state}", code="spark_down")

    async def share(self, structure: Structure) -> str | None:
        """Put a structure where workers find it, a blob store's URL or "" for a folder of theirs; None if there is no
        such place, or it is full or away."""
        folder, blobs = self._keeper.structures, self._settings.blobs
        if folder is not None:
            kept = StructureCache(folder)
            await to_thread.run_sync(kept.write, structure.address, structure.data)
            return ""
        if blobs is None or not self._settings.blobs_url:
            return None
        try:
            await blobs.put(bytes(structure.data))
        except RebaserError as error:
            _log.warning("dvu_structure_not_stored", reason=error.message)
            return None
        return self._settings.blobs_url

    def _abandon(self, call: EvaluateCall) -> None:
        call.abandoned = True
        if not self._lanes.remove(call) and call.job is not None and all(one.abandoned for one in call.job.calls):
            call.job.stop.set()

    def _spark_down(self, reason: str) -> None:
        for call in self._lanes.drain():
            call.fail(DvuError(f"Spark is not available: {reason}", code="spark_down"))

    async def _dispatch(self) -> None:
        """Begin jobs as soon as they may."""
        while True:
            held = await self._keeper.held()
            self._changed = anyio.Event()
            self._lanes.places = held.session.places
            while (job := self._lanes.next(anyio.current_time())) is not None:
                held.running += 1
                self._tasks.start_soon(self._carry, held, job)
            now = anyio.current_time()
            wake_at = self._lanes.wake_at(now)
            with anyio.move_on_after(None if wake_at == math.inf else max(wake_at - now, 0)):
                await self._changed.wait()

    async def _carry(self, held: ActiveSession, job: Job) -> None:
        """A job from its beginning to its end, however it ends."""
        self._running[job.tag] = held, job
        try:
            await self._run(held, job)
        finally:
            del self._running[job.tag]
            held.running -= 1
            held.idle.set()
            self._lanes.ended(job, anyio.current_time())
            self._changed.set()
            for call in job.calls:
                if call.job is job:
                    call.job = None  # else results, maybe files that are gone, stay until garbage is collected
                    if not call.done.is_set():
                        call.fail(_stopping())

    async def _ask(self) -> None:
        """Ask how far those jobs are that take long; of what callers share nobody can tell."""
        while True:
            await anyio.sleep(_ASK_EVERY)
            oldest = anyio.current_time() - _ASK_EVERY
            for held, job in list(self._running.values()):
                call = job.calls[0]
                if len(job.calls) == 1 and call.told is not None and job.began <= oldest:
                    values = await to_thread.run_sync(held.session.done, job.tag, abandon_on_cancel=True)
                    if not call.done.is_set():
                        call.told(values)

    async def _run(self, held: ActiveSession, job: Job) -> None:
        """Run a job, and tell its callers how it went or queue them again."""
        packets = [packet for call in job.calls for packet in call.packets]
        seconds = min(call.timeout for call in job.calls)
        if len(job.calls) > 1:
            seconds = min(seconds, _SHARED + _SHARED_EACH * len(job.calls))
        session, tasks = held.session, self._task_count(job)
        _log.debug("dvu_job", tag=job.tag, labels=_labels(job), callers=len(job.calls), packets=len(packets))
        try:
            results = await run_interruptible(
                lambda: session.run(packets, tag=job.tag, tasks=tasks, isolate=job.calls[0].isolate),
                lambda over: self._interrupt(held, job, over),
                seconds=seconds,
                stop=job.stop,
                limiter=self._limiter,
            )
        except DeadlineExceeded:
            self._failed(held, job, DvuError(f"the job took longer than {seconds:g} s", code="late"))
        except DvuError as error:
            self._failed(held, job, error)
        except Exception as error:  # noqa: BLE001 - a defect here or in PySpark must not end the engine
            _log.exception("dvu_job_broken", labels=_labels(job))
            self._failed(held, job, SessionError(f"the Spark job broke: {type(error).__name__}: {error}"[:300]))
        else:
            for call in job.calls:
                call.results, results = results[: len(call.packets)], results[len(call.packets) :]
                call.done.set()
        if session.sent > self._settings.renew_after_bytes:
            held.over.set()

    def _task_count(self, job: Job) -> int:
        """As many as the planner cut packets for. What several callers share is too little: a second task costs 30 to
        45 ms."""
        return min(self._settings.parallelism, self._lanes.large_tasks, len(job.calls[0].packets)) if job.large else 1

    def _failed(self, held: ActiveSession, job: Job, error: DvuError) -> None:
        if job.stop.is_set():
            return  # nobody waits, and it was interrupted for that
        _log.warning("dvu_job_failed", labels=_labels(job), callers=len(job.calls), reason=error.message)
        lost = isinstance(error, SessionError)
        if lost:
            held.lose()
        calls = [call for call in job.calls if not call.abandoned]
        if isinstance(error, WorkerDied) and not job.calls[0].isolate:
            for call in calls:  # once more, and what kills its process then is named
                call.isolate = True
            self._lanes.split(calls, 1)
            return
        single = len(job.calls) == 1
        if self._closing or (single and (job.calls[0].retried or not lost)):
            for call in calls:
                call.fail(error)
            return
        if single:
            job.calls[0].retried = True
        # Halves find a bad packet in a few jobs; but not each may cost a session, or all the time there is.
        late = any(anyio.current_time() - job.began >= call.timeout for call in calls)
        self._lanes.split(calls, len(calls) if lost or late else 2)

    async def _interrupt(self, held: ActiveSession, job: Job, over: anyio.Event) -> None:
        """End a job: ask the server, again and again since it may not have begun, and if that does not help cut the
        connection."""
        with anyio.move_on_after(_GRACE):
            while not over.is_set():
                try:
                    await to_thread.run_sync(
                        held.session.interrupt, job.tag, abandon_on_cancel=True, limiter=self._limiter
                    )
                except SessionError as error:
                    _log.warning("dvu_interrupt_failed", reason=error.message)
                    break
                with anyio.move_on_after(_INTERRUPT_AGAIN):
                    await over.wait()
        if not over.is_set():
            held.lose()
            held.session.cut()


def _stopping() -> DvuError:
    return DvuError("the server is stopping", code="stopped")


def _parts(packets: Sequence[bytes], most: int) -> list[list[bytes]]:
    """`packets` in order, cut so that each part is one job's worth."""
    parts: list[list[bytes]] = []
    room = -1
    for packet in packets:
        room -= len(packet)
        if room < 0:
            parts.append([])
            room = most - len(packet)
        parts[-1].append(packet)
    return parts


def _labels(job: Job) -> list[str]:
    return [call.label for call in job.calls[:5]]

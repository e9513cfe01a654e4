"""Computes packets on Spark for all change sets of a process.

Invariant: every call to `evaluate` ends with results, a `DvuError` or a cancellation.

Small calls that are ready at the same time share a job; a large call has a job of its own (see `scheduler`). An
embedded Spark has task slots for all jobs that run at once. If a job that several calls share fails or takes too long,
the job is split and repeated. A bad packet thus makes only its own call fail, and a slow packet delays the other calls
only once. If a worker dies, its job is repeated with plug-ins in child processes. If a plug-in then ends its child
process, only the value that called the plug-in fails.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from rebaser.dvu.spark.blocking import DeadlineExceeded, run_interruptible, run_shielded
from rebaser.dvu.spark.scheduler import EvaluateCall, Job, JobScheduler
from rebaser.dvu.spark.session import SessionError, WorkerDied
from rebaser.dvu.spark.session_manager import ActiveSession, EngineSettings, SessionManager
from rebaser.dvu.wire.packet import Encoded
from rebaser.dvu.wire.structure import Structure
from rebaser.dvu.worker.structure_cache import StructureCache
from rebaser.embedded import MAX_CONCURRENT_JOBS
from rebaser.telemetry.feeds import spark_job_ended
from rebaser.telemetry.tracing import UPDATE
from rebaser_core.errors import DvuError, RebaserError

__all__ = ["Engine", "EngineSettings"]
_log = structlog.get_logger(__name__)

_GRACE = 5.0  # seconds within which an interrupted job has to end before its connection is closed
_INTERRUPT_AGAIN = 0.5  # seconds between attempts to interrupt a job
_POLL_EVERY = 1.0  # seconds between checks of the progress of long jobs
_SHARED, _SHARED_EACH = 5.0, 0.05  # a shared job is split after `_SHARED` seconds plus `_SHARED_EACH` for each caller


class Engine:
    """Computes packets on one Spark for all change sets of a process. Use it as `async with Engine(remote) as engine`.

    `remote` is a master such as `local[*]` for an embedded Spark, or `sc://host:port` for a remote Spark. Entering the
    context raises `ConfigError` if there is no usable Java, or if the URL is invalid. Spark starts in the background,
    so entering the context does not wait for it. Leaving the context ends the session, and stops an embedded Spark.
    """

    def __init__(self, remote: str = "local[*]", settings: EngineSettings | None = None) -> None:
        self._settings = settings or EngineSettings()
        self._address = urlsplit(remote).hostname or "" if remote.startswith("sc://") else ""
        self._sessions = SessionManager(remote, self._settings, self._spark_down)
        self._scheduler = JobScheduler()
        self._changed = anyio.Event()  # set when a call is queued, and when a job ends
        self._closing = False
        self._running: dict[str, tuple[ActiveSession, Job]] = {}  # the running jobs and their sessions, by tag
        self._tasks: TaskGroup
        self.functions: dict[str, str] = {}  # what long jobs have run for seconds, by the labels of their calls
        self.tags: dict[str, str] = {}  # of the long jobs in the web pages of Spark, by the labels of their calls

    @property
    def ready(self) -> anyio.Event:
        """An event that is set once the first job has succeeded."""
        return self._sessions.ready

    @property
    def state(self) -> str:
        """The state of Spark as shown to users: starting, ready, restarting, stopped, or down with the reason."""
        return self._sessions.state

    @property
    def url(self) -> str:
        """The URL of the Spark Connect server; empty while an embedded Spark starts."""
        return self._sessions.url

    @property
    def load(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Two pairs, (small, large): the numbers of calls that wait for a job, and the numbers of running jobs."""
        return self._scheduler.waiting, self._scheduler.running

    async def __aenter__(self) -> Self:
        await self._sessions.check()
        self._limiter = anyio.CapacityLimiter(2 * MAX_CONCURRENT_JOBS)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._sessions.run)
        self._tasks.start_soon(self._sessions.compile)
        self._tasks.start_soon(self._dispatch)
        self._tasks.start_soon(self._poll_progress)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._closing = True
        for call in self._scheduler.drain():
            call.fail(_stopping())
        self._tasks.cancel_scope.cancel()
        try:
            return await self._tasks.__aexit__(kind, error, trace)
        finally:
            with anyio.CancelScope(shield=True):
                await self._sessions.close()

    async def evaluate(
        self,
        packets: Sequence[bytes],
        *,
        label: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the engine interrupts a late job, and may repeat its calls
        arrived: Callable[[int, int], None] | None = None,
    ) -> list[list[Encoded]]:
        """Return the results of each packet, in the order of the packets.

        `arrived` is called with the number of packets that have results, and the number of nodes that workers have
        visited in the other packets, whether they computed the nodes or not. `timeout` (seconds; default:
        `EngineSettings.job_timeout`) bounds a job, but not the wait for the start of Spark; to stop waiting, cancel the
        call. Raise `DvuError` if Spark is not available, if the job failed or took too long, or if the workers do not
        run the same code as this server.
        """
        results: list[list[Encoded]] = []
        for part in _split_by_bytes(packets, self._settings.job_bytes):
            if self._closing:
                raise _stopping()
            call = EvaluateCall(part, label, timeout or self._settings.job_timeout, anyio.current_time())
            call.spans = UPDATE.get()
            call.report_progress = partial(arrived, len(results)) if arrived is not None else None
            self._scheduler.add(call)
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
        """Wait while Spark starts for the first time. Raise `DvuError` if Spark is not available after that."""
        if self.state == "starting":
            await self.ready.wait()
        if self.state != "ready":
            raise DvuError(f"Spark is not available: {self.state}", code="spark_down")

    async def share(self, structure: Structure) -> str | None:
        """Store `structure` in a place from which workers can read it.

        Return "" if that place is the folder that the workers of an embedded Spark use. Return the URL of the blob
        store if the structure is stored there. Return None if there is neither a folder nor a blob store, or if the
        blob store refuses the structure.
        """
        folder, blobs = self._sessions.structures, self._settings.blobs
        if folder is not None:
            cache = StructureCache(folder)
            await to_thread.run_sync(cache.write, structure.address, structure.data)
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
        if (
            not self._scheduler.remove(call)
            and call.job is not None
            and all(other.abandoned for other in call.job.calls)
        ):
            call.job.stop.set()

    def _spark_down(self, reason: str) -> None:
        for call in self._scheduler.drain():
            call.fail(DvuError(f"Spark is not available: {reason}", code="spark_down"))

    async def _dispatch(self) -> None:
        """Start each job as soon as the scheduler allows it, until cancelled."""
        while True:
            active = await self._sessions.session()
            self._changed = anyio.Event()
            self._scheduler.task_slots = active.session.task_slots
            while (job := self._scheduler.next_job(anyio.current_time())) is not None:
                active.running_jobs += 1
                self._tasks.start_soon(self._run_to_end, active, job)
            now = anyio.current_time()
            wake_at = self._scheduler.wake_at(now)
            with anyio.move_on_after(None if wake_at == math.inf else max(wake_at - now, 0)):
                await self._changed.wait()

    async def _run_to_end(self, active: ActiveSession, job: Job) -> None:
        """Run a job, and clean up after it even if that fails."""
        self._running[job.tag] = active, job
        try:
            await self._run(active, job)
        finally:
            del self._running[job.tag]
            active.running_jobs -= 1
            active.job_ended.set()
            now = anyio.current_time()
            self._scheduler.job_ended(job, now)
            spark_job_ended(
                job.result,
                job.tag,
                large=job.large,
                waited=job.started_at - min(call.queued_at for call in job.calls),
                seconds=now - job.started_at,
                sent=[call.size for call in job.calls],
                received=sum(len(part) for call in job.calls for parts in call.results for part in parts),
                updates=[call.spans for call in job.calls if call.spans is not None],
                address=self._address,
            )
            self._changed.set()
            for call in job.calls:
                if call.job is job:
                    call.job = None  # breaks a reference cycle, so that the results are freed at once
                    if not call.done.is_set():
                        call.fail(_stopping())

    async def _poll_progress(self) -> None:
        """Report the progress of long jobs to their callers, until cancelled."""
        while True:
            await anyio.sleep(_POLL_EVERY)
            started_before = anyio.current_time() - _POLL_EVERY
            long = [(active.session, job) for active, job in self._running.values() if job.started_at <= started_before]
            self.tags = {call.label: job.tag for _, job in long for call in job.calls}
            functions: dict[str, str] = {}
            for session, job in long:
                visited = await to_thread.run_sync(session.visited_nodes, job.tag, abandon_on_cancel=True)
                job.report_progress(visited)
                function = await to_thread.run_sync(session.running_function, job.tag, abandon_on_cancel=True)
                functions |= {call.label: function for call in job.calls}
            self.functions = functions

    async def _run(self, active: ActiveSession, job: Job) -> None:
        """Run a job. Then give each of its calls the results or an error, or queue the call again."""
        packets = [packet for call in job.calls for packet in call.packets]
        seconds = min(call.timeout for call in job.calls)
        if len(job.calls) > 1:
            seconds = min(seconds, _SHARED + _SHARED_EACH * len(job.calls))
        session, tasks = active.session, self._task_count(job)
        _log.debug("dvu_job", tag=job.tag, labels=_labels(job), callers=len(job.calls), packets=len(packets))
        try:
            results = await run_interruptible(
                lambda: session.run(packets, tag=job.tag, tasks=tasks, isolate=job.calls[0].isolate),
                lambda returned: self._interrupt(active, job, returned),
                seconds=seconds,
                stop=job.stop,
                limiter=self._limiter,
            )
        except DeadlineExceeded:
            self._handle_failure(active, job, DvuError(f"the Spark job took longer than {seconds:g} s", code="late"))
        except DvuError as error:
            self._handle_failure(active, job, error)
        except Exception as error:  # noqa: BLE001 - a defect here or in PySpark must not end the engine
            _log.exception("dvu_job_broken", labels=_labels(job))
            message = f"the Spark job failed unexpectedly: {type(error).__name__}: {error}"
            self._handle_failure(active, job, SessionError(message[:300]))
        else:
            job.result = "done"
            for call in job.calls:
                call.results, results = results[: len(call.packets)], results[len(call.packets) :]
                call.done.set()
        if session.sent_bytes > self._settings.renew_after_bytes:
            active.retired.set()

    def _task_count(self, job: Job) -> int:
        """Return the number of Spark tasks for `job`. A large job has a task for each packet, up to the limits of the
        settings and the scheduler. A small job has one task: another task takes 30 to 45 ms, which is more than it
        saves."""
        if not job.large:
            return 1
        return min(self._settings.parallelism, self._scheduler.large_job_tasks, len(job.calls[0].packets))

    def _handle_failure(self, active: ActiveSession, job: Job, error: DvuError) -> None:
        """Make the calls of `job` fail with `error`, or queue them again if another job may succeed."""
        if job.stop.is_set():
            return  # the job was interrupted because no caller waits for it any more
        _log.warning("dvu_job_failed", labels=_labels(job), callers=len(job.calls), reason=error.message)
        session_lost = isinstance(error, SessionError)
        job.result = _result(error)
        if session_lost:
            active.mark_lost()
        calls = [call for call in job.calls if not call.abandoned]
        if isinstance(error, WorkerDied) and not job.calls[0].isolate:
            for call in calls:  # in the repeated job, only the child process of the plug-in at fault ends
                call.isolate = True
            self._scheduler.split(calls, 1)
            return
        single = len(job.calls) == 1
        if self._closing or (single and (job.calls[0].retried or not session_lost)):
            for call in calls:
                call.fail(error)
            return
        if single:
            job.calls[0].retried = True
        # Halving finds a bad packet in a few jobs. But if each failed job ends a session or takes the whole timeout,
        # each call is run in a job of its own.
        late = any(anyio.current_time() - job.started_at >= call.timeout for call in calls)
        self._scheduler.split(calls, len(calls) if session_lost or late else 2)

    async def _interrupt(self, active: ActiveSession, job: Job, returned: anyio.Event) -> None:
        """Make a job end. Request its interruption repeatedly, because a request has no effect before the job has
        begun. If the job does not end, disconnect."""
        with anyio.move_on_after(_GRACE):
            while not returned.is_set():
                try:
                    await to_thread.run_sync(
                        active.session.interrupt, job.tag, abandon_on_cancel=True, limiter=self._limiter
                    )
                except SessionError as error:
                    _log.warning("dvu_interrupt_failed", reason=error.message)
                    break
                with anyio.move_on_after(_INTERRUPT_AGAIN):
                    await returned.wait()
        if not returned.is_set():
            active.mark_lost()
            await run_shielded(active.session.disconnect)


def _result(error: DvuError) -> str:
    if isinstance(error, SessionError):
        return "session_lost"
    if isinstance(error, WorkerDied):
        return "worker_died"
    return "late" if error.code == "late" else "failed"


def _stopping() -> DvuError:
    return DvuError("the server is stopping; another server will run the update", code="stopped")


def _split_by_bytes(packets: Sequence[bytes], max_bytes: int) -> list[list[bytes]]:
    """Divide `packets`, in order, into parts of at most `max_bytes` bytes. A larger packet is a part by itself."""
    parts: list[list[bytes]] = []
    room = -1
    for packet in packets:
        room -= len(packet)
        if room < 0:
            parts.append([])
            room = max_bytes - len(packet)
        parts[-1].append(packet)
    return parts


def _labels(job: Job) -> list[str]:
    return [call.label for call in job.calls[:5]]

"""The one engine of a process: computes packets on Spark for all change sets.

Invariant: every `evaluate` ends, with results, a `DvuError` or a cancellation.

Packets that are ready together share a job; at most two jobs run, the rest collects meanwhile. A job that fails or is
late with several callers is split and each caller runs alone, so that a bad packet fails its own caller only.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from rebaser.dvu.guard import Late, guard
from rebaser.dvu.keeper import EngineSettings, Held, Keeper
from rebaser.dvu.session import SessionError
from rebaser.dvu.structure import Structure
from rebaser.dvu.structures import Structures
from rebaser_core.errors import DvuError, RebaserError

__all__ = ["Engine", "EngineSettings"]
_log = structlog.get_logger(__name__)

_JOBS = 2
_GRACE = 5.0  # seconds an interrupted job has before its connection is cut
_INTERRUPT_AGAIN = 0.5
_TASK_BYTES = 2 * 1024 * 1024  # packets of several callers are worth a task of their own from here on


@dataclass(slots=True, eq=False)
class _Call:
    """One caller's packets on their way."""

    packets: Sequence[bytes]
    label: str
    timeout: float
    done: anyio.Event = field(default_factory=anyio.Event)
    results: list[list[bytes]] = field(default_factory=list)
    error: DvuError | None = None
    job: "_Job | None" = None
    alone: bool = False  # a job it shared went wrong
    retried: bool = False  # a session was lost under it
    abandoned: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.packets))

    def fail(self, error: DvuError) -> None:
        self.error = error
        self.done.set()


@dataclass(slots=True, eq=False)
class _Job:
    """Calls that share a job; `stop` is set when none of them waits any more."""

    calls: list[_Call]
    tag: str
    stop: anyio.Event = field(default_factory=anyio.Event)


class Engine:
    """`async with Engine(remote) as engine`. `remote` is `local[*]` or the like, for an embedded Spark, or
    `sc://host:port`.

    Entering raises `ConfigError` (no usable Java, a URL that is none) and does not wait for Spark, which starts in the
    background; leaving stops it.
    """

    def __init__(self, remote: str = "local[*]", settings: EngineSettings | None = None) -> None:
        self._settings = settings or EngineSettings()
        self._keeper = Keeper(remote, self._settings, self._spark_down)
        self._queue: deque[_Call] = deque()
        self._arrived = anyio.Event()
        self._jobs = 0
        self._closing = False
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
        self._limiter = anyio.CapacityLimiter(4 * _JOBS)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._keeper.run)
        self._tasks.start_soon(self._keeper.compile)
        for _ in range(_JOBS):
            self._tasks.start_soon(self._work)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._closing = True
        while self._queue:
            self._queue.popleft().fail(_stopping())
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
        arrived: Callable[[int], None] | None = None,
    ) -> list[list[bytes]]:
        """The results of each packet, in the order of the packets; `arrived` is told how many have theirs.

        `timeout` (seconds; default: a setting) bounds a job, not the wait for Spark to start; cancel to stop waiting.
        Raises `DvuError`: Spark is not to be had, the job failed or took too long, or the workers run other code.
        """
        results: list[list[bytes]] = []
        for part in _parts(packets, self._settings.job_bytes):
            if self._closing:
                raise _stopping()
            call = _Call(part, label, timeout or self._settings.job_timeout)
            self._queue.append(call)
            self._arrived.set()
            try:
                await call.done.wait()
            finally:
                if not call.done.is_set():
                    self._abandon(call)
            if call.error is not None:
                raise call.error
            results += call.results
            if arrived is not None:
                arrived(len(results))
        return results

    async def share(self, structure: Structure) -> str | None:
        """Put a structure where workers find it, a blob store's URL or "" for a folder of theirs; None if there is no
        such place, or it is full or away."""
        folder, blobs = self._keeper.structures, self._settings.blobs
        if folder is not None:
            kept = Structures(folder)
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

    def _abandon(self, call: _Call) -> None:
        call.abandoned = True
        if call in self._queue:
            self._queue.remove(call)
        elif call.job is not None and all(one.abandoned for one in call.job.calls):
            call.job.stop.set()

    def _spark_down(self, reason: str) -> None:
        while self._queue:
            self._queue.popleft().fail(DvuError(f"Spark is not available: {reason}", code="spark_down"))

    async def _work(self) -> None:
        """One of the lanes that jobs run in."""
        while True:
            while not self._queue:
                if self._arrived.is_set():
                    self._arrived = anyio.Event()
                await self._arrived.wait()
            held = await self._keeper.held()
            job = self._next_job()
            if job is None:
                continue  # the other lane was faster
            held.running += 1
            try:
                await self._run(held, job)
            finally:
                held.running -= 1
                held.idle.set()
                for call in job.calls:
                    if call.job is job and not call.done.is_set():
                        call.fail(_stopping())

    def _next_job(self) -> _Job | None:
        """What shares the next job: from the front of the queue, as much as fits."""
        calls: list[_Call] = []
        room = self._settings.job_bytes
        while self._queue:
            call = self._queue[0]
            room -= call.size
            if calls and (room < 0 or call.alone):
                break
            calls.append(self._queue.popleft())
            if call.alone:
                break
        if not calls:
            return None
        self._jobs += 1
        job = _Job(calls, f"rebaser-{self._jobs}")
        for call in calls:
            call.job = job
        return job

    async def _run(self, held: Held, job: _Job) -> None:
        """Run a job, and tell its callers how it went or queue them again."""
        packets = [packet for call in job.calls for packet in call.packets]
        seconds = min(call.timeout for call in job.calls)
        session, tasks = held.session, self._task_count(job)
        _log.debug("dvu_job", tag=job.tag, labels=_labels(job), callers=len(job.calls), packets=len(packets))
        try:
            results = await guard(
                lambda: session.run(packets, tag=job.tag, tasks=tasks),
                lambda over: self._interrupt(held, job, over),
                seconds=seconds,
                stop=job.stop,
                limiter=self._limiter,
            )
        except Late:
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

    def _task_count(self, job: _Job) -> int:
        """As many as the planner cut packets for, or as there are megabytes: a second task costs 30 to 45 ms."""
        wanted = max(1, *(len(call.packets) for call in job.calls), sum(call.size for call in job.calls) // _TASK_BYTES)
        return min(self._settings.parallelism, wanted)

    def _failed(self, held: Held, job: _Job, error: DvuError) -> None:
        if job.stop.is_set():
            return  # nobody waits, and it was interrupted for that
        _log.warning("dvu_job_failed", labels=_labels(job), callers=len(job.calls), reason=error.message)
        lost = isinstance(error, SessionError)
        if lost:
            held.lose()
        for call in reversed(job.calls):
            if call.abandoned:
                continue
            single = len(job.calls) == 1
            if self._closing or (single and (call.retried or not lost)):
                call.fail(error)
                continue
            call.retried = single
            call.alone = True
            call.job = None
            self._queue.appendleft(call)
            self._arrived.set()

    async def _interrupt(self, held: Held, job: _Job, over: anyio.Event) -> None:
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


def _labels(job: _Job) -> list[str]:
    return [call.label for call in job.calls[:5]]

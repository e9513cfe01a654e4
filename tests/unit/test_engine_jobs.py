"""Tests how the engine handles calls and failed jobs, without Spark."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import anyio
import anyio.from_thread
import pytest
import structlog

from rebaser.dvu.spark import engine as engine_module
from rebaser.dvu.spark.engine import Engine, EngineSettings, _split_by_bytes
from rebaser.dvu.spark.scheduler import MAX_LARGE_JOBS, EvaluateCall, Job
from rebaser.dvu.spark.session import SessionError, WorkerDied
from rebaser.dvu.spark.session_manager import ActiveSession
from rebaser_core.errors import DvuError
from tests.support.figures import figures, moved


def test_a_call_is_cut_into_jobs_of_at_most_so_many_bytes() -> None:
    parts = _split_by_bytes([bytes(size) for size in (3, 3, 3, 9, 1, 4, 4, 1)], 8)
    assert [[len(packet) for packet in part] for part in parts] == [[3, 3], [3], [9], [1, 4], [4, 1]]


@pytest.mark.anyio
async def test_a_call_under_which_sessions_are_lost_is_tried_once_more_and_then_told() -> None:
    """Otherwise, one packet that ends every session would fail all other calls again and again."""
    engine, session = Engine("sc://localhost"), Any
    call = EvaluateCall([b"packet"], "ws/cs", 60.0, 0.0)
    engine._scheduler.add(call)
    for told in (False, True):
        job = engine._scheduler.next_job(0.0)
        assert job is not None
        held = ActiveSession(session)  # type: ignore[arg-type] # never used
        engine._handle_failure(held, job, SessionError("lost"))
        engine._scheduler.job_ended(job, 0.0)
        assert (held.lost, call.done.is_set()) == (True, told)
    assert isinstance(call.error, SessionError)
    assert engine._scheduler.next_job(0.0) is None


@pytest.mark.anyio
async def test_a_job_is_ended_when_none_of_its_callers_waits_and_not_before() -> None:
    """The other callers still need its results."""
    engine = Engine("sc://localhost")
    scopes = [anyio.CancelScope() for _ in range(4)]

    async def evaluate(number: int) -> None:
        with scopes[number]:
            await engine.evaluate([b"packet"], label=f"ws/cs{number}")

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(evaluate, number)
        await anyio.wait_all_tasks_blocked()
        job = engine._scheduler.next_job(anyio.current_time())
        assert job is not None
        assert len(job.calls) == 3
        group.start_soon(evaluate, 3)  # the call is queued until then
        for scope in scopes:
            await anyio.wait_all_tasks_blocked()
            assert job.stop.is_set() == (scope is scopes[3])
            scope.cancel()
    assert engine._scheduler.next_job(anyio.current_time()) is None


@pytest.mark.anyio
async def test_progress_counts_the_parts_that_are_done() -> None:
    engine = Engine("sc://localhost", EngineSettings(job_bytes=8))
    seen: list[tuple[int, int]] = []

    async def evaluate() -> None:
        packets = [b"first", b"second"]
        assert await engine.evaluate(packets, label="ws/cs", arrived=lambda *done: seen.append(done)) == [
            [b"5"],
            [b"6"],
        ]

    async with anyio.create_task_group() as group:
        group.start_soon(evaluate)
        for _ in range(2):
            await anyio.wait_all_tasks_blocked()
            job = engine._scheduler.next_job(anyio.current_time())
            assert job is not None
            [call] = job.calls
            assert call.report_progress is not None
            call.report_progress(3)
            call.results = [[b"%d" % call.size]]
            call.done.set()
    assert seen == [(0, 3), (1, 0), (1, 3), (2, 0)]


def shared_job(engine: Engine, calls: list[EvaluateCall]) -> Job:
    for call in calls:
        engine._scheduler.add(call)
    return next_job(engine, calls)


def next_job(engine: Engine, calls: list[EvaluateCall]) -> Job:
    """Return the next job, and check that it consists of `calls`."""
    job = engine._scheduler.next_job(anyio.current_time())
    assert job is not None
    assert job.calls == calls
    return job


def calls_of(count: int, timeout: float = 60.0) -> list[EvaluateCall]:
    return [EvaluateCall([b"packet"], f"ws/cs{number}", timeout, 0.0) for number in range(count)]


def fail(engine: Engine, job: Job, error: DvuError) -> ActiveSession:
    held = ActiveSession(cast("Any", None))  # never used
    engine._handle_failure(held, job, error)
    engine._scheduler.job_ended(job, anyio.current_time())
    return held


def test_callers_that_share_a_job_hear_of_the_progress_of_their_own_packets() -> None:
    told: list[tuple[int, int]] = []
    calls = [EvaluateCall([b"packet"] * (number + 1), "ws/cs", 60.0, 0.0) for number in range(4)]
    for number in (0, 2, 3):
        calls[number].report_progress = lambda visited, number=number: told.append((number, visited))
    job = Job(calls, "tag", large=False, started_at=0.0)
    calls[3].done.set()
    job.report_progress({0: 1, 1: 2, 2: 4, 3: 8, 5: 16, 6: 32})
    assert told == [(0, 1), (2, 24)]


@pytest.mark.anyio
async def test_a_job_whose_worker_died_is_repeated_as_it_was_in_child_processes_and_then_halved() -> None:
    """A plug-in that ends its process then fails only its own value. If the cause is not a plug-in, one packet is at
    fault."""
    engine, calls = Engine("sc://localhost"), calls_of(4)
    job = shared_job(engine, calls)
    assert not any(call.isolate for call in calls)
    fail(engine, job, WorkerDied("died"))
    job = next_job(engine, calls)
    assert all(call.isolate for call in calls)
    fail(engine, job, WorkerDied("died again"))
    first = next_job(engine, calls[:2])
    fail(engine, first, WorkerDied("and again"))
    alone = next_job(engine, calls[:1])
    fail(engine, alone, WorkerDied("for good"))
    assert [call.done.is_set() for call in calls] == [True, False, False, False]
    assert isinstance(calls[0].error, WorkerDied)
    next_job(engine, calls[1:2])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("seconds", "error", "first"),
    [(60.0, DvuError("bad"), 2), (60.0, SessionError("lost"), 1), (0.0, DvuError("late"), 1)],
    ids=["cheap", "session", "late"],
)
async def test_a_shared_job_is_halved_and_cut_up_if_its_failure_is_dear(
    seconds: float, error: DvuError, first: int
) -> None:
    engine, calls = Engine("sc://localhost"), calls_of(4, seconds)
    held = fail(engine, shared_job(engine, calls), error)
    assert held.lost is isinstance(error, SessionError)
    next_job(engine, calls[:first])


@pytest.mark.anyio
async def test_who_waits_no_more_is_not_tried_again() -> None:
    engine, calls = Engine("sc://localhost"), calls_of(3)
    job = shared_job(engine, calls)
    engine._abandon(calls[1])
    fail(engine, job, WorkerDied("died"))
    next_job(engine, [calls[0], calls[2]])


@pytest.mark.anyio
@pytest.mark.parametrize(("callers", "bound"), [(1, 60.0), (4, 5.2)])
async def test_a_shared_job_has_less_time_than_its_callers(
    monkeypatch: pytest.MonkeyPatch, callers: int, bound: float
) -> None:
    """A slow caller would use up the time of all others."""
    bounds: list[float] = []

    async def run(call: Callable[[], object], _: object, *, seconds: float, **__: object) -> object:
        bounds.append(seconds)
        return call()

    monkeypatch.setattr(engine_module, "run_interruptible", run)
    engine = Engine("sc://localhost")
    calls = [EvaluateCall([b"%d" % number], f"ws/cs{number}", 60.0, 0.0) for number in range(callers)]
    engine._limiter = anyio.CapacityLimiter(1)
    await engine._run_to_end(ActiveSession(cast("Any", Session()), running_jobs=1), shared_job(engine, calls))
    assert bounds == [pytest.approx(bound)]
    assert [call.results for call in calls] == [[[packet]] for call in calls for packet in call.packets]


@pytest.mark.anyio
@pytest.mark.parametrize("sent", [10, 11])
async def test_a_session_that_holds_much_is_replaced(sent: int) -> None:
    """Spark keeps everything that it is sent until the session ends."""
    engine, session = Engine("sc://localhost", EngineSettings(renew_after_bytes=10)), Session()
    engine._limiter, session.sent_bytes = anyio.CapacityLimiter(1), sent
    held = ActiveSession(cast("Any", session), running_jobs=1)
    await engine._run_to_end(held, shared_job(engine, calls_of(1)))
    assert (held.retired.is_set(), held.lost) == (sent > 10, False)


@pytest.mark.anyio
@pytest.mark.parametrize("ends", [True, False])
async def test_a_job_that_does_not_end_when_asked_loses_its_session(
    monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Its thread ends with the connection, and a session without connection must not be used."""
    monkeypatch.setattr(engine_module, "_GRACE", 60.0 if ends else 0.05)
    monkeypatch.setattr(engine_module, "_INTERRUPT_AGAIN", 0.01)
    engine, session, returned = Engine("sc://localhost"), Session(), anyio.Event()
    engine._limiter = anyio.CapacityLimiter(1)
    job, held = shared_job(engine, calls_of(1)), ActiveSession(cast("Any", session))
    session.interrupted = returned.set if ends else lambda: None
    await engine._interrupt(held, job, returned)
    assert (held.lost, session.is_cut) == (not ends, not ends)


class Session:
    """A session that returns each packet as its own result."""

    task_slots = 16

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.is_cut = False
        self.interrupted: Callable[[], None] = lambda: None

    def interrupt(self, _: str) -> None:
        anyio.from_thread.run_sync(self.interrupted)

    def disconnect(self) -> None:
        self.is_cut = True

    def visited_nodes(self, _: str) -> dict[int, int]:  # asked for if a job takes more than a second
        return {}

    def running_function(self, _: str) -> str:
        return ""

    def run(self, packets: list[bytes], **_: object) -> list[list[bytes]]:
        return [[packet] for packet in packets]


@pytest.mark.anyio
async def test_a_job_that_is_over_is_known_to_nobody() -> None:
    """The job would keep the results of its callers in memory."""
    engine, session = Engine("sc://localhost"), Session()
    engine._limiter = anyio.CapacityLimiter(1)
    call = EvaluateCall([b"packet"], "ws/cs", 60.0, 0.0)
    engine._scheduler.add(call)
    job = engine._scheduler.next_job(0.0)
    assert job is not None
    held = ActiveSession(session, running_jobs=1)  # type: ignore[arg-type] # it runs jobs, and that is all
    assert engine.load == ((0, 0), (1, 0))
    before = figures()
    await engine._run_to_end(held, job)
    assert engine.load == ((0, 0), (0, 0))
    assert moved(before) == {
        ("spark_jobs_total", "small", "done"): 1, ("spark_job_seconds", "small"): 1, ("spark_wait_seconds",): 1,
        ("spark_job_callers",): 1, ("spark_bytes_total", "sent"): 6, ("spark_bytes_total", "received"): 6,
    }  # fmt: skip
    assert (call.results, call.job, held.running_jobs) == ([[b"packet"]], None, 0)
    assert not engine._running
    assert engine._scheduler.wake_at(0.0) == float("inf")


class Sessions:
    """Gives out one session, whose jobs end when the test decides."""

    state = "ready"

    def __init__(self, active: ActiveSession) -> None:
        self._active = active

    async def check(self) -> None: ...

    async def run(self) -> None: ...

    async def compile(self) -> None: ...

    async def close(self) -> None: ...

    async def session(self) -> ActiveSession:
        return self._active


class Running(Engine):
    """A session that runs jobs. `jobs` has each begun job, with the event that ends it."""

    def __init__(self) -> None:
        super().__init__("sc://localhost")
        self._sessions = cast("Any", Sessions(ActiveSession(cast("Any", Session()))))
        self.jobs: list[tuple[Job, anyio.Event]] = []

    async def _run(self, _: ActiveSession, job: Job) -> None:
        self.jobs.append((job, anyio.Event()))
        await self.jobs[-1][1].wait()
        for call in job.calls:
            call.results = [[packet] for packet in call.packets]
            call.done.set()


class Failing(Session):
    """A session whose jobs fail."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def run(self, packets: list[bytes], **_: object) -> list[list[bytes]]:
        raise self.error


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "result"),
    [
        (SessionError("lost"), "session_lost"),
        (WorkerDied("died"), "worker_died"),
        (DvuError("no"), "failed"),
        (DvuError("slow", code="late"), "late"),
        (ValueError("a defect"), "session_lost"),
    ],
)
async def test_how_a_job_ended_is_counted(error: Exception, result: str) -> None:
    engine = Engine("sc://localhost")
    engine._limiter = anyio.CapacityLimiter(1)
    call = EvaluateCall([b"one", b"two"], "ws/cs", 60.0, 0.0)
    engine._scheduler.add(call)
    assert engine.load == ((0, 1), (0, 0))
    job = engine._scheduler.next_job(0.0)
    assert job is not None
    before = figures()
    await engine._run_to_end(ActiveSession(cast("Any", Failing(error)), running_jobs=1), job)
    assert moved(before)["spark_jobs_total", "large", result] == 1


@pytest.mark.anyio
async def test_the_end_of_a_job_begins_the_next() -> None:
    async with Running() as engine, anyio.create_task_group() as group:
        for number in range(MAX_LARGE_JOBS + 1):
            group.start_soon(partial(engine.evaluate, [b"one", b"two"], label=f"ws/cs{number}"))
        await anyio.wait_all_tasks_blocked()
        assert len(engine.jobs) == MAX_LARGE_JOBS
        engine.jobs[0][1].set()
        await anyio.wait_all_tasks_blocked()
        assert len(engine.jobs) == MAX_LARGE_JOBS + 1
        for _, ends in engine.jobs:
            ends.set()


@pytest.mark.anyio
@pytest.mark.timeout(120)
async def test_who_waits_when_the_engine_stops_is_told() -> None:
    errors: list[str | None] = []

    async def evaluate(number: int) -> None:
        with pytest.raises(DvuError) as raised:
            await engine.evaluate([b"one", b"two"], label=f"ws/cs{number}")
        errors.append(raised.value.code)

    async with anyio.create_task_group() as group, Running() as engine:
        for number in range(MAX_LARGE_JOBS + 1):  # the last call gets no job
            group.start_soon(evaluate, number)
        await anyio.wait_all_tasks_blocked()
        assert len(engine.jobs) == MAX_LARGE_JOBS
    assert errors == ["stopped"] * (MAX_LARGE_JOBS + 1)


@pytest.mark.anyio
async def test_nothing_follows_when_a_job_fails_that_nobody_waits_for() -> None:
    """The job was cancelled, and fails for that reason; that is not a failure of Spark."""
    engine, calls = Engine("sc://localhost"), calls_of(2)
    job = shared_job(engine, calls)
    for call in calls:
        engine._abandon(call)
    with structlog.testing.capture_logs() as logs:
        held = fail(engine, job, SessionError("interrupted"))
    assert (held.lost, logs) == (False, [])
    assert engine._scheduler.next_job(anyio.current_time()) is None

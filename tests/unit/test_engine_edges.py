"""Jobs in which two rules meet: callers that left, timeouts that differ, a failure while the engine stops."""

from collections.abc import Callable
from typing import Any, cast

import anyio
import pytest

from rebaser.dvu.spark import engine as engine_module
from rebaser.dvu.spark.engine import Engine
from rebaser.dvu.spark.scheduler import SLOW_AFTER, EvaluateCall, Job, JobScheduler
from rebaser.dvu.spark.session_manager import ActiveSession
from rebaser_core.errors import DvuError
from rebaser_core.thresholds import Thresholds

pytestmark = pytest.mark.anyio


def start(engine: Engine, *timeouts: float) -> tuple[Job, list[EvaluateCall]]:
    calls = [EvaluateCall([b"packet"], f"ws/cs{number}", timeout, 0.0) for number, timeout in enumerate(timeouts)]
    for call in calls:
        engine._scheduler.add(call)
    job = engine._scheduler.next_job(anyio.current_time())
    assert job is not None
    assert job.calls == calls
    return job, calls


def fail(engine: Engine, job: Job) -> None:
    engine._handle_failure(ActiveSession(cast("Any", None)), job, DvuError("bad"))
    engine._scheduler.job_ended(job, anyio.current_time())


async def test_who_shared_a_job_with_one_that_left_is_tried_alone() -> None:
    """The packet of the caller that left may be the bad one."""
    engine = Engine("sc://localhost")
    job, (stays, leaves) = start(engine, 60.0, 60.0)
    engine._abandon(leaves)
    fail(engine, job)
    assert not stays.done.is_set()
    again = engine._scheduler.next_job(anyio.current_time())
    assert again is not None
    assert again.calls == [stays]
    fail(engine, again)
    assert stays.error is not None


async def test_a_job_that_fails_while_the_engine_stops_is_not_tried_again() -> None:
    """Nobody would start it, and its callers would wait for ever."""
    engine = Engine("sc://localhost")
    job, calls = start(engine, 60.0, 60.0)
    engine._closing = True
    fail(engine, job)
    assert all(call.done.is_set() and call.error is not None for call in calls)
    assert engine._scheduler.next_job(anyio.current_time()) is None


@pytest.mark.parametrize(("timeouts", "bound"), [((1.0, 60.0), 1.0), ((60.0, 1.0), 1.0), ((7.0, 60.0), 5.1)])
async def test_a_shared_job_has_the_time_of_its_most_impatient_caller(
    monkeypatch: pytest.MonkeyPatch, timeouts: tuple[float, ...], bound: float
) -> None:
    bounds: list[float] = []

    async def run(_: Callable[[], object], __: object, *, seconds: float, **more: object) -> object:
        bounds.append(seconds)
        return [[b"1"], [b"2"]]

    class Session:
        sent_bytes = 0

    monkeypatch.setattr(engine_module, "run_interruptible", run)
    engine = Engine("sc://localhost")
    engine._limiter = anyio.CapacityLimiter(1)
    job, _ = start(engine, *timeouts)
    await engine._run_to_end(ActiveSession(cast("Any", Session()), running_jobs=1), job)
    assert bounds == [pytest.approx(bound)]


def test_large_jobs_do_not_make_small_ones_seem_fast() -> None:
    """The usual duration is that of small jobs, so a call that takes as long as a large job is slow."""
    lanes = JobScheduler()

    def run(label: str, size: int, seconds: float) -> EvaluateCall:
        call = EvaluateCall([b"x" * size], label, 60, 0.0)
        lanes.add(call)
        job = lanes.next_job(0.0)
        assert job is not None
        lanes.job_ended(job, seconds)
        return call

    for number in range(20):
        run(f"large {number}", Thresholds().shared_job_max_bytes + 1, 60.0)
    run("slow", 1, 2 * SLOW_AFTER)
    assert run("slow", 1, 0.0).large

"""What the engine makes of calls and of jobs that fail, without a Spark."""

from typing import Any

import anyio
import pytest

from rebaser.dvu.spark.engine import Engine, _parts
from rebaser.dvu.spark.scheduler import EvaluateCall
from rebaser.dvu.spark.session import SessionError
from rebaser.dvu.spark.session_manager import ActiveSession


def test_a_call_is_cut_into_jobs_of_at_most_so_many_bytes() -> None:
    parts = _parts([bytes(size) for size in (3, 3, 3, 9, 1, 4, 4, 1)], 8)
    assert [[len(packet) for packet in part] for part in parts] == [[3, 3], [3], [9], [1, 4], [4, 1]]


@pytest.mark.anyio
async def test_a_call_under_which_sessions_are_lost_is_tried_once_more_and_then_told() -> None:
    """Else one packet that ends every session would take all others with it, again and again."""
    engine, session = Engine("sc://localhost"), Any
    call = EvaluateCall([b"packet"], "ws/cs", 60.0, 0.0)
    engine._scheduler.add(call)
    for told in (False, True):
        job = engine._scheduler.next_job(0.0)
        assert job is not None
        held = ActiveSession(session)  # type: ignore[arg-type] # nothing is asked of it
        engine._handle_failure(held, job, SessionError("lost"))
        engine._scheduler.job_ended(job, 0.0)
        assert (held.lost, call.done.is_set()) == (True, told)
    assert isinstance(call.error, SessionError)
    assert engine._scheduler.next_job(0.0) is None


@pytest.mark.anyio
async def test_a_job_is_ended_when_none_of_its_callers_waits_and_not_before() -> None:
    """Nobody else answers those who still do."""
    engine = Engine("sc://localhost")
    calls = [EvaluateCall([b"packet"], f"ws/cs{number}", 60.0, 0.0) for number in range(3)]
    for call in calls:
        engine._scheduler.add(call)
    job = engine._scheduler.next_job(0.0)
    assert job is not None
    assert job.calls == calls
    for call in calls:
        assert not job.stop.is_set()
        engine._abandon(call)
    assert job.stop.is_set()


class Session:
    """Gives each packet itself as its result."""

    sent_bytes = 0

    def run(self, packets: list[bytes], **_: object) -> list[list[bytes]]:
        return [[packet] for packet in packets]


@pytest.mark.anyio
async def test_a_job_that_is_over_is_known_to_nobody() -> None:
    """It holds the results of its callers, which may be much."""
    engine, session = Engine("sc://localhost"), Session()
    engine._limiter = anyio.CapacityLimiter(1)
    call = EvaluateCall([b"packet"], "ws/cs", 60.0, 0.0)
    engine._scheduler.add(call)
    job = engine._scheduler.next_job(0.0)
    assert job is not None
    held = ActiveSession(session, running_jobs=1)  # type: ignore[arg-type] # it runs jobs, and that is all
    await engine._run_to_end(held, job)
    assert (call.results, call.job, held.running_jobs) == ([[b"packet"]], None, 0)
    assert not engine._running
    assert engine._scheduler.wake_at(0.0) == float("inf")

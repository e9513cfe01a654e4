"""Tests which calls share a job, and when a job may begin, without Spark and without a clock."""

import pytest

from rebaser.dvu.spark.scheduler import (
    BURST_CALLS,
    BURST_LINGER,
    BURST_PAUSE,
    MAX_FAST_JOBS,
    MAX_LARGE_JOBS,
    MAX_SHARED_BYTES,
    SECOND_JOB_CALLS,
    SLOW_AFTER,
    EvaluateCall,
    Job,
    JobScheduler,
)
from rebaser.embedded import MAX_CONCURRENT_JOBS
from rebaser_core.thresholds import Thresholds, forced

FULL, LARGE = Thresholds().shared_job_max_calls, Thresholds().shared_job_max_bytes


@pytest.fixture
def lanes() -> JobScheduler:
    return JobScheduler()


def add(
    lanes: JobScheduler, count: int = 1, *, at: float = 0.0, size: int = 1, label: str = "small"
) -> list[EvaluateCall]:
    calls = [EvaluateCall([b"x" * size], label, 60, at) for _ in range(count)]
    for call in calls:
        lanes.add(call)
    return calls


def begun(lanes: JobScheduler, now: float) -> list[Job]:
    jobs = []
    while (job := lanes.next_job(now)) is not None:
        jobs.append(job)
    return jobs


def test_a_call_that_is_alone_does_not_wait(lanes: JobScheduler) -> None:
    assert lanes.next_job(0) is None
    [call] = add(lanes)
    [job] = begun(lanes, 0)
    assert job.calls == [call]
    assert call.job is job


def test_a_burst_is_waited_for_until_it_pauses_and_no_longer_than_so(lanes: JobScheduler) -> None:
    add(lanes, BURST_CALLS)
    assert lanes.next_job(0) is None
    assert lanes.wake_at(0) == BURST_PAUSE
    for step in range(1, 100):  # one more call each time, before the pause is over
        at = step * BURST_PAUSE / 2
        add(lanes, at=at)
        if job := lanes.next_job(at):
            break
    assert at == pytest.approx(BURST_LINGER)
    assert len(job.calls) == BURST_CALLS + step  # type: ignore[union-attr]


def test_a_burst_that_fills_a_job_is_not_waited_for(lanes: JobScheduler) -> None:
    add(lanes, 2 * FULL)
    assert [len(job.calls) for job in begun(lanes, 0)] == [FULL, FULL]


def test_who_comes_while_a_job_of_many_runs_waits_for_its_end_and_shares_the_next(lanes: JobScheduler) -> None:
    add(lanes, BURST_CALLS)
    [job] = begun(lanes, BURST_PAUSE)
    for at in range(1, 4):
        add(lanes, at=at * BURST_LINGER)
        assert begun(lanes, at * BURST_LINGER) == []
    assert lanes.wake_at(4 * BURST_LINGER) == BURST_PAUSE + SLOW_AFTER
    lanes.job_ended(job, 4 * BURST_LINGER)
    [job] = begun(lanes, 4 * BURST_LINGER)
    assert len(job.calls) == 3


def test_those_who_are_worth_a_job_of_their_own_have_it_beside_one_of_many(lanes: JobScheduler) -> None:
    add(lanes, BURST_CALLS)
    assert [len(job.calls) for job in begun(lanes, BURST_PAUSE)] == [BURST_CALLS]
    add(lanes, SECOND_JOB_CALLS - 1)
    assert begun(lanes, BURST_PAUSE) == []
    add(lanes)
    assert [len(job.calls) for job in begun(lanes, BURST_PAUSE)] == [SECOND_JOB_CALLS]
    add(lanes, FULL)
    assert begun(lanes, BURST_PAUSE) == []


def test_who_comes_soon_after_a_job_of_many_waits_for_a_moment(lanes: JobScheduler) -> None:
    add(lanes, BURST_CALLS)
    for ended, calm in ((1.0, False), (1.0 + BURST_LINGER, True)):
        [job] = begun(lanes, ended)
        lanes.job_ended(job, ended)
        add(lanes, at=ended + BURST_LINGER / 2)
        assert (len(begun(lanes, ended + BURST_LINGER / 2)) == 1) is calm
        if not calm:
            assert lanes.wake_at(ended + BURST_LINGER / 2) == ended + BURST_LINGER / 2 + BURST_PAUSE


def test_a_job_of_several_is_bounded_in_bytes(lanes: JobScheduler) -> None:
    most = MAX_SHARED_BYTES // LARGE
    add(lanes, most + 1, size=LARGE)
    assert [len(job.calls) for job in begun(lanes, BURST_PAUSE)] == [most]
    assert lanes.next_job(SLOW_AFTER + BURST_PAUSE) is not None


def test_one_that_is_larger_than_what_may_be_shared_has_a_job(lanes: JobScheduler) -> None:
    with forced(Thresholds.highest()):
        calls = add(lanes, 2, size=MAX_SHARED_BYTES + 1)
        assert [job.calls for job in begun(lanes, 0)] == [calls[:1], calls[1:]]


def test_large_calls_have_jobs_and_places_of_their_own(lanes: JobScheduler) -> None:
    large = [*add(lanes, MAX_LARGE_JOBS, size=LARGE + 1), EvaluateCall([b"1", b"2"], "two packets", 60, 0.0)]
    lanes.add(large[-1])
    small = add(lanes, 2)
    jobs = begun(lanes, 0)
    assert [job.calls for job in jobs] == [*([call] for call in large[:-1]), small]
    assert lanes.next_job(1000) is None
    lanes.job_ended(jobs[0], 1000)
    assert [job.calls for job in begun(lanes, 1000)] == [large[-1:]]


@pytest.mark.parametrize(
    ("places", "jobs", "tasks"), [(1, 1, 1), (2, 1, 1), (3, 2, 1), (4, 2, 1), (5, 2, 2), (16, 2, 7)]
)
def test_large_jobs_leave_a_place_to_the_small(lanes: JobScheduler, places: int, jobs: int, tasks: int) -> None:
    lanes.task_slots = places
    add(lanes, MAX_LARGE_JOBS, size=LARGE + 1)
    assert len(begun(lanes, 0)) == jobs
    assert lanes.large_job_tasks == tasks
    assert places == 1 or jobs * tasks < places


def test_few_small_jobs_run_at_once(lanes: JobScheduler) -> None:
    for _ in range(MAX_FAST_JOBS):
        add(lanes)
        assert begun(lanes, 0)
    waiting = add(lanes, 2)
    assert begun(lanes, SLOW_AFTER / 2) == []
    assert lanes.wake_at(SLOW_AFTER / 2) == SLOW_AFTER
    assert [job.calls for job in begun(lanes, SLOW_AFTER)] == [waiting]


def test_the_first_job_that_is_slow_lets_the_next_begin(lanes: JobScheduler) -> None:
    for turn in range(MAX_FAST_JOBS):
        add(lanes)
        assert begun(lanes, turn * SLOW_AFTER / 2)
    add(lanes)
    assert lanes.wake_at(SLOW_AFTER / 2) == SLOW_AFTER


def test_small_ones_that_turn_out_slow_take_nobody_s_place_until_there_are_very_many(lanes: JobScheduler) -> None:
    jobs: list[Job] = []
    for turn in range(MAX_CONCURRENT_JOBS):
        add(lanes)
        jobs += begun(lanes, turn * SLOW_AFTER)
        assert len(jobs) == turn + 1
    add(lanes)
    assert begun(lanes, 1000) == []
    assert lanes.wake_at(1000) == float("inf")
    lanes.job_ended(jobs[3], 1000)
    assert len(begun(lanes, 1000)) == 1


def test_who_was_slow_alone_is_large_the_next_time_and_until_it_is_not(lanes: JobScheduler) -> None:
    for seconds, shares in ((2 * SLOW_AFTER, False), (SLOW_AFTER / 2, True)):
        add(lanes, label="slow")
        [job] = begun(lanes, 0)
        lanes.job_ended(job, seconds)
        slow, small = add(lanes, label="slow"), add(lanes)
        jobs = begun(lanes, 10)
        assert ([*slow, *small] in [job.calls for job in jobs]) is shares
        for job in jobs:
            lanes.job_ended(job, 10)


def test_who_had_large_results_is_large_the_next_time(lanes: JobScheduler) -> None:
    [call] = add(lanes, label="much")
    [job] = begun(lanes, 0)
    call.results = [[b"x" * LARGE, b"x"]]
    lanes.job_ended(job, 0)
    add(lanes, label="much")
    add(lanes)
    assert [len(job.calls) for job in begun(lanes, 0)] == [1, 1]


def test_a_busy_machine_makes_nobody_slow(lanes: JobScheduler) -> None:
    for _ in range(20):
        add(lanes, label="first")
        [job] = begun(lanes, 0)
        lanes.job_ended(job, 3 * SLOW_AFTER)
    add(lanes, label="first")
    add(lanes)
    assert [len(job.calls) for job in begun(lanes, 0)] == [2]


def test_who_shared_a_slow_job_is_not_blamed(lanes: JobScheduler) -> None:
    add(lanes, label="a")
    add(lanes, label="b")
    [job] = begun(lanes, 0)
    lanes.job_ended(job, 2 * SLOW_AFTER)
    add(lanes, label="a")
    add(lanes, label="b")
    assert [len(job.calls) for job in begun(lanes, 10)] == [2]


def test_the_parts_of_a_split_job_come_first_and_meet_no_others(lanes: JobScheduler) -> None:
    calls = add(lanes, 5)
    [job] = begun(lanes, 0)
    others = add(lanes, 3)
    lanes.job_ended(job, 0)
    lanes.split(job.calls, 2)
    assert [job.calls for job in begun(lanes, 0)] == [calls[:3], calls[3:]]
    assert [job.calls for job in begun(lanes, SLOW_AFTER)] == [others]


def test_what_is_queued_can_be_taken_back(lanes: JobScheduler) -> None:
    first, second = add(lanes, 2)
    [large] = add(lanes, size=LARGE + 1)
    assert lanes.remove(first)
    assert not lanes.remove(first)
    assert list(lanes.drain()) == [second, large]
    assert begun(lanes, 0) == []

"""Decides which calls share the next Spark job, and when it may start. This module has no clock and no I/O.

Invariants: a call that is large, or whose label was slow, never shares a job and never delays a small call. While fewer
than `MAX_CONCURRENT_JOBS` jobs run, a small job waits only for running small jobs that are not slow yet. Once a job has
been split, its calls no longer share jobs with other calls. Large jobs leave one of Spark's task slots to small jobs,
if there are at least two slots.

Starting a job takes Spark as long as computing a hundred small calls. Calls that arrive while a job runs therefore wait
for its end and share the next job. The more calls arrive, the more calls share a job.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from rebaser.dvu.wire.packet import Encoded
from rebaser.embedded import MAX_CONCURRENT_JOBS
from rebaser_core import thresholds
from rebaser_core.errors import DvuError

if TYPE_CHECKING:
    from rebaser.telemetry.update_spans import UpdateSpans

SLOW_AFTER = 1.0  # seconds; a small job is slow if it takes longer than this plus four times the usual time
MAX_FAST_JOBS = 2  # maximum number of small jobs that run at once and are not slow yet
MAX_LARGE_JOBS = 2  # maximum number of large jobs that run at once
MAX_SHARED_BYTES = 4 * 1024 * 1024  # maximum total bytes of the packets that share a job
BURST_CALLS = 8  # if this many calls wait or share a job, more calls are expected soon: this is a burst
SECOND_JOB_CALLS = 128  # if this many calls wait while a burst shares a job, a second job starts
BURST_PAUSE = 0.02  # seconds without a new call after which a burst is over: about one iteration of the event loop
BURST_LINGER = 0.1  # maximum seconds for which the first call of a burst waits for other calls
MAX_SLOW_LABELS = 10_000  # maximum number of labels that are remembered as slow


@dataclass(slots=True, eq=False)
class EvaluateCall:
    """The packets of one call to `Engine.evaluate`, and their results once they exist. `timeout` is in seconds,
    `queued_at` in seconds on a monotonic clock."""

    packets: Sequence[bytes]
    label: str
    timeout: float
    queued_at: float
    done: anyio.Event = field(default_factory=anyio.Event)
    report_progress: Callable[[int], None] | None = None  # called with the number of visited nodes
    results: list[list[Encoded]] = field(default_factory=list)
    error: DvuError | None = None
    job: "Job | None" = None
    share_group: int = 0  # the call shares jobs only with calls of the same group
    retried: bool = False  # whether the call was repeated because a session was lost during its job
    isolate: bool = False  # whether plug-ins are called in child processes, because a worker died during its job
    abandoned: bool = False
    large: bool = False
    spans: "UpdateSpans | None" = None  # the spans of the update that made the call; None if traces are off
    size: int = field(init=False)  # total bytes of the packets

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.packets))

    def fail(self, error: DvuError) -> None:
        """End this call with `error`."""
        self.error = error
        self.done.set()


@dataclass(slots=True, eq=False)
class Job:
    """One Spark job, and the calls that share it. `stop` is set when no caller waits for the job any more. `result` is
    the outcome of the job, in the form in which metrics report it."""

    calls: list[EvaluateCall]
    tag: str
    large: bool
    started_at: float
    stop: anyio.Event = field(default_factory=anyio.Event)
    result: str = "stopped"

    def report_progress(self, visited: Mapping[int, int]) -> None:
        """Tell the callers that still wait how many of their nodes were visited. `visited` has the numbers, by the
        index of the packet in the job."""
        first = 0
        for call in self.calls:
            packets = range(first, first + len(call.packets))
            first = packets.stop
            if call.report_progress is not None and not call.done.is_set():
                call.report_progress(sum(visited.get(packet, 0) for packet in packets))


class JobScheduler:
    """Holds the queued calls and the running jobs. `task_slots` is the number of tasks that Spark runs at once."""

    def __init__(self) -> None:
        self.task_slots = MAX_CONCURRENT_JOBS
        self._small: deque[EvaluateCall] = deque()
        self._large: deque[EvaluateCall] = deque()
        self._running: set[Job] = set()
        self._slow_labels: dict[str, None] = {}  # labels that were slow, the most recent one last
        self._usual_seconds = 0.0  # moving average of the time that small jobs take; it rises on a busy machine
        self._burst_ends_at = -math.inf
        self._share_groups = itertools.count(1)
        self.jobs_started = 0

    def add(self, call: EvaluateCall) -> None:
        """Queue a new call."""
        call.large = (
            len(call.packets) > 1 or call.size > thresholds.now.shared_job_max_bytes or call.label in self._slow_labels
        )
        (self._large if call.large else self._small).append(call)

    def remove(self, call: EvaluateCall) -> bool:
        """Remove `call` from the queue. Return whether it was in the queue."""
        for queue in (self._small, self._large):
            if call in queue:
                queue.remove(call)
                return True
        return False

    @property
    def waiting(self) -> tuple[int, int]:
        """The number of small queued calls, and the number of large ones."""
        return len(self._small), len(self._large)

    @property
    def running(self) -> tuple[int, int]:
        """The number of small running jobs, and the number of large ones."""
        large = sum(job.large for job in self._running)
        return len(self._running) - large, large

    def drain(self) -> Iterator[EvaluateCall]:
        """Remove all calls from the queue, and yield each of them."""
        for queue in (self._small, self._large):
            while queue:
                yield queue.popleft()

    def split(self, calls: Sequence[EvaluateCall], parts: int) -> None:
        """Queue `calls`, which shared a job, again: as `parts` jobs, and ahead of all other calls."""
        size = -(-len(calls) // parts)
        for start in reversed(range(0, len(calls), size)):
            group = next(self._share_groups)
            for call in reversed(calls[start : start + size]):
                call.job, call.share_group = None, group
                (self._large if call.large else self._small).appendleft(call)

    def next_job(self, now: float) -> Job | None:
        """Return a job to start at the time `now`; None if no job is due. The job counts as running from now on."""
        if len(self._running) >= MAX_CONCURRENT_JOBS:
            return None
        if self._large and sum(job.large for job in self._running) < self._max_large_jobs:
            return self._start([self._large.popleft()], now, large=True)
        if self._small and self._small_job_due(now) <= now:
            return self._start(self._take_small(), now, large=False)
        return None

    def wake_at(self, now: float) -> float:
        """Return the time at which to call `next_job` again if no call arrives and no job ends before then."""
        if not self._small or len(self._running) >= MAX_CONCURRENT_JOBS:
            return math.inf
        return self._small_job_due(now)

    @property
    def large_job_tasks(self) -> int:
        """The maximum number of tasks of a large job."""
        return max(1, (self.task_slots - 1) // self._max_large_jobs)

    @property
    def _max_large_jobs(self) -> int:
        return max(1, min(MAX_LARGE_JOBS, self.task_slots - 1))

    def job_ended(self, job: Job, now: float) -> None:
        """Record that `job` has ended.

        If the job had a single call, decide whether that call's label counts as slow from now on. It counts as slow if
        the job was slow, or if the job's results were large.
        """
        self._running.discard(job)
        seconds, slow_after = now - job.started_at, self._slow_after
        if len(job.calls) >= BURST_CALLS:
            self._burst_ends_at = now + BURST_LINGER
        if not job.calls[0].large or job.calls[0].label in self._slow_labels:
            self._usual_seconds += (min(seconds, SLOW_AFTER + 2 * self._usual_seconds) - self._usual_seconds) / 5
        if len(job.calls) == 1:
            [call] = job.calls
            label = call.label
            self._slow_labels.pop(label, None)
            if (
                seconds > slow_after
                or sum(len(part) for parts in call.results for part in parts) > thresholds.now.shared_job_max_bytes
            ):
                self._slow_labels[label] = None
                if len(self._slow_labels) > MAX_SLOW_LABELS:
                    del self._slow_labels[next(iter(self._slow_labels))]

    @property
    def _slow_after(self) -> float:
        return SLOW_AFTER + 4 * self._usual_seconds

    def _fast_jobs(self, now: float) -> list[Job]:
        return [job for job in self._running if not job.large and now - job.started_at < self._slow_after]

    def _small_job_due(self, now: float) -> float:
        """Return the time at which the next small job should start if no other job ends before then; `-inf` means at
        once."""
        first, last, waiting = self._small[0], self._small[-1], len(self._small)
        from_split = first.share_group != 0  # a part of a split job does not wait for other calls to share the job
        fast = self._fast_jobs(now)

        # While enough fast jobs run, the next job waits until one of them ends or becomes slow.
        beside_burst = any(len(job.calls) >= BURST_CALLS for job in fast)
        worth_second_job = from_split or waiting >= SECOND_JOB_CALLS
        if len(fast) >= MAX_FAST_JOBS or (beside_burst and not worth_second_job):
            return min(job.started_at for job in fast) + self._slow_after

        # During a burst, the job waits for more calls. Without a burst, or if enough calls wait already, it starts at
        # once.
        full = waiting >= thresholds.now.shared_job_max_calls
        in_burst = waiting >= BURST_CALLS or now < self._burst_ends_at
        if from_split or full or not in_burst:
            return -math.inf
        return min(first.queued_at + BURST_LINGER, last.queued_at + BURST_PAUSE)

    def _take_small(self) -> list[EvaluateCall]:
        """Remove the calls of the next small job, as many as fit, from the front of the queue."""
        queue, room, group = self._small, MAX_SHARED_BYTES, self._small[0].share_group
        max_calls = thresholds.now.shared_job_max_calls
        calls: list[EvaluateCall] = []
        while queue and queue[0].share_group == group and len(calls) < max_calls:
            if calls and queue[0].size > room:
                break
            room -= queue[0].size
            calls.append(queue.popleft())
        return calls

    def _start(self, calls: list[EvaluateCall], now: float, *, large: bool) -> Job:
        self.jobs_started += 1
        job = Job(calls, f"rebaser-{self.jobs_started}", large, now)
        for call in calls:
            call.job = job
        self._running.add(job)
        return job

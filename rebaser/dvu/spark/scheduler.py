"""Which calls share the next Spark job, and when it may begin. Pure: no clock, no I/O.

Invariants: a call that is large, or whose like was slow, never shares a job and never takes the place of a small one;
small jobs begin while fewer than two of them are young, whatever else runs; calls of a split job meet no others again.
Large jobs leave one of Spark's places (task slots) to the small, if there are two.

A job costs Spark as much as a hundred small calls do. So where many come, those who come while a job runs wait for its
end, and share the next: the busier it is, the more share.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import anyio

from rebaser.dvu.wire.packet import Encoded
from rebaser.embedded import MAX_CONCURRENT_JOBS
from rebaser_core import thresholds
from rebaser_core.errors import DvuError

SLOW_AFTER = (
    1.0  # seconds, more if all take long, after which a small job is slow, and takes no small one's place any more
)
MAX_YOUNG_JOBS = 2  # young ones at once
MAX_LARGE_JOBS = 2  # at once
MAX_SHARED_BYTES = 4 * 1024 * 1024  # of packets that share a job
BURST_CALLS = 8  # calls that wait, or share a job: more are about to come
SECOND_JOB_CALLS = 128  # calls that are worth a job beside one that others share
BURST_PAUSE = 0.02  # seconds without a call after which a burst is over: a round of the event loop (see `rounds`)
BURST_LINGER = 0.1  # seconds that the first of a burst waits for the rest
MAX_SLOW_LABELS = 10_000  # labels that were slow


@dataclass(slots=True, eq=False)
class EvaluateCall:
    """One caller's packets on their way. Times are of a clock that only goes forward, in seconds."""

    packets: Sequence[bytes]
    label: str
    timeout: float
    at: float  # when it was queued
    done: anyio.Event = field(default_factory=anyio.Event)
    told: Callable[[int], None] | None = None  # called with how many values are computed, while it runs alone
    results: list[list[Encoded]] = field(default_factory=list)
    error: DvuError | None = None
    job: "Job | None" = None
    share: int = 0  # shares jobs with calls of the same number only
    retried: bool = False  # a session was lost under it
    isolate: bool = False  # a worker died of it, or of another that shared its job
    abandoned: bool = False
    large: bool = False
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.packets))

    def fail(self, error: DvuError) -> None:
        self.error = error
        self.done.set()


@dataclass(slots=True, eq=False)
class Job:
    """Calls that share a job; `stop` is set when none of them waits any more."""

    calls: list[EvaluateCall]
    tag: str
    large: bool
    began: float
    stop: anyio.Event = field(default_factory=anyio.Event)


class JobScheduler:
    """What waits and what runs. `places` is how many tasks Spark runs at once."""

    def __init__(self) -> None:
        self.places = MAX_CONCURRENT_JOBS
        self._small: deque[EvaluateCall] = deque()
        self._large: deque[EvaluateCall] = deque()
        self._running: set[Job] = set()
        self._slow: dict[str, None] = {}
        self._usual = 0.0  # seconds that a small job takes lately: a busy machine makes nobody slow
        self._calm_at = -math.inf  # the last burst is over
        self._shares = itertools.count(1)
        self.jobs = 0  # begun so far

    def add(self, call: EvaluateCall) -> None:
        """A new call."""
        call.large = len(call.packets) > 1 or call.size > thresholds.now.lane or call.label in self._slow
        (self._large if call.large else self._small).append(call)

    def remove(self, call: EvaluateCall) -> bool:
        """Take back a call that is queued; whether it was."""
        for queue in (self._small, self._large):
            if call in queue:
                queue.remove(call)
                return True
        return False

    def drain(self) -> Iterator[EvaluateCall]:
        """Every call that is queued, which then is not."""
        for queue in (self._small, self._large):
            while queue:
                yield queue.popleft()

    def split(self, calls: Sequence[EvaluateCall], parts: int) -> None:
        """Queue what shared a job again, first in line, as `parts` jobs."""
        size = -(-len(calls) // parts)
        for at in reversed(range(0, len(calls), size)):
            share = next(self._shares)
            for call in reversed(calls[at : at + size]):
                call.job, call.share = None, share
                (self._large if call.large else self._small).appendleft(call)

    def next(self, now: float) -> Job | None:
        """A job that may begin now, if any may; it counts as running."""
        if len(self._running) >= MAX_CONCURRENT_JOBS:
            return None
        if self._large and sum(job.large for job in self._running) < self._large_jobs:
            return self._begin([self._large.popleft()], now, large=True)
        if self._small and self._small_at(now) <= now:
            return self._begin(self._take(), now, large=False)
        return None

    def wake_at(self, now: float) -> float:
        """When to ask again if nothing else happens."""
        if not self._small or len(self._running) >= MAX_CONCURRENT_JOBS:
            return math.inf
        return self._small_at(now)

    @property
    def large_tasks(self) -> int:
        """How many tasks a large job may have."""
        return max(1, (self.places - 1) // self._large_jobs)

    @property
    def _large_jobs(self) -> int:
        return max(1, min(MAX_LARGE_JOBS, self.places - 1))

    def ended(self, job: Job, now: float) -> None:
        """`job` runs no more. What was slow alone, or had large results, is large from now on, until it is not."""
        self._running.discard(job)
        took, old = now - job.began, self._old
        if len(job.calls) >= BURST_CALLS:
            self._calm_at = now + BURST_LINGER
        if not job.calls[0].large or job.calls[0].label in self._slow:
            self._usual += (min(took, SLOW_AFTER + 2 * self._usual) - self._usual) / 5
        if len(job.calls) == 1:
            [call] = job.calls
            label = call.label
            self._slow.pop(label, None)
            if took > old or sum(len(part) for parts in call.results for part in parts) > thresholds.now.lane:
                self._slow[label] = None
                if len(self._slow) > MAX_SLOW_LABELS:
                    del self._slow[next(iter(self._slow))]

    @property
    def _old(self) -> float:
        return SLOW_AFTER + 4 * self._usual

    def _young(self, now: float) -> list[Job]:
        return [job for job in self._running if not job.large and now - job.began < self._old]

    def _small_at(self, now: float) -> float:
        """When a small job should begin if no other ends before: at once, but in a burst."""
        first, waiting, young = self._small[0], len(self._small), self._young(now)
        shared = any(len(job.calls) >= BURST_CALLS for job in young)
        if len(young) >= MAX_YOUNG_JOBS or (shared and not first.share and waiting < SECOND_JOB_CALLS):
            return min(job.began for job in young) + self._old
        if first.share or waiting >= thresholds.now.lane_calls or (waiting < BURST_CALLS and now >= self._calm_at):
            return -math.inf
        return min(first.at + BURST_LINGER, self._small[-1].at + BURST_PAUSE)

    def _take(self) -> list[EvaluateCall]:
        """What shares the next small job: from the front of the queue, as much as fits."""
        queue, room, share = self._small, MAX_SHARED_BYTES, self._small[0].share
        most = thresholds.now.lane_calls
        calls: list[EvaluateCall] = []
        while queue and queue[0].share == share and len(calls) < most and (not calls or queue[0].size <= room):
            room -= queue[0].size
            calls.append(queue.popleft())
        return calls

    def _begin(self, calls: list[EvaluateCall], now: float, *, large: bool) -> Job:
        self.jobs += 1
        job = Job(calls, f"rebaser-{self.jobs}", large, now)
        for call in calls:
            call.job = job
        self._running.add(job)
        return job

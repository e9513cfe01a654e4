"""How a few numbers developed: every look of the last five minutes, and the last 30 minutes in steps of ten seconds.

Invariants: a sample takes part in both series. At most `RECENT` looks and `STEPS` steps are kept. While nobody looked,
there are no samples.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

RECENT, STEPS = 160, 181
STEP = 10.0  # seconds
SPANS = {"5": 300.0, "30": 1800.0}  # seconds, by minutes
EVERY = {"5": 2.0, "30": STEP}  # seconds from one sample to the next


@dataclass(frozen=True, slots=True)
class FleetSample:
    """A few numbers of one look, at `at` (Unix seconds)."""

    at: float
    requests_per_second: float
    commits_per_second: float
    requests: int
    due: int
    dead_letters: int
    oldest_request: float = 0.0  # its age in seconds


class Samples:
    """The samples of one installation."""

    def __init__(self) -> None:
        self._recent: deque[FleetSample] = deque(maxlen=RECENT)
        self._steps: deque[FleetSample] = deque(maxlen=STEPS)
        self._step: list[FleetSample] = []  # the looks of the present step

    def add(self, sample: FleetSample) -> None:
        if self._recent and sample.at < self._recent[-1].at:
            for kept in (self._recent, self._steps, self._step):  # the clock was set back
                kept.clear()
        if self._step and sample.at // STEP != self._step[0].at // STEP:
            self._steps.append(merged(self._step))
            self._step = []
        self._recent.append(sample)
        self._step.append(sample)

    def of(self, minutes: str, now: float) -> Sequence[FleetSample]:
        """Return the samples of the last `minutes`, a key of `SPANS`, the oldest first."""
        samples = self._recent if minutes == "5" else [*self._steps, *([merged(self._step)] if self._step else [])]
        return [sample for sample in samples if sample.at > now - SPANS[minutes]]


def merged(samples: Sequence[FleetSample]) -> FleetSample:
    """Return one sample for several: rates are averages, and the others are the highest, so that no peak is lost."""
    return FleetSample(
        samples[-1].at,
        fmean(sample.requests_per_second for sample in samples),
        fmean(sample.commits_per_second for sample in samples),
        max(sample.requests for sample in samples),
        max(sample.due for sample in samples),
        max(sample.dead_letters for sample in samples),
        max(sample.oldest_request for sample in samples),
    )

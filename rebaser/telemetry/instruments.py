"""Counters and histograms of plain numbers, without locks: the thread of the event loop feeds and reads them.

Invariant: every series exists from the start, with the value 0. Otherwise, a rate over a range that includes the first
event would not count that event.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import NamedTuple

import numpy as np

Labels = tuple[str, ...]
NANOS = 1_000_000_000


class Exemplar(NamedTuple):
    """An observation that belongs to a recorded trace: its value, and its time in Unix seconds."""

    trace_id: str
    value: float
    at: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of a metric. `value` is the value of a counter or gauge, or the sum of a histogram's observations.
    `buckets` has the cumulative counts of a histogram; the last count includes all observations.
    `exemplars` has the newest exemplar of each bucket that has one, by the index of the bucket."""

    labels: Labels
    value: float
    buckets: tuple[int, ...] = ()
    exemplars: Mapping[int, Exemplar] = field(default_factory=dict)


class Count:
    """The value of one counter. Code that runs for each commit holds it, because looking it up takes longer than
    counting."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Counter:
    """A metric with one counter for each combination of label values. `labels` maps the name of each label to its
    possible values. If `only` is given, counters exist only for the combinations in `only`."""

    kind = "counter"

    def __init__(
        self, name: str, meaning: str, *, only: Iterable[Labels] | None = None, **labels: Sequence[str]
    ) -> None:
        self.name, self.meaning, self.labels = name, meaning, labels
        self._counts = {one: Count() for one in (combinations(labels) if only is None else only)}

    def add(self, number: int, *labels: str) -> None:
        self._counts[labels].value += number

    def count(self, *labels: str) -> Count:
        return self._counts[labels]

    def samples(self) -> Iterator[Sample]:
        for labels, count in self._counts.items():
            yield Sample(labels, count.value)


class Observations:
    """The observations of one histogram, in `counts`, one number for each bucket, and their `total`.

    Code that runs for each commit does not call `observe`. It appends to `values` or, times in nanoseconds, to `ages`,
    and calls `fold` now and then. Appending takes a tenth of the time of counting, and NumPy counts a thousand
    observations in a few dozen microseconds. Both are arrays of plain numbers: lists of objects, which live until they
    are counted, would displace more of the processor's caches.
    """

    __slots__ = ("ages", "bounds", "counts", "exemplars", "total", "values")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        self.values = array("d")
        self.ages = array("d")

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def fold(self) -> None:
        """Count what was appended to `values` and `ages`, and empty both. Ages may be negative, because clocks differ;
        they count as 0."""
        if not (self.values or self.ages):
            return
        ages = np.maximum(np.array(self.ages), 0.0) / NANOS
        values = np.concatenate([np.array(self.values), ages])
        del self.values[:]
        del self.ages[:]
        self.total += float(values.sum())
        found = np.bincount(np.searchsorted(self.bounds, values), minlength=len(self.counts)).tolist()
        self.counts = [count + more for count, more in zip(self.counts, found, strict=True)]

    def add_exemplar(self, age: int, trace_id: str, now: int) -> None:
        """Make an observation the newest exemplar of its bucket. `age` is its value in nanoseconds, and `now` its Unix
        time in nanoseconds."""
        seconds = max(age, 0) / NANOS
        self.exemplars[bisect_left(self.bounds, seconds)] = Exemplar(trace_id, seconds, now / NANOS)

    def sample(self, labels: Labels) -> Sample:
        self.fold()
        return Sample(labels, self.total, tuple(accumulate(self.counts)), dict(self.exemplars))


class Histogram:
    """A metric with one histogram for each combination of label values. `bounds` are the upper bounds of all buckets
    except the last, which is unbounded."""

    kind = "histogram"

    def __init__(self, name: str, meaning: str, bounds: Sequence[float], **labels: Sequence[str]) -> None:
        self.name, self.meaning, self.labels, self.bounds = name, meaning, labels, tuple(bounds)
        self._series = {one: Observations(self.bounds) for one in combinations(labels)}

    def observe(self, value: float, *labels: str) -> None:
        self._series[labels].observe(value)

    def series(self, *labels: str) -> Observations:
        return self._series[labels]

    def samples(self) -> Iterator[Sample]:
        for labels, found in self._series.items():
            yield found.sample(labels)


def combinations(labels: Mapping[str, Sequence[str]]) -> Iterator[Labels]:
    """Yield each combination of label values, as a tuple in the order of the names."""
    yield from product(*labels.values())

"""Renders metrics for Prometheus. Only this module imports the Prometheus client."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from rebaser.telemetry.catalogue import Family
from rebaser.telemetry.instruments import Sample

_process = ProcessCollector(registry=None)


class _Scrape:
    """Passes metrics to the encoders, which expect the interface of a Prometheus registry."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        yield from map(_metric, self._families)
        yield from _process.collect()


def render(families: Sequence[Family], accept: str) -> tuple[bytes, str]:
    """Return the text of a scrape and its content type, which depends on the header `accept`. Call this in a thread, so
    that it does not block the event loop."""
    encode, content_type = choose_encoder(accept)
    return encode(_Scrape(families)), content_type


def _metric(family: Family) -> Any:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.meaning, labels=family.label_names)
        bounds = [*map(floatToGoString, family.bounds), "+Inf"]
        for sample in family.samples:
            histogram.add_metric(sample.labels, list(_buckets(bounds, sample)), sample.value)
        return histogram
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = make(family.name, family.meaning, labels=family.label_names)
    for sample in family.samples:
        metric.add_metric(sample.labels, sample.value)
    return metric


def _buckets(bounds: Sequence[str], sample: Sample) -> Iterator[Any]:
    """Yield the buckets with their exemplars, which only the OpenMetrics format shows."""
    for at, (bound, count) in enumerate(zip(bounds, sample.buckets, strict=True)):
        found = sample.exemplars.get(at)
        yield bound, count, None if found is None else Exemplar({"trace_id": found.trace_id}, found.value, found.at)

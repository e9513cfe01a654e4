"""The metrics of this process, by name and labels."""

from rebaser.server import Server
from rebaser.snapshot import Census, Snapshot
from rebaser.telemetry.catalogue import read_all

Figures = dict[tuple[str, ...], float]
NOBODY = Snapshot("test", "connecting", 6.0, 5.0)


def figures(server: Server | None = None) -> Figures:
    """Return the metrics, without their prefix; for a histogram, the number of observations. Gauges need the
    `server`."""
    seen, census = (NOBODY, Census()) if server is None else (server.snapshot(), server.census())
    return {
        (family.name.removeprefix("rebaser_"), *sample.labels): sample.buckets[-1] if sample.buckets else sample.value
        for family in read_all(seen, census)
        for sample in family.samples
    }


def moved(before: Figures, server: Server | None = None) -> Figures:
    """Return the metrics that have changed since `before`, with the differences."""
    return {key: value - before[key] for key, value in figures(server).items() if value != before.get(key, value)}

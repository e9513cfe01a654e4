"""Generates the series of a fleet of two servers for promtool: all series that alerts query.

The fleet is healthy for five minutes; then a fault begins.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rebaser.snapshot import STREAMS, Census, Snapshot, StreamUsage, Sweep
from rebaser.telemetry.catalogue import Family, read_all
from rebaser.telemetry.instruments import Sample
from tests.monitoring.render import ALERTS

STEP = 15  # seconds between scrapes
BEGINS = 20  # number of steps before the fault begins
STEPS = 64
FAULT_AT = BEGINS * STEP
JOB, A, B = "rebaser", "a:8421", "b:8421"
TRAFFIC = 60  # observations of a histogram, or events of a counter, in each step

_WELL = {"slots": 100, "slots_used": 40, "spark": "ready", "nats_rtt": 0.001, "progress_silent": 1.0}
_STREAMS = {kind: StreamUsage(100, 10_000, 1.0 if kind == "sweep" else 0.3) for kind in STREAMS}
_QUEUE = {"oldest_request_age": 0.5, "tasks_waiting": 2, "tasks_in_hand": 80}
_BUSY = {  # counters and histograms that grow in a healthy fleet; all observations are in the third bucket
    ("rebaser_requests_decided_total", ("success",)),
    ("rebaser_request_seconds", ()),
    ("rebaser_request_queue_seconds", ()),
    ("rebaser_append_seconds", ("requests",)),
    ("rebaser_append_seconds", ("dvu",)),
    ("rebaser_dvu_seconds", ("done",)),
    ("rebaser_loop_lag_seconds", ()),
}


@dataclass
class Series:
    """A series that begins at `start` and grows by `growth` in each step.

    `counts` is true for the series of counters and histograms, which begin at 0 when their server restarts. `fault`
    contains the values from the fault on, as in `Fault`.
    """

    name: str
    labels: dict[str, str]
    start: float = 0.0
    growth: float = 0.0
    counts: bool = False
    fault: str = ""

    @property
    def values(self) -> str:
        well = f"{self.start:g}+{self.growth:g}x{BEGINS - 1}"
        if self.fault == "":
            return f"{self.start:g}+{self.growth:g}x{STEPS}"
        if self.fault == "restarts":
            again = (
                f"0+{self.growth:g}" if self.counts else f"{self.start + (BEGINS + 2) * self.growth:g}+{self.growth:g}"
            )
            return f"{well} stale _x1 {again}x{STEPS - BEGINS - 2}"
        return f"{well} {self.fault}"


@dataclass(frozen=True)
class Fault:
    """A change of the series `name` with these labels; an empty name selects all series.

    `values` contains the values from the fault on, in the notation of promtool. `restarts` means that the server
    restarts.
    """

    name: str
    values: str
    labels: Mapping[str, str]


def fault(name: str, values: float | str, **labels: str) -> Fault:
    """Return a fault of the series `name`. If `values` is a number, the series has this value from the fault on."""
    if isinstance(values, str):
        return Fault(name, values, labels)
    return Fault(name, f"{values:g}x{STEPS - BEGINS}", labels)


def event(name: str, times: int = 1, **labels: str) -> Fault:
    """Return a fault: at its beginning, servers log the event `name` `times` times."""
    return fault("rebaser_log_events_total", times, event=name, **labels)


def gone(instance: str) -> tuple[Fault, ...]:
    """Return the faults of a server that no longer answers scrapes."""
    return Fault("", "stale", {"instance": instance}), fault("up", 0, instance=instance)


def restarting(instance: str) -> tuple[Fault, ...]:
    return (
        Fault("", "restarts", {"instance": instance}),
        fault("up", f"0x1 1x{STEPS - BEGINS - 2}", instance=instance),
        fault("process_start_time_seconds", f"stale _x1 {FAULT_AT}x{STEPS - BEGINS - 2}", instance=instance),
    )


def series(faults: Sequence[Fault] = ()) -> list[dict[str, str]]:
    """Return all series of the fleet, as the `input_series` of a promtool test."""
    found = [*_server(A, sweeper=True), *_server(B, sweeper=False)]
    for one in faults:
        hit = [each for each in found if one.name in ("", each.name) and one.labels.items() <= each.labels.items()]
        assert hit, one
        for each in hit:
            each.fault = one.values
    return [{"series": f"{one.name}{{{_pairs(one.labels)}}}", "values": one.values} for one in found]


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f'{name}="{value}"' for name, value in labels.items())


def _server(instance: str, *, sweeper: bool) -> list[Series]:
    given: dict[str, Any] = _WELL | _QUEUE | {"streams": _STREAMS, "sweeper": sweeper}
    snapshot = Snapshot("test", "serving", 6.0, 5.0, sweep=Sweep(0.0, 0, 0) if sweeper else None, **given)
    census = Census({"active": 40}, {"idle": 39, "running": 1}, debt_age=2.0)
    found = [
        Series(name, {"job": JOB, "instance": instance, **labels}, start, growth, counts)
        for family in read_all(snapshot, census)
        for sample in family.samples
        for name, labels, start, growth, counts in _rows(family, sample)
        if name in ASKED and (name != "rebaser_log_events_total" or labels["event"] in EVENTS_ASKED)
    ]
    for one in found:
        if one.name == "rebaser_last_sweep_timestamp_seconds" and sweeper:
            one.growth = STEP
    other = {"up": 1.0, "process_start_time_seconds": 0.0, "process_open_fds": 30.0, "process_max_fds": 1024.0}
    return found + [Series(name, {"job": JOB, "instance": instance}, value) for name, value in other.items()]


def _rows(family: Family, sample: Sample) -> list[tuple[str, dict[str, str], float, float, bool]]:
    """Return the series of a sample: name, labels, start, growth, and whether it counts.

    Series that count begin with 0, even if other tests in this process have counted something.
    """
    labels = dict(zip(family.label_names, sample.labels, strict=True))
    growth = TRAFFIC if (family.name, sample.labels) in _BUSY else 0
    if family.kind == "gauge":
        return [(family.name, labels, sample.value, 0, False)]
    if family.kind == "counter":
        return [(family.name, labels, 0, growth, True)]
    bounds = [*(f"{bound}" for bound in family.bounds), "+Inf"]
    rows: list[tuple[str, dict[str, str], float, float, bool]] = [
        (f"{family.name}_bucket", {**labels, "le": bound}, 0, growth if at >= 2 else 0, True)
        for at, bound in enumerate(bounds)
    ]
    return [*rows, *((f"{family.name}_{part}", labels, 0, growth, True) for part in ("count", "sum"))]


EXPRESSIONS = " ".join(alert.expression for alert in ALERTS)
ASKED = set(re.findall(r"\brebaser_\w+", EXPRESSIONS))
EVENTS_ASKED = {name for listed in re.findall(r'event=~?"([^"]+)"', EXPRESSIONS) for name in listed.split("|")}

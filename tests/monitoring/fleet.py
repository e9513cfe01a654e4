"""A fleet of two servers as promtool reads it: all series that alerts ask for, quiet, with a fault from minute 5 on."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rebaser.snapshot import STREAMS, Census, Snapshot, StreamUsage, Sweep
from rebaser.telemetry.catalogue import Family, read_all
from rebaser.telemetry.instruments import Sample
from tests.monitoring.render import ALERTS

STEP = 15  # seconds between scrapes
BEGINS = 20  # steps until the fault begins
STEPS = 64
FAULT_AT = BEGINS * STEP
JOB, A, B = "rebaser", "a:8421", "b:8421"
TRAFFIC = 60  # observations and events in a step

_WELL = {"slots": 100, "slots_used": 40, "spark": "ready", "nats_rtt": 0.001, "progress_silent": 1.0}
_STREAMS = {kind: StreamUsage(100, 10_000, 1.0 if kind == "sweep" else 0.3) for kind in STREAMS}
_QUEUE = {"oldest_request_age": 0.5, "tasks_waiting": 2, "tasks_in_hand": 80}
_BUSY = {  # the series of counters and histograms that grow while all is well; of a histogram, within its third bucket
    ("rebaser_requests_decided_total", ("success",)),
    ("rebaser_request_seconds", ()),
    ("rebaser_request_queue_seconds", ()),
    ("rebaser_append_seconds", ("requests",)),
    ("rebaser_append_seconds", ("dvu",)),
    ("rebaser_dvu_seconds", ("done",)),
}


@dataclass
class Series:
    """A series, from `start` on growing by `growth` a step."""

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
    """What becomes of the series `name` with these labels: values in the notation of promtool, or `restarts`."""

    name: str
    values: str
    labels: Mapping[str, str]


def fault(name: str, values: float | str, **labels: str) -> Fault:
    """A number stays from the fault on; `+2` grows by 2 a step from the last value; other texts are as in `Fault`."""
    if isinstance(values, str):
        return Fault(name, values, labels)
    return Fault(name, f"{values:g}x{STEPS - BEGINS}", labels)


def event(name: str, times: int = 1, **labels: str) -> Fault:
    """A log event `times` times at the moment of the fault."""
    return fault("rebaser_log_events_total", times, event=name, **labels)


def gone(instance: str) -> tuple[Fault, ...]:
    """A server does not answer scrapes any more."""
    return Fault("", "stale", {"instance": instance}), fault("up", 0, instance=instance)


def restarting(instance: str) -> tuple[Fault, ...]:
    return (
        Fault("", "restarts", {"instance": instance}),
        fault("up", f"0x1 1x{STEPS - BEGINS - 2}", instance=instance),
        fault("process_start_time_seconds", f"stale _x1 {FAULT_AT}x{STEPS - BEGINS - 2}", instance=instance),
    )


def series(faults: Sequence[Fault] = ()) -> list[dict[str, str]]:
    """All series of the fleet, as `input_series` of a test of rules."""
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
    other = {"up": 1.0, "process_start_time_seconds": 0.0}
    return found + [Series(name, {"job": JOB, "instance": instance}, value) for name, value in other.items()]


def _rows(family: Family, sample: Sample) -> list[tuple[str, dict[str, str], float, float, bool]]:
    """The series of a sample. Whatever other tests counted in this process, they begin with 0."""
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

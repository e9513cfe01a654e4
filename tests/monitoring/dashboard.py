"""Generates the Grafana dashboard: rows of panels by topic, and a row with all other metrics of the catalogue."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rebaser.telemetry.catalogue import GAUGES, INSTRUMENTS, PREFIX, Gauge
from rebaser.telemetry.instruments import Counter, Histogram
from tests.monitoring.promql import asked

COLUMNS, HEIGHT, WIDTH = 24, 7, 8
SELECTOR = 'job="$job"'
WINDOW = "$__rate_interval"
BAD = ', level=~"warning|error"'


@dataclass(frozen=True)
class Panel:
    """A graph over time. `queries` contains each query with its legend. `unit` is the name of a unit in Grafana."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def shown(metric: str, more: str = "") -> str:
    """Return a selector for the series of a metric in the chosen installation."""
    return f"{PREFIX}{metric}{{{SELECTOR}{more}}}"


def rate(metric: str, *by: str) -> str:
    """Return a query for the events per second, by these labels."""
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped} (rate({shown(metric)}[{WINDOW}]))"


def quantiles(metric: str, *by: str) -> tuple[tuple[str, str], ...]:
    """Return queries, with legends, for the median and the 99th percentile of a histogram, by these labels."""
    legend = "".join(f" {{{{{label}}}}}" for label in by)
    inner = rate(f"{metric}_bucket", "le", *by)
    return tuple((f"histogram_quantile({share}, {inner})", f"p{share * 100:g}{legend}") for share in (0.5, 0.99))


def worst(metric: str, *by: str) -> str:
    """Return a query for the highest value among the servers."""
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"max{grouped} ({shown(metric)})"


def each(metric: str) -> tuple[str, str]:
    return worst(metric, "instance"), "{{instance}}"


def process(metric: str, *, rated: bool = False) -> tuple[str, str]:
    series = f"process_{metric}{{{SELECTOR}}}"
    return f"max by (instance) ({f'rate({series}[{WINDOW}])' if rated else series})", "{{instance}}"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        Panel("Requests decided", "reqps", ((rate("requests_decided_total", "outcome"), "{{outcome}}"),)),
        Panel("Time until the answer", "s", quantiles("request_seconds")),
        Panel("Time in the queue", "s", quantiles("request_queue_seconds")),
        Panel(
            "Dead letters, and attempts at held requests, by code",
            "short",
            (
                (f"topk(5, {rate('requests_dead_total', 'code')})", "dead: {{code}}"),
                (f"topk(5, {rate('requests_held_total', 'code')})", "held: {{code}}"),
            ),
        ),
        Panel(
            "Waiting",
            "short",
            (
                (worst("change_sets_waiting"), "change sets with requests"),
                (worst("oldest_request_age_seconds"), "age of the oldest request (s)"),
            ),
        ),
        Panel(
            "Requests in a commit",
            "short",
            ((f"{rate('batch_requests_sum')} / {rate('batch_requests_count')}", "mean"),),
        ),
    ),
    "Derived values": (
        Panel("Updates", "ops", ((rate("dvu_seconds_count", "result"), "{{result}}"),)),
        Panel("Duration of updates", "s", quantiles("dvu_seconds")),
        Panel("Freshness: time until an update is committed", "s", quantiles("freshness_seconds")),
        Panel("Oldest update that is due", "s", (each("debt_age_seconds_max"),)),
        Panel("Longest time in which an update made no progress", "s", (each("dvu_silent_seconds_max"),)),
        Panel(
            "Change sets by state of their update",
            "short",
            ((f"sum by (state) ({shown('change_sets_dvu')})", "{{state}}"),),
        ),
        Panel("Spark is ready", "bool_yes_no", (each("spark_up"),)),
    ),
    "Ownership": (
        Panel(
            "Slots",
            "short",
            (
                (f"sum ({shown('slots_used')})", "in use"),
                (f"sum ({shown('slots')})", "all"),
            ),
        ),
        Panel(
            "Change sets by phase",
            "short",
            ((f"sum by (phase) ({shown('change_sets_owned')})", "{{phase}}"),),
        ),
        Panel(
            "Tasks",
            "short",
            ((worst("tasks_waiting"), "waiting"), (worst("tasks_in_hand"), "in flight")),
        ),
        Panel("Owners fenced", "ops", ((rate("owners_fenced_total", "where"), "{{where}}"),)),
        Panel(
            "Lease age as a share of the ack wait",
            "percentunit",
            (
                (
                    f"max by (instance) ({shown('lease_age_seconds')} / {shown('ack_wait_seconds')})",
                    "{{instance}}",
                ),
            ),
        ),
        Panel("Time since the last sweep", "s", ((f"time() - {worst('last_sweep_timestamp_seconds')}", "sweep"),)),
    ),
    "NATS": (
        Panel("Duration of appends", "s", quantiles("append_seconds", "kind")),
        Panel("Oldest append in progress", "s", (each("append_age_seconds_max"),)),
        Panel("Round trip", "s", (each("nats_rtt_seconds"),)),
        Panel("Connected", "bool_yes_no", (each("nats_connected"),)),
        Panel("Clock: seconds ahead of NATS", "s", (each("clock_ahead_seconds"),)),
        Panel(
            "Streams: used share of the limit", "percentunit", ((worst("stream_full_ratio", "stream"), "{{stream}}"),)
        ),
        Panel("Streams: size", "bytes", ((worst("stream_bytes", "stream"), "{{stream}}"),)),
        Panel("Streams: messages", "short", ((worst("stream_messages", "stream"), "{{stream}}"),)),
    ),
    "Servers": (
        Panel(
            "Servers",
            "short",
            (
                (f"sum ({shown('ready')})", "ready"),
                (f"sum ({shown('draining')})", "draining"),
                (f"count by (version) ({shown('build_info')})", "version {{version}}"),
            ),
        ),
        Panel("CPU", "percentunit", (process("cpu_seconds_total", rated=True),)),
        Panel("Memory", "bytes", (process("resident_memory_bytes"),)),
        Panel("Lateness of the event loop", "s", quantiles("loop_lag_seconds")),
        Panel("Log events", "ops", ((rate("log_events_total", "level"), "{{level}}"),)),
        Panel(
            "Most frequent warnings and errors",
            "ops",
            (
                (
                    f"topk(8, sum by (event) (rate({shown('log_events_total', BAD)}[{WINDOW}])))",
                    "{{event}}",
                ),
            ),
        ),
    ),
}


def rows() -> dict[str, tuple[Panel, ...]]:
    """Return all rows. The last row contains the metrics of the catalogue that no other row shows."""
    drawn = {
        name for panels in ROWS.values() for panel in panels for query, _ in panel.queries for name in asked(query)
    }
    bare = {re.sub(r"_(bucket|count|sum)$", "", name) for name in drawn} | drawn
    rest = tuple(of_metric(row) for row in (*INSTRUMENTS, *GAUGES) if PREFIX + row.name not in bare)
    return {**ROWS, "Other metrics": rest} if rest else ROWS


def of_metric(row: Counter | Histogram | Gauge) -> Panel:
    """Return the default panel of a metric."""
    legend = " ".join(f"{{{{{label}}}}}" for label in row.labels) or row.name
    unit = "s" if "_seconds" in row.name else "bytes" if "_bytes" in row.name else "short"
    if isinstance(row, Histogram):
        return Panel(row.meaning, unit, quantiles(row.name, *row.labels))
    if isinstance(row, Counter):
        return Panel(f"{row.meaning.removesuffix('.')}, per second.", unit, ((rate(row.name, *row.labels), legend),))
    return Panel(row.meaning, unit, ((worst(row.name, *row.labels), legend),))


def dashboard() -> str:
    """Return the dashboard as JSON that Grafana can import."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    content = {
        "uid": "rebaser",
        "title": "Rebaser",
        "tags": ["rebaser"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "job",
                    "label": "Installation",
                    "type": "query",
                    "datasource": source,
                    "query": f"label_values({PREFIX}build_info, job)",
                    "refresh": 2,
                },
            ]
        },
        "panels": list(_panels(source)),
    }
    return json.dumps(content, indent=1) + "\n"


def _panels(source: dict[str, str]) -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for heading, panels in rows().items():
        number += 1
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": heading, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        for at, panel in enumerate(panels):
            number += 1
            across, down = at % (COLUMNS // WIDTH), at // (COLUMNS // WIDTH)
            yield {
                "id": number,
                "type": "timeseries",
                "title": panel.title.removesuffix("."),
                "datasource": source,
                "gridPos": {"x": across * WIDTH, "y": top + down * HEIGHT, "w": WIDTH, "h": HEIGHT},
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
                "targets": [
                    {"refId": chr(ord("A") + each_), "datasource": source, "expr": query, "legendFormat": legend}
                    for each_, (query, legend) in enumerate(panel.queries)
                ],
            }
        top += -(-len(panels) // (COLUMNS // WIDTH)) * HEIGHT

"""Checks that a query uses only metrics that servers export, with labels and label values that exist."""

import re

from rebaser.telemetry.catalogue import GAUGES, INSTRUMENTS, PREFIX
from rebaser.telemetry.events import EVENTS
from rebaser.telemetry.instruments import Histogram

TARGET = {"job", "instance"}
FOREIGN = {"up", "process_start_time_seconds", "process_cpu_seconds_total", "process_resident_memory_bytes",
           "process_open_fds", "process_max_fds"}  # fmt: skip
_SELECTOR = re.compile(r"\b((?:rebaser|process)_\w+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)")


def metrics() -> dict[str, dict[str, set[str]]]:
    """Return each series name that a scrape can contain, with its labels and all their values."""
    found: dict[str, dict[str, set[str]]] = {name: {} for name in FOREIGN}
    for row in (*INSTRUMENTS, *GAUGES):
        labels = {name: set(values) for name, values in row.labels.items()}
        if "event" in labels:
            labels["event"] = {event for event, _ in EVENTS} | {"other"}
        if isinstance(row, Histogram):
            bounds = {"le": {*(f"{bound}" for bound in row.bounds), "+Inf"}}
            found[f"{PREFIX}{row.name}_bucket"] = labels | bounds
            found |= {f"{PREFIX}{row.name}_{part}": labels for part in ("count", "sum")}
        else:
            found[PREFIX + row.name] = labels
    return found


KNOWN = metrics()


def asked(query: str) -> set[str]:
    """Return the names of the series that a query uses."""
    return {name for name, _ in _SELECTOR.findall(_GROUPING.sub("", query))}


def check_query(query: str) -> None:
    """Fail if a query uses an unknown metric, label or label value."""
    labels = set(TARGET)
    assert asked(query), query
    for name, matchers in _SELECTOR.findall(_GROUPING.sub("", query)):
        assert name in KNOWN, f"no metric {name}"
        labels |= KNOWN[name].keys()
        for label, operator, value in _MATCHER.findall(matchers):
            if label in TARGET:
                continue
            assert label in KNOWN[name], f"{name} has no label {label}"
            for one in value.split("|") if "~" in operator else [value]:
                assert one in KNOWN[name][label], f"no series {name} has {label}={one}"
    for grouped in _GROUPING.findall(query):
        assert {one.strip() for one in grouped.split(",")} <= labels, f"({grouped}) of {query}"

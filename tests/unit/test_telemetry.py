"""Metrics: the guarantees of the catalogue, and the calls that feed it."""

import ast
import platform
import re
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rebaser import __version__
from rebaser.change_set.lifecycle import Dvu, OwnerState, Phase, Reason
from rebaser.cli import logs
from rebaser.dvu.spark.engine import _result
from rebaser.dvu.spark.session import SessionError, WorkerDied
from rebaser.ops.metrics import render
from rebaser.runtime.stream_watch import _usage
from rebaser.snapshot import PUT_OFF, STREAMS, Census, Snapshot, StreamUsage, Sweep
from rebaser.telemetry import catalogue, feeds, log_events
from rebaser.telemetry.catalogue import CODES, GAUGES, INSTRUMENTS, Family, Gauge, read_all
from rebaser.telemetry.events import EVENTS
from rebaser.telemetry.instruments import Counter, Histogram, Labels
from rebaser_client.jetstream import StreamInfo
from rebaser_core.commit import Kind
from rebaser_core.errors import DvuError
from rebaser_core.streams.subjects import Subjects
from tests.support import sources

EMPTY = Snapshot("test", "connecting", 6.0, 5.0)
INSTRUMENT_NAMES = {name for name, value in vars(catalogue).items() if any(value is one for one in INSTRUMENTS)}
FEEDS = {
    node.name
    for node in sources.tree("rebaser.telemetry.feeds").body
    if isinstance(node, ast.FunctionDef | ast.ClassDef)
}


def names_used(module: str) -> Iterator[str]:
    """Yield names and attributes that the functions of a module use, without its imports."""
    for node in ast.walk(sources.tree(module)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def value_of(name: str, *labels: str) -> float:
    [family] = [family for family in read_all(EMPTY, Census()) if family.name == name]
    [sample] = [sample for sample in family.samples if sample.labels == labels]
    return sample.buckets[-1] if sample.buckets else sample.value


def test_each_instrument_is_fed_in_one_module_and_each_feed_has_one_caller() -> None:
    """`log_events` alone feeds what log events count; one function of `feeds` feeds each other instrument."""
    assert len(INSTRUMENT_NAMES) == len(INSTRUMENTS)
    product = [module for module in sources.modules() if module.startswith("rebaser.")]
    fed = [(name, module) for module in product for name in set(names_used(module)) & INSTRUMENT_NAMES]
    assert sorted(name for name, module in fed if module != "rebaser.telemetry.catalogue") == sorted(INSTRUMENT_NAMES)
    in_feeds = Tally(name for name in names_used("rebaser.telemetry.feeds") if name in INSTRUMENT_NAMES)
    assert set(in_feeds.values()) == {1}
    called = Tally(
        name
        for module in product
        if "rebaser.telemetry.feeds" in sources.imports(module)
        for name in names_used(module)
        if name in FEEDS
    )
    assert called == dict.fromkeys(FEEDS, 1)


EDGE = {
    "prometheus_client": {"rebaser.ops.metrics"},
    "opentelemetry": {
        "rebaser.telemetry.append_span",
        "rebaser.telemetry.span_maker",
        "rebaser.telemetry.spans",
        "rebaser.telemetry.tracing",
        "rebaser.telemetry.update_spans",
        "rebaser_client.requests.spans",
    },
}


@pytest.mark.parametrize("package", EDGE)
def test_only_the_edge_imports_what_renders(package: str) -> None:
    importing = {module for module in sources.modules() if package in sources.outside(module)}
    assert importing == EDGE[package]


def test_names_are_unique_and_say_their_units() -> None:
    rows: list[Counter | Histogram | Gauge] = [*INSTRUMENTS, *GAUGES]
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert row.meaning.endswith(".")
        assert isinstance(row, Counter) == row.name.endswith("_total")
        if isinstance(row, Histogram):
            assert list(row.bounds) == sorted(set(row.bounds))


def test_all_series_exist_from_the_start_and_are_few() -> None:
    count = 0
    for family in read_all(EMPTY, Census()):
        assert family.samples, family.name
        count += sum(len(sample.buckets) + 2 if sample.buckets else 1 for sample in family.samples)
    assert 300 < count <= 900


def test_nothing_that_happens_adds_a_series() -> None:
    """Labels have closed sets of values: a code, a reason or an event that nobody expected counts as `other`."""

    def series(snapshot: Snapshot, census: Census) -> set[tuple[str, Labels]]:
        return {(family.name, one.labels) for family in read_all(snapshot, census) for one in family.samples}

    before = series(EMPTY, Census())
    for event, level in (*EVENTS, ("new_event", "warning")):
        for detail in ("never heard of", *CODES):
            log_events.count(
                {"event": event, "code": detail, "reason": detail, "session": detail, "fenced": True}, level
            )
    busy = Census({"new phase": 1}, {"new state": 1}, debt_age=9.0, update_silent=9.0, append_age=9.0, values=9)
    usage = {name: StreamUsage(1, 1, 0.5) for name in (*STREAMS, "new stream")}
    assert series(replace(EMPTY, streams=usage, slots=9, spark_load=((9, 9), (9, 9))), busy) == before


def test_the_closed_sets_are_those_of_the_code() -> None:
    assert set(catalogue.PHASES) == {phase.value for phase in Phase} - {Phase.DONE.value}
    states = {OwnerState(dvu=dvu, owes=owes).update_state for dvu in Dvu for owes in (False, True)}
    assert set(catalogue.UPDATE_STATES) == states | {PUT_OFF}
    for kind in set(STREAMS) - {"blobs"}:
        assert getattr(Subjects("p"), f"{kind}_stream")
    assert set(log_events.COUNTED) <= {event for event, _ in EVENTS}
    assert set(catalogue.ENDS) == {reason.value for reason in Reason} | {"quiet", "broken"}
    assert set(catalogue.JOB_RESULTS) == {"done", "stopped", *map(_result, FAILURES)}


FAILURES = (DvuError("no"), DvuError("no", code="late"), WorkerDied("no"), SessionError("no"))


def test_each_reason_to_begin_anew_has_its_label() -> None:
    reasons = re.findall(
        r'_reset\(f?"([^"{]+)', sources.modules()["rebaser_client.jetstream.ordered.consumer"].read_text()
    )
    assert len(reasons) == 7
    labels = {reason: log_events.COUNTED["ordered_reset"][1]({"reason": reason + "1"}) for reason in reasons}
    assert [reason for reason, label in labels.items() if label == catalogue.OTHER] == ["status "]
    assert {label for label in labels.values() if label} == set(catalogue.RESETS)


def test_gauges_read_the_state() -> None:
    seen = Snapshot(
        "test",
        "serving",
        6.0,
        5.0,
        nats_rtt=0.25,
        spark="ready",
        slots=7,
        nats_version="2.15.1",
        nats_calls=8,
        sweep=Sweep(1.0, 2, 3, 4.5),
        streams={"dlq": StreamUsage(3, 99, 0.5, 1)},
        tasks_held=4,
        deletes_queued=5,
        spark_load=((6, 0), (0, 2)),
    )
    census = Census(phases={"active": 2}, updates={"owed": 1, "put_off": 1}, debt_age=4.0)
    found = {(one.name, sample.labels): sample.value for one in read_all(seen, census) for sample in one.samples}
    expected = {
        ("rebaser_ready", ()): 1, ("rebaser_draining", ()): 0, ("rebaser_slots", ()): 7, ("rebaser_spark_up", ()): 1,
        ("rebaser_nats_connected", ()): 1, ("rebaser_nats_rtt_seconds", ()): 0.25,
        ("rebaser_change_sets_owned", ("active",)): 2, ("rebaser_change_sets_owned", ("loading",)): 0,
        ("rebaser_change_sets_dvu", ("owed",)): 1, ("rebaser_debt_age_seconds_max", ()): 4.0,
        ("rebaser_stream_messages", ("dlq",)): 3, ("rebaser_stream_full_ratio", ("dlq",)): 0.5,
        ("rebaser_stream_messages", ("tasks",)): 0, ("rebaser_tasks_held", ()): 4, ("rebaser_deletes_queued", ()): 5,
        ("rebaser_spark_calls_waiting", ("small",)): 6, ("rebaser_spark_calls_waiting", ("large",)): 0,
        ("rebaser_spark_jobs_running", ("large",)): 2, ("rebaser_nats_api_in_flight", ()): 8,
        ("rebaser_stream_copies_behind", ("dlq",)): 1, ("rebaser_stream_copies_behind", ("commits",)): 0,
        ("rebaser_oldest_debt_age_seconds", ()): 4.5, ("rebaser_change_sets_dvu", ("put_off",)): 1,
        ("rebaser_build_info", (__version__, platform.python_version(), "2.15.1")): 1,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected


def test_a_histogram_counts_cumulatively_with_inclusive_bounds() -> None:
    histogram = Histogram("h", "H.", (1.0, 2.0), a=("x", "y"))
    for value in (0.5, 1.0, 1.5, 99.0):
        histogram.observe(value, "x")
    [x, y] = histogram.samples()
    assert (x.labels, x.buckets, x.value) == (("x",), (2, 3, 4), 102.0)
    assert (y.labels, y.buckets, y.value) == (("y",), (0, 0, 0), 0.0)


def test_ages_are_observed_as_seconds_and_never_negative() -> None:
    histogram = Histogram("h", "H.", (1.0, 2.0))
    histogram.series().ages.extend([2_000_000_000, 2_000_000_001, 500_000_000, 0, -(10**12)])
    [sample] = histogram.samples()
    assert sample.buckets == (3, 4, 5)
    assert sample.value == pytest.approx(4.500000001)


def test_an_exemplar_shows_in_its_bucket_and_only_in_openmetrics() -> None:
    histogram, now = Histogram("h", "H.", (1.0, 2.0)), 1_790_000_000_000_000_000
    for age, letter in (1_400_000_000, "a"), (1_500_000_000, "b"), (-5, "c"), (1_300_000_000, ""):
        histogram.series().ages.append(age)
        if letter:
            histogram.series().add_exemplar(age, letter * 32, now)
    family = Family("h", "histogram", "H.", (), tuple(histogram.samples()), histogram.bounds)
    text, _ = render([family], "application/openmetrics-text")
    assert f'h_bucket{{le="1.0"}} 1.0 # {{trace_id="{"cc" * 16}"}} 0.0 1790000000.0' in text.decode()
    assert f'h_bucket{{le="2.0"}} 4.0 # {{trace_id="{"bb" * 16}"}} 1.5 1790000000.0' in text.decode()
    assert b"+Inf" in text
    assert b"aa" not in text
    assert b"trace_id" not in render([family], "text/plain")[0]


def test_a_label_outside_the_closed_set_is_an_error() -> None:
    counter = Counter("c_total", "C.", code=("a", "b"))
    with pytest.raises(KeyError):
        counter.add(1, "c")


@pytest.fixture
def unconfigured() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("unconfigured")
def test_events_are_counted_even_if_they_are_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("error", "json", counted=True)
    log = structlog.get_logger()
    series = [
        ("rebaser_log_events_total", "sweep_failed", "warning"), ("rebaser_log_events_total", "server_ready", "info"),
        ("rebaser_log_events_total", "dvu_broken", "error"), ("rebaser_log_events_total", "other", "warning"),
        ("rebaser_requests_dead_total", "poison"), ("rebaser_requests_dead_total", "other"),
        ("rebaser_owners_fenced_total", "decide"), ("rebaser_owners_fenced_total", "dvu"),
        ("rebaser_log_events_total", "nats_not_allowed", "error"),
        ("rebaser_log_events_total", "load_failed", "warning"), ("rebaser_blobs_missing_total",),
        ("rebaser_log_events_total", "dvu_failed", "warning"),
    ]  # fmt: skip
    before = [value_of(*one) for one in series]
    log.warning("sweep_failed")
    log.info("server_ready")
    log.error("dvu_broken")
    log.warning("something a plug-in says")
    log.warning("request_dead", code="poison")
    log.warning("request_dead", code=["not", "a", "code"])
    log.warning("decide_failed", fenced=True)
    log.warning("decide_failed", fenced=False)
    log.warning("dvu_fenced")
    log.warning("load_failed", code="not_allowed")  # counts as a denial, too, because nothing else logs it
    log.warning("dvu_failed", code="blob_missing")
    log.warning("request_held", code="blob_missing")  # the blob may not have been stored yet
    assert [value_of(*one) - was for one, was in zip(series, before, strict=True)] == [1] * len(series)
    [line] = capsys.readouterr().err.splitlines()
    assert '"dvu_broken"' in line


def test_an_update_is_timed_by_how_it_ends() -> None:
    heard: list[dict[str, Any]] = []
    log = SimpleNamespace(debug=lambda event, **fields: heard.append({"event": event, **fields}))
    done, failed = (value_of("rebaser_dvu_seconds", result) for result in ("done", "failed"))
    commits: Any = SimpleNamespace(logger=log, traces=None)
    with feeds.update_runs(commits) as told:
        told["changed"] = 3
    with pytest.raises(ValueError, match="no"), feeds.update_runs(commits):
        raise ValueError("no")
    assert value_of("rebaser_dvu_seconds", "done") == done + 1
    assert value_of("rebaser_dvu_seconds", "failed") == failed + 1
    assert [(one["event"], one["result"], one.get("changed")) for one in heard] == [
        ("dvu_ended", "done", 3),
        ("dvu_ended", "failed", None),
    ]


def test_debt_is_as_old_as_what_no_update_has_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(feeds, "clock", lambda: now)
    debt = feeds.DebtClock(owes=False)
    assert debt.age() == 0.0
    debt.committed(Kind.REBASE, owes=True)
    now = 110.0
    debt.update_began()
    now = 115.0
    debt.committed(Kind.REBASE, owes=True)
    assert debt.age() == 15.0
    before = value_of("rebaser_freshness_seconds")
    debt.committed(Kind.DVU, owes=True)  # the edit at 115 is not covered
    assert value_of("rebaser_freshness_seconds") == before + 1
    assert debt.age() == 5.0
    debt.committed(Kind.DVU, owes=False)
    assert debt.age() == 0.0
    assert feeds.DebtClock(owes=True).age() == 0.0


def test_a_scrape_escapes_what_it_shows() -> None:
    family = catalogue.Family("rebaser_x", "gauge", 'Says "x"\nand y.', ("a",), ())
    body, content_type = render([family], "")
    assert b'# HELP rebaser_x Says "x"\\nand y.' in body
    assert content_type.startswith("text/plain")
    assert render([family], "application/openmetrics-text; version=1.0.0")[0].endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("limits", "full"),
    [
        ({}, 0.0),
        ({"max_msgs": -1, "max_bytes": -1}, 0.0),
        ({"max_msgs": 10}, 0.3),
        ({"max_msgs": 10, "max_bytes": 1000}, 0.9),
    ],
)
def test_a_stream_is_as_full_as_its_nearest_limit_says(limits: dict[str, int], full: float) -> None:
    info = StreamInfo(
        "s", "", limits, messages=3, bytes=900, first_sequence=1, last_sequence=3, subjects=1, consumers=0
    )
    assert _usage(info) == StreamUsage(3, 900, full)

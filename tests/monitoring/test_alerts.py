"""Tests that each fault fires its alert soon and no other alert, and that similar harmless cases fire none."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from rebaser.telemetry.catalogue import APPEND_SECONDS, REQUEST_SECONDS
from tests.docs.pages import ROOT
from tests.monitoring.alert import Alert
from tests.monitoring.fleet import (
    BEGINS,
    FAULT_AT,
    JOB,
    STEP,
    STEPS,
    TRAFFIC,
    A,
    B,
    Fault,
    event,
    fault,
    restarting,
    series,
)
from tests.monitoring.promql import check_query
from tests.monitoring.render import ALERTS, annotations, title
from tests.monitoring.scenarios import SCENARIOS

RULES = ROOT / "deploy" / "monitoring" / "alerts.yaml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: it is part of Prometheus; .ci/run gets it")
BY_NAME = {alert.name: alert for alert in ALERTS}


def promtool(*arguments: str) -> str:
    assert PROMTOOL is not None
    ran = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=120)  # noqa: PLW1510
    if ran.returncode:
        pytest.fail(ran.stdout[-4000:] + ran.stderr[-4000:], pytrace=False)
    return ran.stdout


def checked(faults: Sequence[Fault], *moments: tuple[int, str | None, dict[str, str]]) -> dict[str, Any]:
    """Return a promtool test. At each of `moments` (seconds, alert, labels), only this alert fires, or none. If several
    moments are at the same time, all their alerts fire."""
    expected = []
    for seconds in dict.fromkeys(at for at, _, _ in moments):
        for alert in ALERTS:
            firing = []
            for labels in [labels for at, fires, labels in moments if (at, fires) == (seconds, alert.name)]:
                texts = {key: filled(text, labels) for key, text in annotations(alert).items()}
                firing.append({"exp_labels": labels | {"severity": alert.severity}, "exp_annotations": texts})
            expected.append({"eval_time": f"{seconds}s", "alertname": title(alert), "exp_alerts": firing})
    return {"interval": f"{STEP}s", "input_series": series(faults), "alert_rule_test": expected}


def filled(text: str, labels: Mapping[str, str]) -> str:
    """Return the template of an annotation with the labels inserted."""
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], text)


def run(folder: Path, *tests: dict[str, Any]) -> None:
    file = folder / "tests.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": f"{2 * STEP}s", "tests": list(tests)})
    )
    promtool("test", "rules", str(file))


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


@pytest.mark.parametrize("alert", ALERTS, ids=title)
def test_an_alert_asks_for_what_servers_show(alert: Alert) -> None:
    check_query(alert.expression)


def test_each_alert_has_a_scenario() -> None:
    assert len(BY_NAME) == len(ALERTS)
    assert set(SCENARIOS) == set(BY_NAME)


@needs_promtool
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_alert_fires_soon_and_alone_and_comes_not_too_early(name: str, tmp_path: Path) -> None:
    scenario, alert = SCENARIOS[name], BY_NAME[name]
    labels = {"job": JOB, **dict(scenario.labels)}
    early, late = FAULT_AT - 2 * STEP, FAULT_AT + alert.hold + scenario.after
    quiet: list[tuple[int, str | None, dict[str, str]]] = [
        (at, None, {}) for at in range(FAULT_AT + STEP, STEP * STEPS, 120)
    ]
    run(
        tmp_path,
        checked(scenario.fault, (early, None, {}), (late, name, labels)),
        checked(scenario.quiet, *quiet),
    )


@needs_promtool
def test_a_rolling_restart_fires_nothing(tmp_path: Path) -> None:
    for instance in (A, B):
        run(tmp_path, checked(restarting(instance), *((at, None, {}) for at in range(FAULT_AT, STEP * STEPS, 30))))


_WAITING = fault("rebaser_oldest_request_age_seconds", f"45+15x{STEPS - BEGINS}")
_FAILING = fault("rebaser_log_events_total", f"2+3x{STEPS - BEGINS}", event="load_failed", instance=B)
BESIDES = {"RequestsStuck": (_WAITING,), "NoServer": (fault("rebaser_ready", 0),), "OwnersFail": (_FAILING,)}


@needs_promtool
@pytest.mark.parametrize("name", BESIDES)
def test_one_unready_server_does_not_hide_another_fault(name: str, tmp_path: Path) -> None:
    alert, faults = BY_NAME[name], [event("server_unready", instance=A), *BESIDES[name]]
    test = checked(faults, (FAULT_AT + alert.hold + 60, name, {"job": JOB}))
    # Also fires: StreamsUnavailable, for the server.
    test["alert_rule_test"] = [row for row in test["alert_rule_test"] if row["alertname"] == title(alert)]
    run(tmp_path, test)


@needs_promtool
def test_consumers_that_are_silent_again_and_again_fire_an_alert(tmp_path: Path) -> None:
    """Nobody logs that an ordered consumer was deleted: its reader notices only that no heartbeats come."""
    alert = BY_NAME["ConsumersDeleted"]
    silent = fault("rebaser_consumer_resets_total", f"1+1x{STEPS - BEGINS}", why="silent", instance=A)
    run(tmp_path, checked([silent], (FAULT_AT + alert.hold + 60, alert.name, {"job": JOB})))


def appends(every: int, upto: float | None) -> list[Fault]:
    """Return a fault: from now on, `every` appends end in each step, each of which takes longer than `upto` seconds."""
    bounds = (*(f"{bound}" for bound in APPEND_SECONDS.bounds), "+Inf")
    done, rest = BEGINS * TRAFFIC, STEPS - BEGINS
    faults = [
        fault("rebaser_append_seconds_count", f"{done}+{every}x{rest}", kind=kind) for kind in ("requests", "dvu")
    ]
    for bound in bounds[2:]:
        more = every if upto is not None and float(bound) > upto else 0
        faults += [
            fault("rebaser_append_seconds_bucket", f"{done}+{more}x{rest}", kind=kind, le=bound)
            for kind in ("requests", "dvu")
        ]
    return faults


_LONG = STEPS - BEGINS - 4
WAITS = "rebaser_append_age_seconds_max"
SLOW_DISKS = {  # after how many seconds an append ends, how many end in a step, and what waits when Prometheus looks
    "a few appends of 3 s": [*appends(4, 2.0), fault(WAITS, f"1.2x0 0.4x0 2.9x0 1.5x0 2.2x{_LONG}", instance=A)],
    "one change set, 15 s": [*appends(1, 10.0), fault(WAITS, f"4x0 12x0 9x0 3x0 7x{_LONG}", instance=A)],
    "0.7 s": [*appends(20, 0.5), fault(WAITS, f"0.5x0 0.1x0 0.6x0 0.3x0 0.4x{_LONG}", instance=A)],
    "no append ends": [*appends(0, None), fault(WAITS, f"10+15x{STEPS - BEGINS}", instance=A)],
}


@needs_promtool
@pytest.mark.parametrize("name", SLOW_DISKS)
def test_slow_appends_fire_an_alert_within_a_minute_and_until_they_end(name: str, tmp_path: Path) -> None:
    """Few appends end once they are slow, so those that ended before must not outweigh them."""
    times = range(FAULT_AT + 60, STEP * STEPS, 30)
    run(tmp_path, checked(SLOW_DISKS[name], *((at, "SlowStorage", {"job": JOB}) for at in times)))


@needs_promtool
def test_a_wrong_clock_of_nats_fires_only_clock_wrong(tmp_path: Path) -> None:
    """All servers differ from it, it stamps sweeps and requests, and the servers notice it only after seconds."""
    rest, done = STEPS - BEGINS, BEGINS * TRAFFIC
    seem_slow = f"{done}x0 {done}+{TRAFFIC}x{rest - 1}"
    bounds = [f"{bound}" for bound in REQUEST_SECONDS.bounds[2:-1]]
    faults = [
        fault("rebaser_clock_ahead_seconds", 3600),
        fault("rebaser_last_sweep_timestamp_seconds", f"{FAULT_AT - 3600}+{STEP}x{rest}", instance=A),
        *(fault("rebaser_request_seconds_bucket", seem_slow, le=bound) for bound in bounds),
    ]
    times = range(FAULT_AT + 30, STEP * STEPS, 60)
    moments = [(at, "ClockWrong", {"job": JOB, "instance": each}) for at in times for each in (A, B)]
    run(tmp_path, checked(faults, *moments))


@needs_promtool
def test_a_full_stream_of_dead_letters_fires_only_that(tmp_path: Path) -> None:
    faults = [
        fault("rebaser_stream_full_ratio", 0.97, stream="dlq"),
        fault("rebaser_log_events_total", f"8+3x{STEPS - BEGINS}", event="dead_letter_failed", instance=A),
        fault("rebaser_oldest_request_age_seconds", f"15+15x{STEPS - BEGINS}"),
    ]
    times = range(FAULT_AT + 60, STEP * STEPS, 60)
    run(tmp_path, checked(faults, *((at, "StreamFull", {"job": JOB, "stream": "dlq"}) for at in times)))


@needs_promtool
def test_a_moment_without_answers_is_no_slow_storage(tmp_path: Path) -> None:
    late = [fault("rebaser_append_retries_total", 3, why="unanswered"), fault(WAITS, f"6x0 0x{STEPS - BEGINS - 1}")]
    run(tmp_path, checked(late, *((at, "NatsStalls", {"job": JOB}) for at in (FAULT_AT + 60, FAULT_AT + 180))))


@needs_promtool
def test_processes_of_other_programs_fire_nothing(tmp_path: Path) -> None:
    test = checked([], *((at, None, {}) for at in range(FAULT_AT, STEP * STEPS, 60)))
    rest = STEPS - BEGINS
    other = {
        "process_open_fds": f"990x{STEPS}",
        "process_max_fds": f"1000x{STEPS}",
        "process_start_time_seconds": f"0x{BEGINS} {FAULT_AT}x1 {FAULT_AT + 30}x1 {FAULT_AT + 60}x{rest}",
    }
    test["input_series"] += [
        {"series": f'{name}{{job="other", instance="o:80"}}', "values": values} for name, values in other.items()
    ]
    run(tmp_path, test)

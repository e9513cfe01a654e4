"""Tests that the dashboard shows all metrics of servers and no others, with queries that Prometheus accepts."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from rebaser.telemetry.catalogue import GAUGES, INSTRUMENTS, PREFIX
from tests.docs.pages import ROOT
from tests.monitoring import dashboard
from tests.monitoring.promql import asked, check_query
from tests.monitoring.test_alerts import needs_promtool, promtool

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "monitoring" / "dashboard.json").read_text())
TARGETS = [(panel, target) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
QUERIES = [target["expr"] for _, target in TARGETS]


def filled(query: str) -> str:
    """Return a query with the variables replaced, as Grafana sends it."""
    return query.replace("$__rate_interval", "1m").replace("$job", "rebaser")


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_servers_show(query: str) -> None:
    check_query(query)
    assert query.count('job="$job"') == len(re.findall(r"\b(?:rebaser|process)_\w+", query)), "not of one installation"


def test_a_legend_names_labels_of_its_query() -> None:
    for panel, target in TARGETS:
        grouped = {
            label.strip() for found in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in found.split(",")
        }
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == grouped - {"le"}, panel["title"]


def test_every_metric_is_on_a_panel() -> None:
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for query in QUERIES for name in asked(query)}
    shown |= {name for query in QUERIES for name in asked(query)}
    assert {PREFIX + row.name for row in (*INSTRUMENTS, *GAUGES)} <= shown


def test_a_metric_without_a_panel_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "ROWS", {})
    [(_, panels)] = dashboard.rows().items()
    assert len(panels) == len(INSTRUMENTS) + len(GAUGES)
    for panel in panels:
        for query, _ in panel.queries:
            check_query(query)


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 30
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart


@needs_promtool
def test_prometheus_reads_the_queries(tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": filled(query)} for number, query in enumerate(QUERIES)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(QUERIES)} rules found" in promtool("check", "rules", str(file))

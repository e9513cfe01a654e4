"""The benchmark of stages, in its short form: it runs, every stage occurs, and the page on scale has the same
budgets."""

from pathlib import Path

import pytest

from tests.benchmarks.stages import ALL, BUDGETS, REST, STAGES, measure, parser

pytestmark = pytest.mark.bench

DOCS = Path(__file__).parents[2] / "deploy/docs/internals/scale.md"


def test_every_request_passes_every_stage() -> None:
    """Times are never asserted."""
    found = measure(parser().parse_args(["--rounds", "5", "--keys", "10"]))
    for row in found.values():
        assert set(row) == {*(stage.name for stage in STAGES), REST, ALL}
        assert all(row[stage.name] > 0 for stage in STAGES)


def test_the_docs_give_these_budgets() -> None:
    rows = [line.split("|")[1:3] for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    stated = {name.strip(): budget.strip() for name, budget in rows}
    assert {name: stated.get(name) for name in BUDGETS} == {name: f"{budget:g}" for name, budget in BUDGETS.items()}

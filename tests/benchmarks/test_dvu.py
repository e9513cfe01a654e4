"""The benchmark of updates: everything that depends on an edit is computed, and nothing else changes."""

import pytest

from rebaser.dvu.spark.engine import Engine, EngineSettings
from tests.benchmarks.dvu import Loaded, measure
from tests.benchmarks.evaluate import SHAPES
from tests.benchmarks.here import Here
from tests.support.graphs import run_here

pytestmark = pytest.mark.bench


@pytest.mark.anyio
async def test_what_is_measured_is_an_update() -> None:
    one, two, three = list(await measure(Here(), "dag", 1000, runs=1))
    assert (one["edit"], two["edit"], three["edit"]) == ("all", "root", "same")
    assert one["affected"] == one["changed"] == three["affected"] == 900
    assert 0 < two["changed"] <= two["affected"] < 900
    assert three["changed"] == 0
    loaded = Loaded("islands", 1000)
    with loaded.state.view() as view:
        assert len(run_here(view)) == 900


@pytest.mark.anyio
@pytest.mark.parametrize("shape", SHAPES)
async def test_an_edit_is_cut_off_behind_a_gate(shape: str) -> None:
    found = list(await measure(Here(), shape, 400, runs=1, edits=("1", "100", "root"), gated=True))
    inputs = len(Loaded(shape, 400).model.held)
    by_edit = {one["edit"]: one for one in found}
    expected = ("1", "100", "root") if inputs >= 100 else ("1", "root")
    assert list(by_edit) == [f"{one} {how}" for one in expected for how in ("through", "cutoff")]
    for edit, one in by_edit.items():
        assert one["affected"] > one["edited"]
        if edit.endswith("cutoff"):
            assert one["changed"] == 0
        else:
            assert one["changed"] > one["edited"]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.anyio
async def test_the_figures_of_a_million() -> None:
    async with Engine("local[*]", EngineSettings(parallelism=2)) as engine:
        await engine.ready.wait()
        for one in await measure(engine, "chain", 1_000_000, runs=3):
            print(one)

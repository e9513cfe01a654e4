"""The benchmark of updates measures what it says: all that depends on an edit is computed, and nothing else changes."""

import pytest

from rebaser.dvu.engine import Engine, EngineSettings
from tests.benchmarks.dvu import Loaded, measure
from tests.spark.graphs import run_here

pytestmark = pytest.mark.bench


class Here:
    """Enough of an engine to run a packet in this process."""

    async def evaluate(self, packets: list[bytes], *, label: str) -> list[list[bytes]]:
        from rebaser.dvu.evaluate import evaluate_packet

        assert label
        return [evaluate_packet(packet) for packet in packets]


@pytest.mark.anyio
async def test_what_is_measured_is_an_update() -> None:
    one, two, three = list(await measure(Here(), "dag", 1000, runs=1))  # type: ignore[arg-type] # all it is asked
    assert (one["edit"], two["edit"], three["edit"]) == ("all", "root", "same")
    assert one["affected"] == one["changed"] == three["affected"] == 900
    assert 0 < two["changed"] <= two["affected"] < 900
    assert three["changed"] == 0
    loaded = Loaded("islands", 1000)
    with loaded.state.view() as view:
        assert len(run_here(view)) == 900


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.anyio
async def test_the_figures_of_a_million() -> None:
    async with Engine("local[*]", EngineSettings(parallelism=2)) as engine:
        await engine.ready.wait()
        for one in await measure(engine, "chain", 1_000_000, runs=3):
            print(one)

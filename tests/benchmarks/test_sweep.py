"""The benchmark of the sweeper runs, and the sweeps publish the right tasks."""

import pytest

from tests.benchmarks.sweep import run

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_sweep() -> None:
    found = await run(300)
    assert {name: published for name, (published, _, _) in found.items()} == {
        "all stranded": 300,
        "nothing changed": 0,
        "a new sweeper": 0,
    }

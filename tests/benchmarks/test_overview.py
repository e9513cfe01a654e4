"""The benchmark of the overview runs, and both ways give the same rows."""

import pytest

from tests.benchmarks.overview import run

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_overview() -> None:
    found = await run(500, 2000, 1)
    assert set(found) == {"headers", "whole", "look", "command", "branches"}
    assert 0 < found["headers"] < found["whole"]

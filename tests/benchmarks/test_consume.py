"""The benchmarks of consuming, in their short form: every way reads every message."""

import sys
from collections.abc import Mapping
from types import ModuleType

import pytest

from tests.benchmarks import consume, ordered
from tests.benchmarks.consume import measure

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


@pytest.mark.parametrize("what", [consume, ordered])
async def test_ways_to_consume(what: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed."""
    found = await measure(what.WAYS, what.RATIOS, 1000, [64], 1)
    row: Mapping[str, float] = found["sizes"][64]
    assert all(row[ratio] > 0 for ratio in what.RATIOS)
    with capsys.disabled():
        print(f"\n  {found}", file=sys.stderr)

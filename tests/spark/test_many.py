"""The benchmark of many change sets, in its short form: all are covered, with and without a server."""

import sys

import pytest

from rebaser.dvu.spark.engine import Engine
from tests.benchmarks.many import measure_beside, parser

pytestmark = [pytest.mark.anyio, pytest.mark.spark, pytest.mark.bench]


async def test_many_change_sets_are_covered(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed."""
    options = ["--change-sets", "20", "--rounds", "1", "--singles", "1", "--large", "1000"]
    found = await measure_beside(engine, parser().parse_args(options))
    for name in ("server", "updates", "engine"):
        assert found["many"][name]["per_s"] > 0
    for name in ("single", "large"):
        assert found[name]["latency"] > 0
    with capsys.disabled():
        print(f"\n  {found['ratio']} of what the engine alone could", file=sys.stderr)

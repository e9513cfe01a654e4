"""The benchmark of many owners, in its short form: all steps run, and no change set is lost."""

import sys

import pytest

from tests.benchmarks.owners import measure, parser

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_change_sets_come_stay_and_go(capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed."""
    found = await measure(parser().parse_args(["--change-sets", "60", "--cold", "10", "--slots", "20"]))
    assert list(found) == ["cold", "owned", "beside", "handover", "takeover", "crowded"]
    assert all(figure >= 0 for step in found.values() for figure in step.values())
    with capsys.disabled():
        cold, crowded = found["cold"], found["crowded"]
        print(
            f"\n  {cold['per_s_of_2_cores']:g} cold starts/s of two busy cores; beside a full house "
            f"p50 {crowded['p50_ms']:g} ms, p99 {crowded['p99_ms']:g} ms",
            file=sys.stderr,
        )

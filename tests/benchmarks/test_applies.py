"""The benchmark of applies, in its short form: each branch is applied, whatever the size of its target."""

import pytest

from tests.benchmarks.applies import measure, parser

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_branches_are_applied_to_targets_of_all_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed."""
    found = await measure(parser().parse_args(["--values", "10", "1000", "--rounds", "1"]))
    assert {"apply 10 new", "apply 1,000 new"} < found.keys()
    assert all(figures["cpu_server"] > 0 for figures in found.values())
    with capsys.disabled():
        print(f"\napplies: {found}")

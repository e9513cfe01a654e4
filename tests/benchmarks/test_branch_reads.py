"""The benchmark of reading the past, and of branches that nobody uses, in its short form."""

import sys

import pytest

from tests.benchmarks.branch_reads import measure, parser

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_nothing_is_written_for_branches_that_nobody_uses(capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed."""
    found = await measure(parser().parse_args(["--values", "500", "--branches", "10", "--rounds", "1"]))
    assert found["written asleep"] == 0
    with capsys.disabled():
        print(f"\n  {found}", file=sys.stderr)

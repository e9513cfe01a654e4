"""The benchmark of requests, in its short form: it runs, and each counted request is in the log exactly once."""

import sys

import pytest

from tests.benchmarks.requests import PHASES, measure, parser

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_requests_beside_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed. `measure` ends with an error if a request is missing."""
    found = await measure(parser().parse_args(["--seconds", "0.3", "--rounds", "1", "--keys", "50"]))
    assert all(found["rebaser"][phase]["per_s"] > 0 for phase in PHASES)
    with capsys.disabled():
        print(
            f"\n  p50 {found['p50_ratio']} times the floor's, requests/s {found['throughput_ratio']} of the floor's",
            file=sys.stderr,
        )

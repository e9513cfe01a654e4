"""The benchmark of requests, in its short form: it runs, and every request it counted is in the log, once."""

import sys

import pytest

from tests.benchmarks.requests import measure, parser

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_requests_beside_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    """Speed is printed, never asserted: these machines are noisy. `measure` ends with an error if it is not exact."""
    found = await measure(parser().parse_args(["--seconds", "0.3", "--rounds", "1", "--keys", "50"]))
    assert all(found["rebaser"][phase]["per_s"] > 0 for phase in ("one", "many", "keys"))
    with capsys.disabled():
        print(
            f"\n  p50 {found['p50_ratio']} times the floor's, requests/s {found['throughput_ratio']} of the floor's",
            file=sys.stderr,
        )

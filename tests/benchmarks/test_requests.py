"""The benchmark of requests, in its short form: it runs, and every request it counted is in the log, once."""

import sys

import pytest

from tests.benchmarks.requests import measure

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_requests_beside_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    """Speed is printed, never asserted: these machines are noisy. `measure` ends with an error if it is not exact."""
    found = await measure(0.3, 1, warm=False)
    assert found["rebaser"]["many"]["per_s"] > 0
    with capsys.disabled():
        print(
            f"\n  p50 {found['p50_ratio']} times the floor's, throughput {found['throughput_ratio']} of the floor's",
            file=sys.stderr,
        )

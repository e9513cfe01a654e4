"""The benchmark of metrics and traces, in its short form: both servers accept requests, and one of them shows them."""

import sys

import pytest

from tests.benchmarks.telemetry import Collector, measure, parser

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_requests_with_metrics_and_traces_and_without(
    capsys: pytest.CaptureFixture[str], unused_port: int
) -> None:
    """Times are only printed."""
    found = await measure(parser().parse_args(["--seconds", "0.3", "--rounds", "1", "--port", str(unused_port)]))
    assert all(found[f"{phase} per_s"][way] > 0 for phase in ("one", "many") for way in ("on", "off"))
    assert Collector.received > 0
    with capsys.disabled():
        print(
            f"\n  requests/s with metrics and traces, of those without: {found['many per_s']['ratio']}", file=sys.stderr
        )

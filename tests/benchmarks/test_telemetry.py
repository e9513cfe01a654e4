"""The benchmark of metrics and traces, in its short form."""

import sys

import pytest

from rebaser.telemetry.catalogue import REQUESTS_DECIDED
from rebaser_core.ids import ChangeSetKey
from tests.benchmarks import telemetry_requests
from tests.benchmarks.telemetry import OFF, RECORDED, WAYS, Collector, measure, parser, system

pytestmark = pytest.mark.bench


def counted() -> float:
    return sum(sample.value for sample in REQUESTS_DECIDED.samples())


@pytest.mark.anyio
async def test_bursts_feed_metrics_and_traces_only_while_they_are_on() -> None:
    keys, received = [ChangeSetKey("bench", "a"), ChangeSetKey("bench", "b")], Collector.received
    async with system(keys) as running:
        for way, settings in WAYS.items():
            running.switch.set(**settings)
            before, recorded = counted(), running.switch.recorded
            await running.burst(2)
            assert counted() - before == (2 if settings["metrics"] else 0), way
            assert running.switch.recorded - recorded == (2 if way == RECORDED else 0), way
    assert Collector.received > received  # at the end, all spans are sent


def test_the_cost_of_metrics_and_traces(capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed."""
    received = Collector.received
    found = measure(parser().parse_args(["--seconds", "0.2", "--scrapes", "1", "--keys", "20"]))
    assert Collector.received > received, "recorded requests are sent"
    for phase in found.values():
        assert phase["ways"][OFF]["cpu"] > 0
        assert min(phase["asked"].values()) > 0
    with capsys.disabled():
        ratios = ", ".join(f"{name} {phase['ways']['on']['ratio']}" for name, phase in found.items())
        print(f"\n  throughput with metrics and traces, of that without: {ratios}", file=sys.stderr)


@pytest.mark.anyio
async def test_the_cost_of_metrics_and_traces_for_whole_requests(unused_port: int) -> None:
    arguments = ["--rounds", "2", "--seconds", "0.2", "--keys", "20", "--port", str(unused_port)]
    found = await telemetry_requests.measure(telemetry_requests.parser().parse_args(arguments))
    for phase in ("one", "many", "keys"):
        low, high = found[phase]["interval"]
        assert 0 < low <= found[phase]["ratio"] <= high

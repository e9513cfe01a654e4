"""The benchmark of few and many change sets side by side, in its short form: the logs have each request once."""

import sys
from pathlib import Path

import pytest

from tests.benchmarks.crowd import compare, parser
from tests.support.commands import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


@pytest.mark.parametrize("checkout", [None, ROOT])
async def test_requests_to_many_change_sets_beside_requests_to_few(
    checkout: Path | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times are only printed."""
    options = ["--few", "20@4", "--many", "200@16", "--rounds", "3", "--seconds", "0.3"]
    found = await compare(parser().parse_args([*options, *(["--checkout", str(checkout)] if checkout else [])]))
    assert found.ratio > 0
    assert found.first.keys() == found.second.keys() == {"per_s", "server_us", "nats_us", "client_us"}
    with capsys.disabled():
        print(f"\n  many / few: {found.ratio:g} ± {found.error:g}", file=sys.stderr)

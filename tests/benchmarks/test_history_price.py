"""The benchmark of history, in its short form."""

import sys

import pytest

from tests.benchmarks.history_price import measure, parser

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_requests_with_history_and_without(capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed. Commits that define new values cost no bytes of history."""
    found = await measure(
        parser().parse_args(["--seconds", "0.3", "--rounds", "1", "--loads", "1", "--values", "1000"])
    )
    assert all(found[f"{phase} per_s"][name] > 0 for phase in ("one", "many", "new") for name in ("kept", "none"))
    assert found["log bytes define"]["ratio"] == pytest.approx(1, abs=0.02)  # numbers have different lengths
    assert 8 <= found["memory"]["bytes"] <= 16
    assert 1 < found["log bytes overwrite"]["ratio"] < 1.5
    with capsys.disabled():
        print(f"\n  requests/s with history, of those without: {found['many per_s']['ratio']}", file=sys.stderr)

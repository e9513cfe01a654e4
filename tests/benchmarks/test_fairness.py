"""The benchmark of fairness, in its short form: every caller gets answers while the flood goes on."""

import sys

import pytest

from tests.benchmarks.fairness import measure, parser

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_a_flood_beside_the_requests_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed. The flood ends after the victim's last answer."""
    found = await measure(parser().parse_args(["--seconds", "0.3", "--rounds", "1", "--backlog", "500"]))
    for phase in ("alone", "beside", "share", "backlog"):
        assert found[phase]["requests"] > 0
    assert 0 < found["share"]["share"] < 1
    with capsys.disabled():
        print(
            f"\n  share of two {found['share']['share']}, turns of the flood {found['beside']['meanwhile_p50'] / 32:g}",
            file=sys.stderr,
        )

"""The benchmark of forks, in its short form: every parent is forked, and no value is lost."""

import pytest

from tests.benchmarks.forks import measure, parser

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_parents_of_all_sizes_are_forked(capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed."""
    short = [
        "--values",
        "10",
        "--tail",
        "0",
        "100",
        "--forks",
        "10",
        "--singly",
        "3",
        "--rounds",
        "1",
        "--commits",
        "200",
    ]
    found = await measure(parser().parse_args(short))
    assert list(found) == ["p10-0 new", "p10-100 new", "moved new", "worst new"]
    assert all(figures["bytes"] < 8 * 1024 for name, figures in found.items() if name.startswith("p10"))
    with capsys.disabled():
        print(f"\nforks: {found}")

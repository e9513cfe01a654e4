"""The benchmark of the blocking client, in its short form."""

import sys

import pytest

from tests.benchmarks.blocking import measure, parser, table

pytestmark = pytest.mark.bench


def test_what_a_blocking_call_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed."""
    found = measure(parser().parse_args(["--rounds", "2", "--calls", "20"]))
    assert set(found) == {"nothing", "exists", "enqueue_updates"}
    for row in found.values():
        assert row["blocking"] > 0
        assert row["asynchronous"] > 0
    with capsys.disabled():
        print(f"\n{table(found)}", file=sys.stderr)

"""The benchmark of large files, in its short form: it runs, and no update or value is missing."""

import sys

import pytest

from tests.benchmarks.bulk import measure

pytestmark = pytest.mark.bench


def test_a_large_file_beside_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed. `measure` ends with an error if a value is wrong."""
    found = measure(3000, 1)
    with capsys.disabled():
        shown = ", ".join(f"{name} {row['ratio']}" for name, row in found.items() if name != "floor")
        print(f"\n  times the floor: {shown}", file=sys.stderr)

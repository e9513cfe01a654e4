"""The benchmark of garbage collection: its short form, and the long one with 100,000 blobs."""

import pytest

from tests.benchmarks.garbage import measure, parser

pytestmark = [pytest.mark.anyio, pytest.mark.bench, pytest.mark.spark]


@pytest.mark.parametrize(
    ("blobs", "change_sets"), [(1000, 20), pytest.param(100_000, 1000, marks=pytest.mark.long)], ids=["short", "long"]
)
async def test_garbage_is_found_among_many_blobs(
    blobs: int, change_sets: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times are only printed."""
    given = ["--blobs", str(blobs), "--change-sets", str(change_sets), "--garbage", "50"]
    found = await measure(parser().parse_args(given))
    assert (found["blobs"], found["garbage"], found["trashed"]) == (blobs + 50, 50, 50)
    with capsys.disabled():
        print(f"\ngarbage: {found}")

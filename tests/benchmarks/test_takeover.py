"""The benchmark of takeovers, in its short form: one kill, with a short ack wait."""

import sys

import pytest

from rebaser.settings import Settings
from tests.benchmarks.takeover import measure

pytestmark = [pytest.mark.anyio, pytest.mark.bench]


async def test_a_killed_owner_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """Times are only printed."""
    found = await measure(1, ack_wait=1)
    assert len(found["seconds"]) == 1
    with capsys.disabled():
        print(f"\n  taken over after {found['max']} s, with an ack wait of {found['ack_wait']} s", file=sys.stderr)


def test_the_default_leaves_time_for_the_load_within_ten_seconds() -> None:
    assert Settings.model_fields["ack_wait"].default <= 8

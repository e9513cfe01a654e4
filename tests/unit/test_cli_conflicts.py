"""`rebaser conflicts`, without a server."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from rebaser.cli.commands.branching.conflicts import show_found
from rebaser_client import BranchConflict, BranchInfo, Set


def test_how_to_settle_conflicts_is_told_after_they_were_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The conflicts may be shown in a pager, which hides earlier output."""
    shown = ""

    @contextmanager
    def pager() -> Iterator[None]:
        nonlocal shown
        yield
        shown, told = capsys.readouterr()
        assert told == ""

    info = BranchInfo("shop", "fix", 7, datetime.now(UTC), target="main")
    show_found(info, [BranchConflict("price", Set("price", 1), Set("price", 2), None)], False, pager())
    assert "price" in shown
    assert "to settle: rebaser resolve shop fix price --take main" in capsys.readouterr().err

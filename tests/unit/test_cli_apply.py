"""`rebaser apply`, without a server: what it asks, and what it does if the target is edited all the time."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from rebaser.cli import connect, logs
from rebaser.cli.commands.branching.apply import ATTEMPTS, apply
from rebaser.cli.errors import CommandFailed
from rebaser_client import BranchChange, BranchDiff, BranchInfo, EnqueueUpdatesResponse, RequestRejected, Set
from rebaser_core.ids import RequestId
from rebaser_core.response import Failure, Success

INFO = BranchInfo("shop", "fix", 7, datetime.now(UTC), target="main", base=4)
BEFORE = 5  # the log sequence of the target when the command begins


class BusyTarget:
    """Stands in for a client. The target is edited before each apply arrives, and `theirs` says what it has then."""

    def __init__(self, theirs: Callable[[int], int], *, refuses: bool) -> None:
        self.newest = BEFORE
        self.expected: list[int | None] = []
        self._theirs = theirs
        self._refuses = refuses  # even if nothing is expected

    async def branch(self, *_: object, **__: object) -> BranchInfo:
        return INFO

    async def rebase(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(commit=None)

    async def changes(self, *_: object, **__: object) -> BranchDiff:
        theirs = Set("price", self._theirs(self.newest))
        return BranchDiff(INFO, self.newest, (BranchChange("price", theirs, Set("price", 10), theirs),))

    async def apply(self, *_: object, expect_at: int | None, **__: object) -> EnqueueUpdatesResponse:
        self.expected.append(expect_at)
        self.newest += 1
        moved = self._refuses or (expect_at is not None and self.newest > expect_at)
        status = Failure("moved", "edited since") if moved else Success(1, self.newest + 1)
        response = EnqueueUpdatesResponse(RequestId("r"), "shop", "main", status)
        if moved:
            raise RequestRejected(RequestId("r"), response)
        return response


class Run:
    """Runs the command on a terminal, where each question is answered with yes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self._monkeypatch = monkeypatch

    def __call__(
        self, theirs: Callable[[int], int] = lambda _: 1, *, refuses: bool = False, **options: Any
    ) -> BusyTarget:
        target = BusyTarget(theirs, refuses=refuses)

        @asynccontextmanager
        async def connect_client(nats: str, prefix: str) -> AsyncIterator[BusyTarget]:
            yield target

        def confirm(*_: object, **__: object) -> bool:
            self.asked += 1
            return True

        self._monkeypatch.setattr(connect, "connect_client", connect_client)
        self._monkeypatch.setattr(logs, "configure", lambda *_: None)  # it would remain for all later tests
        self._monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
        self._monkeypatch.setattr(typer, "confirm", confirm)
        assert apply("shop", "fix", **options) == 0
        return target


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


@pytest.mark.parametrize("at", [None, "7"])
def test_changes_that_stay_the_same_are_confirmed_once_and_applied_to_a_busy_target(run: Run, at: str | None) -> None:
    target = run(at=at)
    assert run.asked == 1
    assert target.expected == [*range(BEFORE, BEFORE + ATTEMPTS - 1), None]


def test_changes_that_differ_are_confirmed_again(run: Run) -> None:
    """The value of the target is edited before the first and before the second apply."""
    run(lambda newest: min(newest, BEFORE + 2))
    assert run.asked == 3


def test_a_number_of_another_type_is_another_change(run: Run) -> None:
    run(lambda newest: 1 if newest == BEFORE else True)
    assert run.asked == 2


def test_with_yes_nothing_is_expected_and_nothing_is_asked(run: Run) -> None:
    assert (run(yes=True).expected, run.asked) == ([None], 0)


def test_the_advice_fits_the_options(run: Run) -> None:
    with pytest.raises(CommandFailed) as failed:
        run(refuses=True)
    assert "main is edited too often: apply fix again later" in failed.value.message
    options: tuple[dict[str, Any], ...] = ({"yes": True}, {"strict": True}, {})
    for option in options:
        with pytest.raises(CommandFailed, match="apply fix again without --at"):
            run(refuses=True, at="7", **option)
    with pytest.raises(CommandFailed, match="name the new positions with --at and --expect"):
        run(at="7", expect=f"main@{BEFORE}")

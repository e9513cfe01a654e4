"""Outcomes of requests are forgotten in one pass, and not for each commit."""

import pytest

from rebaser_core.commit import Commit, Decision, Kind, Outcome
from rebaser_core.ids import RequestId
from rebaser_core.state import change_set
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.outcomes import RecordedOutcome, forget


def outcome(name: str, at_ms: int) -> RecordedOutcome:
    return RecordedOutcome(Decision(1, RequestId(name), Outcome.SUCCESS), 1, at_ms)


def test_the_oldest_outcomes_are_forgotten_up_to_the_first_that_is_young_enough() -> None:
    times = {"a": 5, "b": 9, "c": 10, "d": 8}  # `d` was recorded after `c` by a clock that is behind
    outcomes = {RequestId(name): outcome(name, at_ms) for name, at_ms in times.items()}
    forget(outcomes, 10)
    assert list(outcomes) == ["c", "d"]
    forget(outcomes, 11)
    assert not outcomes
    forget(outcomes, 12)


def test_outcomes_are_looked_through_only_when_the_time_to_forget_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time passes the places of all outcomes that were forgotten before."""
    calls: list[int] = []

    def forget_and_note(outcomes: dict[RequestId, RecordedOutcome], before_ms: int) -> None:
        calls.append(before_ms)
        forget(outcomes, before_ms)

    monkeypatch.setattr(change_set, "forget", forget_and_note)
    state = ChangeSetState()
    for number in range(1, 41):
        at, request = 1000 + number, RequestId(f"r{number}")
        decided = (Decision(number, request, Outcome.SUCCESS),)
        before = at // 10 * 10 - 20
        commit = Commit(
            f"c{number}", 2 * number - 2, Kind.REBASE, at, "o", None, None, decided, forget_before_ms=before
        )
        state.fold(2 * number - 1, commit)
        update = Commit(f"u{number}", 2 * number - 1, Kind.DVU, at, "o", state.applied, None)  # it has no such time
        state.fold(2 * number, update)
    assert [before for before in calls if before > 0] == [980, 990, 1000, 1010, 1020]
    assert list(state.outcomes) == [f"r{number}" for number in range(20, 41)]

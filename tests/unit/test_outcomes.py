"""What is remembered of decided requests, and when it is forgotten."""

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser.change_set.attempts.held_requests import HeldRequests
from rebaser.change_set.attempts.poison import POISON, PoisonDetector
from rebaser_core.checkpoint.chain import Chain
from rebaser_core.checkpoint.writer import CheckpointDraft
from rebaser_core.commit import BlobRef, Commit, Decision, Kind, Outcome
from rebaser_core.decisions.deletion import remembered_outcomes
from rebaser_core.ids import RequestId
from rebaser_core.response import Conflict
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.outcomes import Outcomes, RecordedOutcome, pack, unpack

SUCCESS = Decision(1, RequestId("r"), Outcome.SUCCESS)
# For each field of a decision, a value that the outcome of a request that was applied usually does not have.
UNUSUAL: dict[str, Any] = {
    "sequence": 2**63,
    "outcome": Outcome.ERROR,
    "performed": 2**70,
    "code": "stale",
    "message": "why",
    "redrive": 1,
    "attempts": 2,
    "conflicts": (Conflict("a", "why"),),
    "digest": b"another",
    "position": 3,
    "unresolved": 4,
    "result": BlobRef("address", 5),
}


def recalled(decision: Decision, commit: int, at_ms: int) -> RecordedOutcome:
    return unpack(decision.request_id, pack(decision, commit, at_ms))


def everything(decision: Decision) -> list[Any]:
    """Return all fields, including those that are not compared."""
    return [getattr(decision, field.name) for field in fields(decision)]


@given(
    st.integers(0, 2**64), st.integers(0, 2**64), st.integers(0, 2**64), st.integers(0, 2**64),
    st.binary(max_size=40), st.text(min_size=1),
)  # fmt: skip
def test_the_outcome_of_an_applied_request_is_remembered_whole(
    sequence: int, performed: int, commit: int, at_ms: int, digest: bytes, name: str
) -> None:
    decision = Decision(sequence, RequestId(name), Outcome.SUCCESS, performed, digest=digest)
    found = recalled(decision, commit, at_ms)
    assert (everything(found.decision), found.commit, found.at_ms) == (everything(decision), commit, at_ms)


@pytest.mark.parametrize("field", [field.name for field in fields(Decision) if field.name != "request_id"])
def test_each_field_of_an_outcome_is_remembered(field: str) -> None:
    decision = replace(SUCCESS, **{field: UNUSUAL[field]})
    found = recalled(decision, 7, 8)
    assert (everything(found.decision), found.commit, found.at_ms) == (everything(decision), 7, 8)


def test_outcomes_are_read_from_the_oldest_to_the_newest() -> None:
    outcomes = Outcomes()
    for commit, name in enumerate("cab", 1):
        decision = replace(SUCCESS, request_id=RequestId(name), message="why" if name == "a" else "")
        outcomes[decision.request_id] = pack(decision, commit, 10 * commit)
    assert [(one.decision.request_id, one.at_ms) for one in outcomes.unpacked()] == [("c", 10), ("a", 20), ("b", 30)]
    assert [list(outcomes.newer_than(commit)) for commit in range(4)] == [["c", "a", "b"], ["a", "b"], ["b"], []]
    assert outcomes.newer_than(0) is not outcomes  # a copy, which does not change when outcomes are added
    assert [one.decision.request_id for one in outcomes.since(20)] == ["a", "b"]
    assert [one.decision.request_id for one in outcomes.unusual()] == ["a"]


def test_what_a_loaded_change_set_looks_for_is_found_without_unpacking_all_outcomes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change set may have a million. To unpack them would block the event loop for seconds."""
    state = ChangeSetState()
    for number in range(20):
        state.remember(replace(SUCCESS, sequence=number, request_id=RequestId(f"r{number}")), 5, 10)
    dead = replace(SUCCESS, request_id=RequestId("dead"), outcome=Outcome.DEAD, code=POISON, message="it kills servers")
    state.remember(dead, 6, 20)
    state.remember(replace(dead, request_id=RequestId("again"), redrive=1), 7, 30)
    unpacked: list[str] = []

    def note(request_id: RequestId, packed: bytes | RecordedOutcome) -> RecordedOutcome:
        unpacked.append(request_id)
        return unpack(request_id, packed)

    monkeypatch.setattr("rebaser_core.state.outcomes.unpack", note)
    settings = SimpleNamespace(retry_for=1.0, batch_max_requests=2)
    context, commits = cast("Any", SimpleNamespace(settings=settings)), cast("Any", SimpleNamespace(state=state))
    held = HeldRequests(context, commits)
    assert held._budget._exhausted == {POISON: 30}
    detector = PoisonDetector(context, commits, redelivered=False, after=9, until=9, hung=lambda: False)
    assert detector._poison_ids == {"dead", "again"}
    with state.view() as view:
        CheckpointDraft(state, view, Chain())
        assert not unpacked
    remembered = remembered_outcomes(state, 20)
    assert (next(remembered).decision.request_id, unpacked) == ("dead", ["dead"])


def test_the_oldest_outcomes_are_forgotten_up_to_the_first_that_is_young_enough() -> None:
    outcomes = Outcomes()
    # `d` was recorded after `c` by a clock that is behind.
    for name, at_ms in {"a": 5, "b": 9, "c": 10, "d": 8}.items():
        message = "why" if name in "bd" else ""  # what fits into bytes, and what does not
        outcomes[RequestId(name)] = pack(replace(SUCCESS, request_id=RequestId(name), message=message), 1, at_ms)
    outcomes.forget(10)
    assert list(outcomes) == ["c", "d"]
    outcomes.forget(11)
    assert not outcomes
    outcomes.forget(12)


def test_outcomes_are_looked_through_only_when_the_time_to_forget_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time passes the places of all outcomes that were forgotten before."""
    calls: list[int] = []

    forget = Outcomes.forget

    def forget_and_note(outcomes: Outcomes, before_ms: int) -> None:
        calls.append(before_ms)
        forget(outcomes, before_ms)

    monkeypatch.setattr(Outcomes, "forget", forget_and_note)
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

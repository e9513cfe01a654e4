"""Tests which branches can be applied to a target, and what a protected change set refuses."""

from typing import Any

import pytest

from rebaser_core.branches.branch import Action, Apply, Branch, Contested, Create, Fork, Rebase
from rebaser_core.branches.merge import Merged, PatchEntry
from rebaser_core.checkpoint.chain import Chain
from rebaser_core.commit import (
    Applied,
    BranchStatus,
    BranchSummary,
    Commit,
    Decision,
    Kind,
    Marking,
    Outcome,
    Reverts,
    Source,
)
from rebaser_core.decisions.apply import Offer, check_source, check_target
from rebaser_core.decisions.decide import DecidedBatch, decide
from rebaser_core.decisions.queued_request import QueuedRequest, Restored
from rebaser_core.encoding.envelope import CBOR, dumps
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, decode
from rebaser_core.messages.content_digest import digest_of
from rebaser_core.state.change_set import BrokenChain, ChangeSetState
from rebaser_core.state.outcomes import Outcomes
from rebaser_core.updates import Derive, Recompute, Set

OPEN = BranchSummary("main", 10, BranchStatus.OPEN, 1, 0, "main", 10)
CLOSED = BranchSummary("main", 10, BranchStatus.CLOSED, 1, 0, "main", 10)
DELETED = BranchSummary("main", 10, BranchStatus.DELETED, 0, 0, "main", 10)
CONFLICTING = BranchSummary("main", 10, BranchStatus.OPEN, 1, 2, "main", 10)
ELSEWHERE = BranchSummary("other", 10, BranchStatus.OPEN, 1, 0, "other", 10)
SOURCE = Source("fix", 20)
PATCH = (PatchEntry("a", Set("a", 1), Set("a", 2)),)


def code_of(error: UnprocessableError | None) -> str:
    return "" if error is None else error.code


@pytest.mark.parametrize(
    ("now", "then", "code"),
    [
        (OPEN, OPEN, ""),
        (CLOSED, OPEN, "closed"),
        (DELETED, OPEN, "deleted"),
        (OPEN, DELETED, "deleted"),  # the change set was deleted at that position, and restored later
        (OPEN, None, "not_its_target"),
        (None, None, "not_its_target"),
        (OPEN, ELSEWHERE, "not_its_target"),
        (ELSEWHERE, OPEN, ""),
        (OPEN, CONFLICTING, "unresolved"),
        (CONFLICTING, OPEN, ""),
        (CLOSED, ELSEWHERE, "closed"),
    ],
)
def test_a_branch_is_applied_as_it_was_if_it_is_open_now(
    now: BranchSummary | None, then: BranchSummary | None, code: str
) -> None:
    try:
        check_source("main", SOURCE, now, then)
        found = ""
    except UnprocessableError as error:
        found = error.code
    assert found == code


def target(**fields: Any) -> ChangeSetState:
    state = ChangeSetState()
    commit = Commit("c", 0, Kind.REBASE, 0, "o", None, None, delta=(Set("a", 1), Set("b", 1)), before=())
    state.fold(5, commit)
    for name, value in fields.items():
        setattr(state, name, value)
    return state


@pytest.mark.parametrize(
    ("state", "strict", "code"),
    [
        (target(), False, ""),
        (target(), True, ""),
        (target(edited=10), True, ""),
        (target(edited=11), True, "moved"),
        (target(edited=11), False, ""),
        (target(taken={"fix": 10}), False, ""),
        (target(taken={"fix": 11}), False, "behind"),
        (target(taken={"other": 11}), False, ""),
        (target(branch=Branch(10)), False, ""),
        (target(branch=Branch(11)), False, "moved"),
    ],
)
def test_a_target_takes_what_was_branched_from_it_and_was_not_taken_since(
    state: ChangeSetState, strict: bool, code: str
) -> None:
    assert code_of(check_target(state, Apply("fix", strict=strict), Offer(SOURCE, 10, PATCH))) == code


@pytest.mark.parametrize(("edited", "expect_at", "code"), [(20, 20, ""), (21, 20, "moved"), (21, None, "")])
def test_a_target_that_was_edited_after_the_expected_position_takes_nothing(
    edited: int, expect_at: int | None, code: str
) -> None:
    """The edit is of another value than those that the branch changed, and is after the base."""
    about = {"action": Apply("fix"), "offer": Offer(SOURCE, 10, PATCH), "patch": PATCH}
    done = ask(target(edited=edited), expect_at=expect_at, **about)
    assert (done.decisions[0].code, done.source) == (code, None if code else SOURCE)


def ask(state: ChangeSetState, **fields: Any) -> DecidedBatch:
    patch = fields.get("patch", ())
    merged = Merged()
    merged.add(state.cells.edit_of, patch)
    request = QueuedRequest(1, RequestId("r"), **fields, merged=merged if patch else None)
    return decide(state, Applied("s", 0), [request])


def test_an_apply_is_all_or_nothing() -> None:
    offer = Offer(SOURCE, 10, PATCH)
    done = ask(target(), action=Apply("fix"), offer=offer, patch=PATCH)
    assert (done.decisions[0].outcome, done.delta, done.source) == (Outcome.SUCCESS, (Set("a", 2),), SOURCE)
    mixed = (*PATCH, PatchEntry("b", Set("b", 0), Set("b", 2)))
    done = ask(target(), action=Apply("fix"), offer=Offer(SOURCE, 10, mixed), patch=mixed)
    assert (done.decisions[0].outcome, done.delta, done.source) == (Outcome.CONFLICTS, (), None)
    assert done.decisions[0].message == "edited on both sides: b"
    done = ask(target(taken={"fix": 11}), action=Apply("fix"), offer=offer, patch=PATCH)
    assert (done.decisions[0].code, done.delta, done.source) == ("behind", (), None)


def test_a_protected_change_set_takes_branches_and_recomputes_only() -> None:
    state = target(protected=True)
    state.fold(6, Commit("c", 5, Kind.REBASE, 0, "o", None, None, delta=(Derive("d", "sum", {"of": "a"}),), before=()))
    assert ask(state, updates=(Set("a", 2),)).decisions[0].code == "protected"
    assert ask(state, action=Reverts(5, 5)).decisions[0].code == "protected"
    refusal = UnprocessableError("gone", code="purged")
    assert ask(state, action=Reverts(5, 5), refusal=refusal).decisions[0].code == "protected"
    for allowed in (
        {"recompute": Recompute()},
        {},
        {"action": Apply("fix"), "offer": Offer(SOURCE, 10, PATCH), "patch": PATCH},
        {"action": Marking(protected=False)},
    ):
        assert ask(state, **allowed).decisions[0].outcome is Outcome.SUCCESS, allowed


def test_only_what_exists_is_protected_and_a_commit_says_so() -> None:
    assert ask(ChangeSetState(), action=Marking(protected=True)).decisions[0].code == "no_such_change_set"
    state = target()
    done = ask(state, action=Marking(protected=True))
    assert done.marking == Marking(protected=True)
    state.fold(6, Commit("c", 5, Kind.MARK, 0, "o", None, None, marking=done.marking))
    assert (state.protected, state.edited) == (True, 5)
    state.fold(7, Commit("c", 6, Kind.CHECKPOINT, 0, "o", None, None))
    assert state.protected
    state.fold(8, Commit("c", 7, Kind.MARK, 0, "o", None, None, marking=Marking(protected=False)))
    assert not state.protected


ASKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "edit": {"updates": (Set("a", 2),)},
    "recompute": {"recompute": Recompute()},
    "revert": {"action": Reverts(5, 5), "patch": PATCH},
    "apply": {"action": Apply("fix"), "offer": Offer(SOURCE, 10, PATCH), "patch": PATCH},
    "rebase": {"action": Rebase()},
    "protect": {"action": Marking(protected=True)},
    "unprotect": {"action": Marking(protected=False)},
    "close": {"action": Marking(status=BranchStatus.ABANDONED)},
    "reopen": {"action": Marking(status=BranchStatus.OPEN)},
    "delete": {"action": Marking(status=BranchStatus.DELETED)},
}
MARKS = dict.fromkeys(("protect", "unprotect", "close", "reopen", "delete"), "no_such_change_set")
CHANGES = dict.fromkeys(("edit", "recompute", "revert", "apply", "rebase"), "closed")
REFUSED: dict[str, dict[str, str]] = {
    "open": {},
    "protected": dict.fromkeys(("edit", "revert", "rebase", "delete"), "protected"),
    **{status: CHANGES for status in BranchStatus if status not in (BranchStatus.OPEN, BranchStatus.DELETED)},
    "closed and protected": {**CHANGES, "delete": "protected"},
    "deleted": dict.fromkeys(ASKED, "deleted"),
    "never edited": {**MARKS, "recompute": "nothing_to_recompute", "revert": "conflicts", "apply": "conflicts"},
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("status", REFUSED)
def test_what_each_change_set_refuses_by_what_is_asked(status: str, asked: str) -> None:
    marks = {"protected": BranchStatus.OPEN, "closed and protected": BranchStatus.CLOSED, "never edited": "open"}
    branch = Branch(3, "main", 2, "main", 2, BranchStatus(marks.get(status, status)))
    state = target(branch=branch, protected=status.endswith("protected"))
    derived = (Derive("d", "sum", {"of": "a"}),)
    state.fold(6, Commit("c", 5, Kind.REBASE, 0, "o", None, None, delta=derived, before=()))
    if status == "never edited":
        state = ChangeSetState()
        state.branch, state.last = branch, 6
    assert ask(state, **ASKED[asked]).decisions[0].code == REFUSED[status].get(asked, "")


@pytest.mark.parametrize("status", [BranchStatus.CLOSED, BranchStatus.APPLIED, BranchStatus.ABANDONED])
def test_a_closed_change_set_takes_neither_edits_nor_branches(status: BranchStatus) -> None:
    state = target(branch=Branch(5, status=status))
    done = ask(state, action=Apply("fix"), offer=Offer(SOURCE, 10, PATCH), patch=PATCH)
    assert done.decisions[0].code == "closed"
    assert ask(state, updates=(Set("a", 2),)).decisions[0].code == "closed"
    assert ask(state, action=Reverts(5, 5)).decisions[0].code == "closed"
    assert ask(state, action=Marking(protected=True)).marking is not None
    assert ask(state, action=Marking(status=BranchStatus.OPEN)).marking is not None


@pytest.mark.parametrize(
    "asked",
    [
        {"updates": (Set("a", 2),)},
        {},
        {"recompute": Recompute()},
        {"action": Reverts(5, 5), "refusal": UnprocessableError("gone", code="purged")},
        {"action": Apply("fix"), "refusal": UnprocessableError("gone", code="no_such_change_set")},
        {"action": Marking(protected=True)},
        {"action": Marking(status=BranchStatus.DELETED)},
        {"action": Marking(status=BranchStatus.ABANDONED)},
    ],
)
def test_a_deleted_change_set_refuses_all_but_to_be_created_or_brought_back(asked: dict[str, Any]) -> None:
    state = target(branch=Branch(0, status=BranchStatus.DELETED))
    assert ask(state, **asked).decisions[0].code == "deleted"
    assert ask(state, action=Create(), fork=Fork(OPEN)).fork is not None
    restored = Restored(target(), Chain())
    assert ask(state, action=Marking(status=BranchStatus.OPEN), restored=restored).restored == restored
    purged = UnprocessableError("gone", code="purged")
    assert ask(state, action=Marking(status=BranchStatus.OPEN), refusal=purged).decisions[0].code == "purged"


def test_what_is_deleted_keeps_its_outcomes_and_nothing_else() -> None:
    branch = Branch(3, "main", 2, "main", 2, changes={"a": None}, conflicts={"a": Contested(None, 4)})
    state = target(taken={"fix": 5}, branch=branch)
    state.remember(Decision(1, RequestId("r"), Outcome.SUCCESS), 5, 0)
    deletes = Commit("c", 5, Kind.MARK, 0, "o", None, None, marking=Marking(status=BranchStatus.DELETED))
    emptied = state.emptied()
    outcomes = Outcomes(state.outcomes)
    for one in (state, emptied):
        one.fold(6, deletes)
        assert (len(one.cells), one.edited, one.taken, one.outcomes) == (0, 0, {}, outcomes)
        assert (one.last, one.status, one.owes) == (6, BranchStatus.DELETED, False)
        assert one.branch == Branch(3, "main", 2, "main", 2, BranchStatus.DELETED)
    back = Commit("c", 6, Kind.MARK, 0, "o", None, None, marking=Marking(status=BranchStatus.OPEN))
    assert emptied.replaced_by(back)
    with pytest.raises(BrokenChain):
        emptied.fold(7, back)
    before = target()
    before.restore(emptied)
    assert (before.last, before.status, before.outcomes, len(before.cells)) == (6, BranchStatus.OPEN, outcomes, 2)
    before.fold(7, back)


def test_a_mark_may_expect_that_nothing_happened_since() -> None:
    for at, code in ((4, "moved"), (5, ""), (6, "")):
        done = ask(target(), action=Marking(status=BranchStatus.DELETED), expect_at=at)
        assert done.decisions[0].code == code


@pytest.mark.parametrize(("dead_at", "born", "code"), [(0, 9, "deleted"), (8, 9, "deleted"), (9, 9, ""), (0, 0, "")])
def test_a_dead_letter_is_not_applied_to_a_change_set_that_was_created_later(
    dead_at: int, born: int, code: str
) -> None:
    state = target(born_ms=born)
    (decided,) = ask(state, updates=(Set("a", 2),), redrive=1, dead_at_ms=dead_at).decisions
    assert (decided.code, decided.outcome is Outcome.DEAD) == (code, bool(code))
    assert ask(state, updates=(Set("a", 2),)).decisions[0].outcome is Outcome.SUCCESS


def test_a_protected_change_set_cannot_be_deleted() -> None:
    deleting = {"action": Marking(status=BranchStatus.DELETED)}
    assert ask(target(protected=True), **deleting).decisions[0].code == "protected"
    assert ask(target(), **deleting).marking is not None
    assert ask(ChangeSetState(), **deleting).decisions[0].code == "no_such_change_set"


def test_a_mark_closes_a_change_set_and_reopens_it() -> None:
    assert ask(ChangeSetState(), action=Marking(status=BranchStatus.ABANDONED)).decisions[0].code == (
        "no_such_change_set"
    )
    state = target(protected=True)
    for sequence, status in enumerate((BranchStatus.ABANDONED, BranchStatus.APPLIED, BranchStatus.OPEN), 6):
        done = ask(state, action=Marking(status=status))
        assert done.marking == Marking(status=status)
        state.fold(sequence, Commit("c", sequence - 1, Kind.MARK, 0, "o", None, None, marking=done.marking))
        assert (state.branch and state.branch.status, state.protected, state.edited) == (status, True, 5)
    state.protected = False
    assert ask(state, updates=(Set("a", 2),)).decisions[0].outcome is Outcome.SUCCESS


@pytest.mark.parametrize(
    "body",
    [
        {"apply": {"from": "fix"}, "mark": {"protected": True}},
        {"apply": {"from": "fix"}, "create": {}},
        {"apply": {"from": "fix"}, "updates": []},
        {"apply": {"from": "fix"}, "recompute": {}},
        {"apply": {}},
        {"apply": {"from": "a.b"}},
        {"apply": {"from": "fix", "at": -1}},
        {"apply": {"from": "fix", "patch": []}},
        {"mark": {}},
        {"mark": {"protected": 1}},
        {"mark": {"protected": True, "status": "open"}},
        {"mark": {"status": "kept"}},
    ],
)
def test_a_request_asks_for_one_thing(body: dict[str, Any]) -> None:
    headers = {
        "X-CONTENT-TYPE": "application/cbor",
        "X-MESSAGE-TYPE": "EnqueueUpdatesRequest",
        "X-MESSAGE-VERSION": "4",
    }
    wire = {"id": "r", "workspaceId": "ws", "changeSetId": "main", **body}
    with pytest.raises(UnprocessableError):
        decode(headers, dumps(CBOR, {"v4": wire}), expect=EnqueueUpdatesRequest)


def test_every_field_of_an_action_is_in_the_digest() -> None:
    actions: list[Action] = [
        Apply("fix"),
        Apply("fox"),
        Apply("fix", 1),
        Apply("fix", strict=True),
        Apply("fix", allow_stale=True),
        Marking(protected=True),
        Marking(protected=False),
        Marking(status=BranchStatus.OPEN),
        Marking(status=BranchStatus.APPLIED),
        Marking(status=BranchStatus.DELETED),
        Create("fix"),
    ]
    assert len({digest_of((), None, None, None, action) for action in actions}) == len(actions)

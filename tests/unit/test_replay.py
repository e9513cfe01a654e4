"""Tests what a branch takes over from its target, and what is in conflict, for each combination of definitions."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from rebaser_core.branches.branch import Branch, Contested, Rebase
from rebaser_core.branches.merge import Definition, definition_of
from rebaser_core.commit import Applied, BranchStatus, Commit, Kind, Source, Strategy
from rebaser_core.decisions.decide import decide
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.decisions.replay import Replayed, TargetCommits, Theirs, check_moves, refuse_rebase
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.comparison import definitions_that_differ
from rebaser_core.updates import Derive, Remove, Set, Unset, Update
from tests.support import branch_books as model
from tests.support.branches import World

DEFINITIONS: tuple[Definition, ...] = (None, Set("a", 1), Set("a", 1.0), Unset("a"), Derive("a", "sum", {"x": "b"}, {}))
STRATEGIES: tuple[model.Strategy, ...] = ("record", "ours", "theirs")


def place(definition: Definition) -> model.Definition:
    """Return the definition in the model, in which None means that there is none."""
    return None if definition is None else 1 + [repr(one) for one in DEFINITIONS].index(repr(definition))


def placed(updates: list[Update]) -> model.Definitions:
    return {update.id: place(definition_of(update)) for update in updates}


def replayed(branch: Branch, here: Definition, strategy: Strategy, theirs: Theirs) -> Replayed:
    found = Replayed(branch, theirs, strategy)
    assert sum(1 for _ in found.compare(lambda _: here, 1)) <= 1
    return found


def folded(branch: Branch, here: Definition, found: Replayed) -> tuple[Any, ...]:
    """Return the state of the branch after the replay."""
    about: dict[str, Any] = {"replay": found.content(), "source": found.source, "status": found.status}
    commit = Commit("c", 1, Kind.REPLAY, 0, "o", None, 0, delta=tuple(found.delta), **about)
    for update in found.delta:
        branch.take(update.id)
        here = definition_of(update)
    assert all(True for _ in branch.fold(60, commit, lambda _: here, 1))
    assert found.summary() == branch.summary()
    left = {id_: (place(one.base), one.recorded_at) for id_, one in branch.conflicts.items()}
    return place(here), {id_: place(one) for id_, one in branch.changes.items()}, left


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("here", DEFINITIONS, ids=repr)
def test_each_combination_of_definitions_is_replayed_as_the_model_says(
    strategy: model.Strategy, here: Definition
) -> None:
    world = World()
    for base, their, left in product(DEFINITIONS, DEFINITIONS, (..., *DEFINITIONS)):
        for agreed, moved in product((..., *DEFINITIONS), (True, False)):
            changes = {} if repr(base) == repr(here) and left is ... else {"a": base}
            conflicts = {} if left is ... else {"a": Contested(left, 7)}
            if not moved and (agreed is not ... or repr(their) != repr(base)):
                continue  # the target defined whatever it took
            branch = Branch(5, "main", 40, "main", 40, BranchStatus.OPEN, dict(changes), conflicts, 5)
            known = {} if left is ... else {"a": model.Conflict(place(left), 7)}
            cells = {} if here is None else {"a": place(here)}
            book = model.Book(5, 5, cells, changes={id_: place(one) for id_, one in changes.items()}, conflicts=known)
            apply = None
            if agreed is not ...:
                apply = model.Commit(50, "apply", source=("fix", 45))
                before = object()
                world.books["fix"] = [model.Book(5, 45, {"a": place(agreed)}, changes={"a": before})]  # type: ignore[dict-item]
            expected = world._merge_theirs("fix", book, {"a": place(their)} if moved else {}, strategy, apply)
            theirs = Theirs(
                Source("main", 55),
                40,
                {"a": their} if moved else {},
                None if apply is None else Source("fix", 45),
                {} if agreed is ... else {"a": agreed},
            )
            found = replayed(branch, here, Strategy(strategy), theirs)
            assert placed(found.delta) == expected.delta
            assert placed(found.conflicts) == expected.conflicts
            book.sequence = 60
            world._fold_replay(book, replace(expected, sequence=60, strategy=strategy))
            after = {id_: (one.base, one.told) for id_, one in book.conflicts.items()}
            assert folded(branch, here, found) == (book.cells.get("a"), book.changes, after)


def test_the_target_closes_a_branch_if_it_has_all_of_its_own_edits() -> None:
    for own, keep, closes in ((45, False, True), (46, False, False), (45, True, False)):
        branch = Branch(5, "main", 40, "main", 40, own=own)
        theirs = Theirs(Source("main", 55), 40, {}, Source("fix", 45, keep))
        status = Replayed(branch, theirs, Strategy.RECORD).status
        assert status is (BranchStatus.APPLIED if closes else None)


def test_an_apply_of_a_predecessor_is_none_of_this_branch() -> None:
    commits, found = TargetCommits("fix", birth=30), []
    for sequence, source in enumerate(
        (Source("fix", 29), Source("fix", 30), Source("fix", 35), Source("other", 43)), 40
    ):
        about: dict[str, Any] = {"source": source, "sequence": sequence}
        commits.add(Commit("c", 1, Kind.REBASE, 1000 + sequence, "o", None, 0, **about))
        found.append((commits.applied, commits.applied_in, commits.applied_ms))
    assert found == [(None, 0, 0), (Source("fix", 30), 41, 1041), *[(Source("fix", 35), 42, 1042)] * 2]
    commits.add(Commit("c", 1, Kind.REPLAY, 1044, "o", None, 0, source=Source("fix", 36), sequence=44))
    assert commits.applied_in == 42, "a replay takes from its target, it does not apply"


def test_the_decision_of_a_rebase_says_what_was_taken_and_how_many_conflicts_are_left() -> None:
    state = edited(Set("a", 2), Set("b", 2))
    state.branch = Branch(1, "main", 1, "main", 1, changes={"a": None, "b": None}, conflicts={"b": Contested(None, 1)})
    theirs = Theirs(Source("main", 9), 1, {"a": Set("a", 3), "c": Set("c", 3)})
    found = Replayed(state.branch, theirs, Strategy.RECORD)
    assert all(True for _ in found.compare(state.cells.edit_of, 1))
    request = QueuedRequest(1, RequestId("r"), action=Rebase(), theirs=theirs, replayed=found)
    decided = decide(state, Applied("s", 0), [request])
    assert (decided.source, decided.replayed, decided.delta) == (theirs.source, found, (Set("c", 3),))
    (decision,) = decided.decisions
    assert (decision.position, decision.unresolved, len(found.conflicts)) == (9, 2, 1)


def test_a_target_that_was_created_again_is_another_one() -> None:
    branch = Branch(5, "main", 40, "main", 40)
    check_moves(branch, 40, Source("main", 50))
    with pytest.raises(UnprocessableError) as refused:
        check_moves(branch, 41, Source("main", 50))
    assert refused.value.code == "moved"


@pytest.mark.parametrize("code", ["closed", "not_a_branch", "protected"])
def test_only_open_and_unprotected_branches_are_rebased(code: str) -> None:
    state = ChangeSetState()
    status = BranchStatus.APPLIED if code == "closed" else BranchStatus.OPEN
    if code != "not_a_branch":
        state.branch = Branch(5, "main", 40, "main", 40, status)
    state.protected = code == "protected"
    refusal = refuse_rebase(state)
    assert refusal is not None
    assert refusal.code == code


def test_an_edit_that_saw_a_conflict_settles_it_and_a_blind_one_does_not() -> None:
    state = ChangeSetState()
    state.branch = Branch(1, "main", 1, "main", 1, changes={"a": None, "b": None})
    state.branch.conflicts = {"a": Contested(Set("a", 0), 8), "b": Contested(None, 8)}
    state.last = state.edited = 9
    edit = (Set("a", 5),)
    for at, settled, code in ((None, (), ""), (9, ("a",), ""), (8, (), "moved"), (7, (), "moved")):
        request = QueuedRequest(1, RequestId("r"), edit, expect_at=at)
        decided = decide(state, Applied("s", 0), [request])
        assert (decided.decisions[0].code, decided.settled) == (code, settled), at
    state.edited = 2  # No edit is newer than the position, but the conflict is.
    (decision,) = decide(state, Applied("s", 0), [QueuedRequest(1, RequestId("r"), edit, expect_at=7)]).decisions
    assert decision.code == "moved"


def edited(*updates: Update) -> ChangeSetState:
    state = ChangeSetState()
    state.fold(1, Commit("c", 0, Kind.REBASE, 0, "o", None, None, delta=updates))
    return state


@pytest.mark.parametrize("pinned", [False, True], ids=["columns", "overlay"])
def test_states_are_compared_by_definition(pinned: bool) -> None:
    same = (Set("int", 1), Set("float", -0.0), Set("text", "é"), Set("null", None), Unset("unset"), Set("true", True))
    formulas = (Derive("sum", "sum", {"x": ("int", "float")}, {}), Derive("cel", "cel", {"x": "int"}, {"expr": "x"}))
    branch = edited(*same, *formulas, Set("gone", 1), Set("number", 1), Set("kind", 1), Set("mine", 1), Set("named", 2))
    view = branch.view()
    if not pinned:
        view.close()
    more = (Set("mine", 2), Set("added", 1), Remove("named"), Set("over", 1), Derive("use", "sum", {"x": "absent"}, {}))
    branch.fold(2, Commit("c", 1, Kind.REBASE, 0, "o", None, None, delta=more))
    changes: dict[str, Definition] = {"mine": Set("mine", 1), "added": None, "named": Set("named", 2), "use": None}
    changed = (Set("number", 1.0), Unset("kind"), Derive("cel", "cel", {"x": "int"}, {"expr": "x + 1"}), Set("new", 1))
    target = edited(*same, formulas[0], *changed, Set("mine", 3), Set("named", 2), Set("absent", 4))
    expected = {update.id: update for update in (*changed, Set("mine", 3), Set("absent", 4))}
    for step in (1, 2, 100):
        found: dict[str, Definition] = {}
        for some in definitions_that_differ(branch, changes, target, step):
            assert found.keys().isdisjoint(some) or all(one is None for one in some.values())
            found |= some
        assert found == expected | {"gone": None, "over": None}
    view.close()

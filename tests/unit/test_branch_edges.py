"""Branches in which two rules meet: an apply that was reverted, a conflict that an edit hid, a change set without
target."""

import pytest

from rebaser_core.branches.branch import Branch, Changed, Contested
from rebaser_core.branches.merge import Definition, definition_of
from rebaser_core.commit import Commit, Kind, Source, Strategy
from rebaser_core.decisions.replay import Replayed, Theirs
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Remove, Set, Update

BASE, APPLIED, LATER = Set("a", 0), Set("a", 1), Set("a", 2)


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("here", [BASE, APPLIED, LATER, None])
def test_an_apply_that_the_target_reverted_is_reverted_in_the_branch(here: Definition, strategy: Strategy) -> None:
    """The target equals its state at the base again. Its state is read if its commits are gone."""
    branch = Branch(5, "main", 40, "main", 40, changes={"a": BASE}, own=45)
    theirs = Theirs(Source("main", 55), 40, {}, Source("fix", 45), {"a": APPLIED})
    found = Replayed(branch, theirs, strategy)
    assert all(True for _ in found.compare(lambda _: here, 1))
    taken = here is APPLIED or (strategy is Strategy.THEIRS and here is not BASE)
    assert [definition_of(one) for one in found.delta] == ([BASE] if taken else [])
    in_conflict = strategy is Strategy.RECORD and here in (LATER, None)
    assert [definition_of(one) for one in found.conflicts] == ([APPLIED] if in_conflict else [])
    assert found.unresolved == in_conflict


def fold(state: ChangeSetState, *updates: Update) -> None:
    state.fold(state.last + 1, Commit("c", state.last, Kind.REBASE, 0, "o", None, None, delta=updates))


def test_a_change_set_without_a_target_records_no_changes() -> None:
    state = ChangeSetState()
    state.branch = Branch(0)  # as if it was closed and reopened, or began empty
    fold(state, Set("a", 1))
    fold(state, Remove("a"), Set("b", 1))
    assert state.branch.changes == {}
    assert state.branch.summary((Set("c", 1),)).changes == 0


def test_a_checkpoint_keeps_a_conflict_whose_value_is_that_of_the_base_again() -> None:
    """Only a replay, or an edit whose author saw the conflict, may end the conflict; a checkpoint must not."""
    branch = Branch(5, "main", 40, "main", 40)
    contested = Contested(BASE, 50)
    branch.set_changes({"a": Changed(APPLIED, APPLIED, contested), "b": Changed(Set("b", 0), Set("b", 1))})
    assert branch.conflicts == {"a": contested}
    assert branch.changes == {"a": APPLIED, "b": Set("b", 0)}

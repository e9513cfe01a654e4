"""Tests how many values are in each state, and the reasons of those in error: counted from the columns and the
overlay."""

from rebaser_core.commit import Applied, Commit, Computed, Delta, Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.tally import tally
from rebaser_core.updates import Derive, Remove, Set, Unset
from rebaser_core.values import Fault, State

UPDATES = (Set("a", 1), Set("b", 2), Unset("c"), Derive("d", "cel"), Derive("e", "cel"), Derive("f", "cel", {"d": "d"}))
FAULT = Fault("failed", "no", "d")


def folded(state: ChangeSetState, kind: Kind, delta: Delta, covers: int) -> None:
    at = state.last + 1
    state.fold(at, Commit("c", state.last, kind, 0, "o", Applied("s", at), covers, delta=delta))


def computed() -> ChangeSetState:
    state = ChangeSetState()
    folded(state, Kind.REBASE, UPDATES, 0)
    results = (Computed("d", None, FAULT), Computed("e", 3), Computed("f", None, Fault("failed_input", "d", "d")))
    folded(state, Kind.DVU, results, 1)
    return state


def test_values_are_counted_by_state_and_causes_told() -> None:
    found = tally(computed())
    assert found.counts == {State.OK: 3, State.STALE: 0, State.ERROR: 2, State.UNSET: 1}
    assert (found.causes, found.failing, found.errors) == ((("d", FAULT),), 1, 2)


def test_what_is_laid_over_frozen_columns_counts_as_it_is() -> None:
    state = computed()
    with state.view():
        folded(state, Kind.REBASE, (Remove("b"), Set("d", 4), Set("g", 5)), state.covers)
        found = tally(state)
        assert found.counts == {State.OK: 4, State.STALE: 1, State.ERROR: 0, State.UNSET: 1}
        assert found.causes == ()


def test_what_is_owed_is_stale_whatever_it_was() -> None:
    state = computed()
    folded(state, Kind.REBASE, (Set("d", 4),), state.covers)
    assert tally(state).counts == {State.OK: 4, State.STALE: 1, State.ERROR: 0, State.UNSET: 1}


def test_the_first_causes_are_those_of_the_smallest_ids() -> None:
    state = ChangeSetState()
    folded(state, Kind.REBASE, tuple(Derive(id_, "cel") for id_ in "cab"), 0)
    folded(state, Kind.DVU, tuple(Computed(id_, None, Fault("failed", id_, id_)) for id_ in "cab"), 1)
    found = tally(state, 2)
    assert [id_ for id_, _ in found.causes] == ["a", "b"]
    assert found.failing == 3

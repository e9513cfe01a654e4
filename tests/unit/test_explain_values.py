"""Why a value is what it is: the path to the origin exists in the graph, and is found within bounds."""

from collections.abc import Sequence

import pytest

from rebaser_core.commit import Applied, Commit, Computed, Kind
from rebaser_core.explain import values
from rebaser_core.explain.values import ValueExplanation, ValueInput, explain_value
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Match, Recompute, Remove, Set, Unset, Update
from rebaser_core.values import Fault, State, Value


def state_of(*updates: Update) -> ChangeSetState:
    state = ChangeSetState()
    state.fold(1, Commit("c", 0, Kind.REBASE, 0, "o", Applied("s", 1), 0, delta=updates))
    return state


def computed(state: ChangeSetState, *results: Computed) -> None:
    last = state.last
    state.fold(last + 1, Commit("d", last, Kind.DVU, 0, "o", Applied("s", 1), last, delta=results))


def edited(state: ChangeSetState, *updates: Update, recompute: Sequence[Recompute] = ()) -> None:
    last, applied = state.last, Applied("s", 1)
    state.fold(
        last + 1,
        Commit("e", last, Kind.REBASE, 0, "o", applied, state.covers, delta=updates, recompute=tuple(recompute)),
    )


def told(state: ChangeSetState, id_: str) -> ValueExplanation:
    found = explain_value(state, id_)
    assert found is not None
    return found


def test_a_value_that_was_set_has_users_and_no_trouble() -> None:
    state = state_of(Set("a", 1), Derive("c", "sum", {"of": ["a"]}), Derive("b", "sum", {"of": ["a", "c"]}), Unset("u"))
    found = told(state, "a")
    assert (found.value, found.definition, found.defined) == (Value(1, State.OK), Set("a", 1), 1)
    assert (found.dependents, found.dependent_count, found.inputs, found.path) == (("b", "c"), 2, (), ())
    assert found.why == "It was set"
    assert (told(state, "u").why, told(state, "u").advice) == ("It exists, but has no value", "set it to a value")
    assert explain_value(state, "none") is None


def test_inputs_have_their_values_and_patterns_how_many_match() -> None:
    state = state_of(
        Set("x/1", 1), Set("x/2", 2), Set("fee", 3), Derive("b", "sum", {"of": ["fee", Match("x/*")], "n": "no"})
    )
    computed(state, Computed("b", None, Fault("missing_input", "input 'no' does not exist", "b")))
    found = told(state, "b")
    assert found.inputs == (
        ValueInput("of", "fee", Value(3, State.OK)),
        ValueInput("of", "x/*", None, 2),
        ValueInput("n", "no"),
    )
    assert found.why == "It fails by itself: input 'no' does not exist"
    assert (found.path, found.origin, "define" in found.advice) == (("b",), "b", True)


def test_an_error_leads_along_the_path_to_the_value_that_fails_by_itself() -> None:
    chain = [Derive(f"v{at}", "sum", {"of": [f"v{at - 1}", "ok"]}) for at in range(1, 6)]
    state = state_of(Set("ok", 1), Derive("v0", "cel", {}, {"expr": "1/0"}), *chain)
    fault = Fault("failed", "division by zero", "v0")
    failed = [Computed(f"v{at}", None, Fault("failed_input", "…", "v0")) for at in range(1, 6)]
    computed(state, Computed("v0", None, fault), *failed)
    found = told(state, "v5")
    assert found.path == ("v5", "v4", "v3", "v2", "v1", "v0")
    assert found.why == "v0, on which it depends, fails: division by zero"


def test_an_error_without_a_message_is_told_by_its_code() -> None:
    state = state_of(Derive("a", "sum", {"of": []}))
    computed(state, Computed("a", None, Fault("crashed", "", "a")))
    assert told(state, "a").why == "It fails by itself: crashed"


def test_a_cycle_is_shown_once_around() -> None:
    state = state_of(
        Derive("a", "sum", {"of": ["c"]}), Derive("b", "sum", {"of": ["a"]}), Derive("c", "sum", {"of": ["b"]}),
        Derive("user", "sum", {"of": ["b"]}), Derive("self", "sum", {"of": ["self"]}),
    )  # fmt: skip
    fault = Fault("cycle", "these depend on each other: 'a', 'b', 'c'", "a")
    own = Fault("cycle", "'self' depends on itself", "self")
    computed(
        state, *(Computed(id_, None, fault) for id_ in "abc"),
        Computed("user", None, Fault("failed_input", "…", "a")), Computed("self", None, own),
    )  # fmt: skip
    assert told(state, "a").path == ("a", "c", "b", "a")
    assert told(state, "user").path == ("user", "b", "a", "c", "b", "a")
    assert told(state, "self").path == ("self", "self")
    assert "none depends on itself" in told(state, "user").advice


def test_a_stale_value_leads_to_what_changed_and_in_which_commit() -> None:
    state = state_of(
        Set("a", 1), Set("b", 1), Derive("c", "sum", {"of": ["a"]}), Derive("d", "sum", {"of": ["c", "b"]})
    )
    computed(state, Computed("c", 1), Computed("d", 2))
    assert told(state, "d").why == "It was computed, and is correct as of commit 1"
    edited(state, Set("a", 2))
    found = told(state, "d")
    assert (found.value.state, found.path, found.origin, found.origin_commit) == (State.STALE, ("d", "c", "a"), "a", 3)
    assert found.why == "It is not up to date: a changed in commit 3"
    edited(state, Derive("d", "sum", {"of": ["b"]}))
    assert told(state, "d").why == "It is not up to date: it was defined in commit 4"


def test_a_stale_value_may_have_lost_an_input_that_its_pattern_matched() -> None:
    state = state_of(Set("x/1", 1), Set("x/2", 1), Derive("c", "sum", {"of": Match("x/*")}))
    computed(state, Computed("c", 2))
    edited(state, Remove("x/2"))
    assert told(state, "c").path == ("c", "x/2")


def test_a_recompute_makes_values_stale() -> None:
    state = state_of(Set("a", 1), Derive("b", "sum", {"of": ["a"]}), Derive("c", "max", {"of": ["b"]}))
    computed(state, Computed("b", 1), Computed("c", 1))
    edited(state, recompute=[Recompute("sum")])
    found = told(state, "c")
    assert (found.path, found.why) == (("c", "b"), "It is not up to date: a recompute of b was requested")


def test_what_is_told_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = values.MAX_LISTED + 50
    users = [Derive(f"user{at:04}", "sum", {"of": ["a"]}) for at in range(many)]
    chain = [Derive(f"v{at}", "sum", {"of": [f"v{at - 1}" if at else "a"]}) for at in range(many)]
    wide = Derive("wide", "sum", {"of": [one.id for one in users]})
    state = state_of(Set("a", 1), *users, *chain, wide)
    computed(state, *(Computed(one.id, 1) for one in (*users, *chain, wide)))
    assert (len(told(state, "a").dependents), told(state, "a").dependent_count) == (values.MAX_LISTED, many + 1)
    assert (len(told(state, "wide").inputs), told(state, "wide").input_count) == (values.MAX_LISTED, many)
    edited(state, Set("a", 2))
    assert told(state, chain[-1].id).path == (chain[-1].id, "a")
    monkeypatch.setattr(values, "MAX_VISITED", 3)
    assert told(state, chain[-1].id).path == ()

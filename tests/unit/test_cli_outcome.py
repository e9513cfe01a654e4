"""Tests what `rebaser enqueue` prints about values and formulas after an edit."""

from rebaser.cli.output.wording import tally_text
from rebaser.cli.sending.outcome import failure_lines, unknown_input_warnings
from rebaser_core.commit import Applied, Commit, Kind
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.tally import Tally
from rebaser_core.updates import Derive, Match, Set, Update
from rebaser_core.values import Fault, State


def state_of(*updates: Update) -> ChangeSetState:
    state = ChangeSetState()
    state.fold(1, Commit("c", 0, Kind.REBASE, 0, "o", Applied("s", 1), 0, delta=updates))
    return state


def test_a_formula_that_names_nothing_is_told_what_was_meant() -> None:
    derive = Derive("cart/total", "cel", {"cart": "cart", "price": "price"}, {"expr": "cart/1/price * 2"})
    [line] = unknown_input_warnings([derive], state_of(Set("cart/1/price", 2), Set("price/of/milk", 1), derive))
    assert line == (
        "the formula of cart/total uses ids that do not exist: cart, price; "
        "to name the value cart/1/price, put backticks around it: `cart/1/price`"
    )


def test_formulas_over_what_is_there_and_patterns_are_fine() -> None:
    derive = Derive("t", "cel", {"a": "a", "all": Match("b/*")}, {"expr": "a + size(all)"})
    assert unknown_input_warnings([derive, Set("x", 1)], state_of(Set("a", 1), derive)) == []


def test_many_formulas_are_told_in_few_lines() -> None:
    lines = unknown_input_warnings(
        [Derive(f"t{n}", "cel", {"a": "a"}, {"expr": "a"}) for n in range(9)], ChangeSetState()
    )
    assert lines[0] == "the formula of t0 uses ids that do not exist: a"
    assert lines[3:] == ["and 6 more formulas use ids that do not exist"]


def test_a_tally_for_people() -> None:
    found = Tally({State.OK: 1200, State.ERROR: 5, State.STALE: 0}, (("a", Fault("failed", "no", "a")),), 2)
    assert tally_text(found) == "1,200 ok, 5 error"
    assert failure_lines(found) == [
        "error a: failed: no",
        "and 1 more values with errors of their own",
        "3 more failed because an input failed",
    ]
    assert tally_text(Tally(dict.fromkeys(State, 0), (), 0)) == "no values"

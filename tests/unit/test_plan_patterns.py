"""Inputs by pattern: what functions get, their costs, and their faults."""

import sys
from types import FrameType
from typing import Any

import pytest

from rebaser.dvu.planning import full_plan, layout, patterns, subgraph
from rebaser.dvu.planning.packet_plan import PacketPlan
from rebaser.dvu.planning.planner import plan
from rebaser_core.errors import DvuError
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Derive, Match, Remove, Set, Unset, Update
from rebaser_core.values import Fault, Json, State
from tests.support.graphs import Book


def listed(id_: str, *inputs: str | Match) -> Derive:
    return Derive(id_, "list", {"x": inputs[0] if len(inputs) == 1 else inputs})


def total(id_: str, *inputs: str | Match) -> Derive:
    return Derive(id_, "sum", {"x": inputs})


def at_rest(*updates: Update) -> Book:
    book = Book(updates)
    book.update()
    return book


def test_what_exists_matches_in_the_order_of_ids() -> None:
    book = at_rest(
        Set("p/2", 2),
        Set("p/10", 10),
        Unset("p/3"),
        Derive("p/4", "sum", {"x": "p/2"}),
        Set("p/5/x", 5),
        Set("gone", 0),
        Set("p/6", 6),
        Remove("p/6"),
        listed("alone", Match("p/*")),
        listed("among", "gone", Match("p/*"), "p/2", Match("p/**/x")),
        listed("none", Match("q/*")),
        Derive("named", "cel", {"all": Match("p/*"), "x": "p/2"}, {"expr": "size(all) * x"}),
    )
    values = book.values()
    assert values["alone"].value == [10, 2, None, 2]
    assert values["among"].value == [0, 10, 2, None, 2, 2, 5]
    assert values["none"].value == []
    assert values["named"].value == 8


def test_patterns_in_other_places_are_other_definitions() -> None:
    sizes = {"expr": "size(x) * 100 + size(y)"}
    book = at_rest(
        *(Set(f"p/{at}", at) for at in range(3)),
        Set("a", 1),
        Derive("first", "cel", {"x": (Match("p/*"), "a"), "y": ("a", "a")}, sizes),
        Derive("second", "cel", {"x": ("a", "a"), "y": (Match("p/*"), "a")}, sizes),
    )
    assert {id_: book.values()[id_].value for id_ in ("first", "second")} == {"first": 402, "second": 204}


def by_id(id_: str, *inputs: str | Match) -> Derive:
    return Derive(id_, "by_id", {"x": inputs})


@pytest.mark.parametrize(
    "limits",
    [
        Thresholds(interpreted_max=-1),
        Thresholds(full_plan_min_values=0, full_plan_reach_divisor=1 << 30, full_plan_max_python_share=1.0),
    ],
)
def test_ids_come_with_values_where_they_are_asked_for(limits: Thresholds) -> None:
    book = Book(
        [
            *(Set("p/2", 2), Set("p/10", 10), Unset("p/3"), Set("fee", 1)),
            by_id("all", Match("p/*")),
            by_id("some", "fee", Match("p/1*"), Match("**0"), "p/2"),
            by_id("none", Match("q/*")),
            by_id("without", "fee"),
            Derive("dear", "cel", {"all": "all"}, {"expr": "all.filter(id, all[id] != null && all[id] > 5)"}),
        ]
    )
    book.update(limits)
    values = book.values()
    assert values["all"].value == {"p/2": 2, "p/10": 10, "p/3": None}
    assert values["some"].value == {"fee": 1, "p/10": 10, "p/2": 2}
    assert values["none"].value == {}
    assert values["without"].error is not None
    assert values["without"].error.message.startswith("needs a pattern among its inputs")
    assert values["dear"].value == ["p/10"]
    book.edit(Remove("p/2"), Set("p/20", 2))  # the same values
    with book.state.view() as view:
        assert isinstance(
            plan(view, limits), full_plan.FullGraphPlan if limits.full_plan_min_values == 0 else PacketPlan
        )
    book.update(limits)
    assert book.values()["all"].value == {"p/10": 10, "p/20": 2, "p/3": None}


def test_ids_that_take_more_than_a_value_may_are_an_error_value(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "x" * 500
    book = at_rest(
        *(Set(f"p/{at:03}{name}", at) for at in range(525)), by_id("all", Match("p/*")), listed("after", "all")
    )
    values = book.values()
    assert values["all"].error == Fault("too_large", "the ids of its inputs take more than 262144 bytes", "all")
    assert values["after"].error == Fault("failed_input", "input 'all' failed: too_large", "all")
    book.edit(*(Remove(f"p/{at:03}{name}") for at in range(20)))
    book.update()
    assert len(book.values()["after"].value[0]) == 505  # type: ignore[arg-type, index]
    book.edit(by_id("twice", Match("p/*"), Match("p/*")))
    book.update()
    assert len(book.values()["twice"].value) == 505  # type: ignore[arg-type] # each id is in it once
    monkeypatch.setattr(patterns, "MAX_INPUTS", 524)
    book.edit(*(Set(f"p/{at:03}{name}", at) for at in range(20)))
    book.update()
    error = book.values()["all"].error
    assert error is not None
    assert error.message.startswith("the value has more than 524 inputs"), "the ids of so many are not looked at"


def test_ids_are_counted_among_what_an_update_has_to_do_with(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book([*(Set(f"p/{at}", at) for at in range(10)), listed("all", Match("p/*")), by_id("ids", Match("p/*"))])
    monkeypatch.setattr(patterns, "MAX_ALL", 49)
    with book.state.view() as view, pytest.raises(DvuError, match="50 inputs"):
        plan(view)


def test_who_comes_and_goes_wakes_those_who_match_and_nobody_else() -> None:
    book = at_rest(
        Set("p/1", 1),
        Set("q/1", 1),
        listed("ps", Match("p/*")),
        listed("qs", Match("q/*")),
        listed("all", Match("*/1")),
    )
    for update, woken in (
        (Set("p/2", 2), {"ps"}),
        (Set("p/2", 3), {"ps"}),
        (Unset("p/2"), {"ps"}),
        (Remove("p/2"), {"ps"}),
        (Set("r/1", 3), {"all"}),
        (Remove("p/1"), {"ps", "all"}),
    ):
        book.edit(update)
        assert book.state.stale() == woken
        assert {one.id for one in book.update()} == woken
    for nobody in (Set("p/2/3", 1), Remove("p/2/3"), Remove("p/3")):
        book.edit(nobody)
        assert not book.state.owes
        assert book.state.covers == book.state.last


def test_what_came_and_went_between_two_updates_is_as_if_it_had_never_been() -> None:
    """This also holds if its row stays because a definition names it."""
    book = at_rest(Set("p/1", 1), listed("ps", Match("p/*")), total("named", "p/1", "p/3"))
    book.edit(Set("p/2", 2), Set("p/3", 3), Remove("p/2"), Remove("p/3"))
    book.update()
    assert book.values()["ps"].value == [1]


def test_a_value_is_matched_once_by_a_pattern_that_is_new_too() -> None:
    book = at_rest(Set("p/1", 1), listed("old", Match("p/*")))
    book.edit(listed("new", Match("p/**")), Set("p/2", 2))
    book.update()
    book.edit(Remove("p/2"))
    book.update()
    assert {id_: book.values()[id_].value for id_ in ("old", "new")} == {"old": [1], "new": [1]}


def test_a_pattern_that_came_and_went_between_two_updates_matches_nothing() -> None:
    book = at_rest(Set("p/1", 1), listed("old", Match("p/*")))
    book.edit(listed("new", Match("p/**")), Remove("new"), Set("p/2", 2))
    book.update()
    assert book.values()["old"].value == [1, 2]


def test_a_pattern_that_is_back_matches_what_came_and_went_meanwhile() -> None:
    book = at_rest(Set("p/1", 1), Set("p/2", 2), listed("ps", Match("p/*")), listed("other", Match("*")))
    book.edit(Remove("ps"))
    book.edit(Set("p/3", 3), Remove("p/1"))
    book.edit(listed("ps", Match("p/*")))
    book.update()
    assert book.values()["ps"].value == [2, 3]


def test_a_definition_that_matches_itself_is_a_cycle() -> None:
    book = at_rest(Set("p/1", 1), listed("p/all", Match("p/*")), listed("p/x/y", Match("p/*")))
    values = book.values()
    assert values["p/all"].error == Fault("cycle", "'p/all' depends on itself", "p/all")
    assert values["p/x/y"].error == Fault("failed_input", "input 'p/all' failed: cycle", "p/all")
    book.edit(listed("p/all", Match("p/x/*")))
    book.update()
    assert book.values()["p/all"].error == Fault("cycle", "these depend on each other: 'p/all', 'p/x/y'", "p/all")
    book.edit(Remove("p/x/y"))
    book.update()
    assert book.values()["p/all"].value == []


def test_more_inputs_than_may_be_are_an_error_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_INPUTS", 3)
    book = at_rest(
        *(Set(f"p/{at}", at) for at in range(3)),
        listed("all", Match("p/*")),
        listed("after", "all"),
        by_id("ids", Match("p/*")),
        listed("said", "p/0", "p/1", "p/2", "p/0"),  # accepted when the limits were different
    )
    assert book.values()["all"].value == [0, 1, 2]
    book.edit(Set("p/3", 3))
    book.update()
    values = book.values()
    for id_ in ("all", "ids"):
        assert values[id_].error == Fault(
            "too_large", "the value has more than 3 inputs, counting all that its patterns match", id_
        )
    assert values["after"].error == Fault("failed_input", "input 'all' failed: too_large", "all")
    assert values["said"].state is State.OK
    book.edit(Remove("p/0"), Set("p/1", 7))
    book.update()
    assert book.values()["after"].value == [[7, 2, 3]]
    assert book.values()["ids"].value == {"p/1": 7, "p/2": 2, "p/3": 3}


def test_an_update_of_too_many_inputs_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book([*(Set(f"p/{at}", at) for at in range(10)), *(listed(f"all{at}", Match("p/*")) for at in range(10))])
    monkeypatch.setattr(patterns, "MAX_ALL", 99)
    with book.state.view() as view, pytest.raises(DvuError, match="100 inputs") as caught:
        plan(view)
    assert caught.value.code == "too_large"
    monkeypatch.setattr(patterns, "MAX_ALL", 100)
    book.update()
    assert book.values()["all9"].value == list(range(10))


@pytest.mark.parametrize("interpreted_max", [300, -1])
def test_a_pattern_over_many_is_planned_by_compiled_loops_too(interpreted_max: int) -> None:
    book = Book(
        [
            *(Set(f"p/{at:04}", at) for at in range(2_000)),
            *(Derive(f"d/{at:04}", "sum", {"x": (f"p/{at:04}", Match(f"p/00{at % 10}*"))}) for at in range(1_000)),
            Derive("all", "sum", {"x": Match("d/*")}),
            Derive("twice", "sum", {"x": ("all", Match("a*"))}),
        ]
    )
    book.update(Thresholds(interpreted_max=interpreted_max, packet_bytes=20_000))
    tens = [sum(range(10 * at, 10 * at + 10)) for at in range(10)]
    assert book.values()["all"].value == sum(range(1_000)) + 100 * sum(tens)
    book.edit(Set("p/0005", 6))
    book.update(Thresholds(interpreted_max=interpreted_max))
    assert book.values()["twice"].value == 2 * (sum(range(1_000)) + 100 * sum(tens) + 101)


@pytest.mark.parametrize("interpreted_max", [300, -1])
def test_what_patterns_stand_for_is_swept_over_a_kept_structure(interpreted_max: int) -> None:
    limits = Thresholds(
        full_plan_min_values=0,
        full_plan_reach_divisor=1 << 30,
        full_plan_max_python_share=1.0,
        interpreted_max=interpreted_max,
    )
    book = at_rest(*(Set(f"p/{at}", at) for at in range(9)), total("all", Match("p/*"), "x"), Set("x", 1))
    columns = book.state.cells.columns

    def updated(*updates: Update) -> tuple[Json, layout.GraphLayout | None]:
        """Return the sum of all values, and the cached layout."""
        book.edit(*updates)
        with book.state.view() as view:
            assert isinstance(plan(view, limits), full_plan.FullGraphPlan)
        book.update(limits)
        return book.values()["all"].value, layout.cached_layout(columns)

    value, kept = updated(Set("p/0", 100))
    assert value == 137
    assert updated(Set("p/1", 101), Set("y", 7)) == (237, kept)  # nothing matches it
    book.edit(Set("p/9", 1000))
    assert layout.cached_layout(columns) is None
    assert updated()[0] == 1237
    for edit, sum_ in ((Remove("p/0"), 1137), (Unset("p/9"), 137), (Remove("p/9"), 137), (Set("p/0", 1), 138)):
        assert updated(edit)[0] == sum_


def test_more_inputs_by_pattern_than_may_be_are_left_to_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Thresholds(full_plan_min_values=0, full_plan_reach_divisor=1 << 30, full_plan_max_python_share=1.0)
    book = Book([*(Set(f"p/{at}", at) for at in range(4)), listed("all", Match("p/*")), listed("also", Match("p/*"))])
    for name, most in (("MAX_INPUTS", 3), ("MAX_ALL", 7)):
        with monkeypatch.context() as patched, book.state.view() as view:
            patched.setattr(patterns, name, most)
            assert layout.build_layout(view.columns, limits.interpreted_max).structure is None
    monkeypatch.setattr(patterns, "MAX_INPUTS", 3)
    book.update(limits)
    assert book.values()["all"].error == Fault(
        "too_large", "the value has more than 3 inputs, counting all that its patterns match", "all"
    )


@pytest.mark.parametrize("size", [10, 10_000])
def test_a_plan_holds_what_is_affected_and_what_its_patterns_match(size: int) -> None:
    book = at_rest(
        *(Set(f"p/{at}", at) for at in range(size)),
        *(Set(f"x/{at}/a", at) for at in range(5)),
        *(listed(f"y/{at}", Match(f"p/{at}*"), Match("p/*")) for at in range(3)),
        listed("sum", Match("x/*/a")),
        listed("more", "sum"),
    )
    book.edit(Set("x/2/a", 7))
    with book.state.view() as view:
        found = subgraph.build_subgraph(view, Thresholds())
    assert (len(found.rows), len(found.idx), len(found.outside)) == (2, 6, 5)


def test_applying_an_update_costs_the_same_whatever_matches() -> None:
    """Counts function calls, so that the result is the same on every machine."""

    def calls(members: int) -> int:
        book = at_rest(
            *(Set(f"p/{at}", at) for at in range(members)),
            *(listed(f"all{at}", Match("p/*"), Match("**")) for at in range(3)),
            listed("some", Match("q/*")),
        )
        counted = 0

        def count(_: FrameType, event: str, __: Any) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            for at in range(20):
                book.edit(Set(f"p/new{at}", 1), Remove(f"p/{at}"))
        finally:
            sys.setprofile(None)
        return counted

    assert calls(20_000) < calls(100) + 100

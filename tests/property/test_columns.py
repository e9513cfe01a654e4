"""The columns and the overlay of a state, compared with a dictionary of cells."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.state.columns import Columns
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.state.overlay import Cells
from rebaser_core.state.patterns.globs import matcher
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import PATTERN_PREFIX, Derive, Match, Remove, Set, Unset, Update
from rebaser_core.values import Fault, Json, State, canonical
from tests.support.forcing import forcing
from tests.support.random_input import examples

IDS = "abc"  # few, so that each is edited often
ids = st.sampled_from(IDS)
values = st.sampled_from([None, True, False, 0, 1, -5, 2**62, 0.0, -0.0, 1.5, "x", [1, "y"], {"k": 1}])
many = st.lists(ids, max_size=30)  # so many that array operations are used, with repeated ids
matches = st.sampled_from(["*", "a*", "b", "**", "x/*"]).map(Match)
updates: st.SearchStrategy[Update] = st.one_of(
    st.builds(Set, ids, values),
    st.builds(Unset, ids),
    st.builds(Remove, ids),
    st.builds(lambda id_, one: Derive(id_, "sum", {"x": one}), ids, ids),
    st.builds(lambda id_, one: Derive(id_, "sum", {"x": one}), ids, matches),
    st.builds(lambda id_, some, one: Derive(id_, "sum", {"x": (*some, one, "b")}), ids, st.lists(ids), matches),
    st.builds(lambda id_, some, at: Derive(id_, "sum", {"x": tuple(some), "y": "a"}, {"p": at}), ids, many, values),
)
faults = st.none() | st.just(Fault("failed", "no", "a"))
computed = st.tuples(ids, values, faults).map(lambda one: one if one[2] is None else (one[0], None, one[2]))
steps = st.one_of(updates, updates, updates, computed, st.sampled_from(["freeze", "thaw", "settle", "build"]))

Model = dict[str, tuple[Json, State, Derive | None, Fault | None]]


def apply(model: Model, update: Update) -> bool:
    old = model.get(update.id)
    if isinstance(update, Remove):
        model.pop(update.id, None)
        return old is not None
    if isinstance(update, Set):
        model[update.id] = (update.value, State.OK, None, None)
    elif isinstance(update, Unset):
        model[update.id] = (None, State.UNSET, None, None)
    else:
        model[update.id] = (old[0] if old else None, State.STALE, update, None)
    return True


def names(definition: Derive, id_: str) -> bool:
    return any(one == id_ or (one[0] == PATTERN_PREFIX and matcher(one[1:])(id_)) for one in definition.input_ids())


def check_matches(cells: Cells, model: Model) -> None:
    """Check the matches of each pattern, and that there are no other patterns."""
    columns = cells.columns
    keys = {
        one for _, _, how, _ in model.values() if how is not None for one in how.input_ids() if one[0] == PATTERN_PREFIX
    }
    assert {key for key in columns.index if key[0] == PATTERN_PREFIX} == keys
    assert len(columns.patterns or ()) == len(keys)
    for key in keys:
        assert columns.patterns is not None
        assert [columns.ids[row] for row in columns.patterns.rows(key)] == sorted(filter(matcher(key[1:]), model))
    if columns.patterns:
        check_ways(columns)


def check_ways(columns: Columns) -> None:
    """Check the links from rows to patterns."""
    assert columns.patterns is not None
    links = columns.patterns.links()
    keys = {columns.index[key]: matcher(key[1:]) for key in columns.index if key[0] == PATTERN_PREFIX}
    sizes = dict.fromkeys(keys, 0)
    for row in range(columns.count):
        there = columns.state[row] != 0
        expected = [key for key, match in keys.items() if there and match(columns.ids[row])]
        found = []
        way = int(links.first_link[row])
        while way > 0:
            found.append(int(links.pattern_row[links.link_pattern[way]]))
            way = int(links.next_link[way])
        assert sorted(one for one in found if one >= 0) == sorted(expected)
        assert (way < 0) == (row in keys)
        assert row not in keys or links.pattern_row[-1 - way] == row
        for key in expected:
            sizes[key] += 1
    assert sizes == {key: int(links.match_count[-1 - links.first_link[key]]) for key in keys}


def check(cells: Cells, model: Model) -> None:
    assert len(cells) == len(model)
    assert set(cells) == set(model)
    assert cells.errors == sum(state is State.ERROR for _, state, _, _ in model.values())
    for id_ in IDS:
        waiting = {one for one, (_, _, how, _) in model.items() if how is not None and names(how, id_)}
        assert sorted(cells.dependents(id_)) == sorted(waiting)
        assert cells.is_input(id_) == bool(waiting)
        assert cells.is_error(id_) == (id_ in model and model[id_][1] is State.ERROR)
        assert (id_ in cells) == (id_ in model) == (cells.edit_of(id_) is not None)
        assert cells.is_derived(id_) == (id_ in model and model[id_][2] is not None)
    for id_, (value, state, how, fault) in model.items():
        cell = cells[id_]
        assert (canonical(cell.value), cell.state, cell.definition, cell.fault) == (canonical(value), state, how, fault)
        stands = how or (Unset(id_) if state is State.UNSET else Set(id_, value))
        assert repr(cells.edit_of(id_)) == repr(stands)
    assert {id_: (canonical(one.value), one.state, one.error) for id_, one in cells.iter_values()} == {
        id_: (canonical(value), state, fault) for id_, (value, state, _, fault) in model.items()
    }


@examples(3)
@given(st.lists(steps, min_size=10, max_size=40), forcing())
def test_cells_are_a_map(script: list[Any], limits: Thresholds) -> None:
    with forced(limits):
        check_cells(script)


def check_cells(script: list[Any]) -> None:
    cells, model = Cells(), Model()
    edited: dict[str, int] = {}
    for number, step in enumerate(script, 1):
        if step == "freeze":
            cells.pins = 1
        elif step == "thaw":
            cells.pins = 0
        elif step == "settle":
            cells.merge_overlay(2)
        elif step == "build":
            if not cells.pins:
                cells.columns.edges.stale = True
        elif isinstance(step, tuple):
            cells.store_result(*step)
            id_, value, fault = step
            if id_ in model and model[id_][2] is not None:
                model[id_] = (value, State.OK if fault is None else State.ERROR, model[id_][2], fault)
        else:
            assert cells.apply(step, number) == apply(model, step)
            edited[step.id] = number
        check(cells, model)
        assert {id_: cells.edited(id_) for id_ in IDS} == {id_: edited[id_] if id_ in model else 0 for id_ in IDS}
        assert all(cell.edited == edited[id_] for id_, cell in cells.items())
        if cells.overlay_empty:
            check_matches(cells, model)
    cells.pins = 0
    while cells.merge_overlay(1):
        check(cells, model)
    check(cells, model)
    columns = cells.columns
    assert len(columns.index) + len(columns.free) == columns.count


changes = st.tuples(st.sampled_from(["set", "set", "remove", "remove", "match"]), st.sampled_from("abcdefg"))


@examples(2)
@given(
    st.lists(st.lists(changes, min_size=1, max_size=4), max_size=10),
    st.sampled_from([0, 3, 64]),
    st.sampled_from([1, 4, 1000]),
    st.sampled_from([0, 3, 64]),
)
def test_what_a_pattern_matches_is_known_whatever_came_and_went(
    script: list[list[tuple[str, str]]], noted: int, kept: int, slack: int
) -> None:
    columns = Cells().columns
    columns.derive(Derive("of/all", "sum", {"x": tuple(map(Match, ["*", "b*", "**", "c"]))}))
    with (
        forced(Thresholds(match_cache_max_changes=noted, match_cache_max_rows=kept, pattern_links_max_excess=slack)),
    ):
        for batch in [[("set", id_) for id_ in "bf"], *script]:
            for how, id_ in batch:
                if how == "set":
                    columns.set(id_, 1)
                elif how == "match":
                    columns.derive(Derive("of/some", "sum", {"x": Match(f"{id_}**")}))
                else:
                    columns.remove(id_)
            assert columns.patterns is not None
            for key in [key for key in columns.index if key[0] == PATTERN_PREFIX]:
                there = [id_ for id_ in sorted(columns.index) if columns.find(id_) >= 0 and matcher(key[1:])(id_)]
                assert [columns.ids[row] for row in columns.patterns.rows(key)] == there
            check_ways(columns)


@examples(3)
@given(st.lists(updates | computed, min_size=5, max_size=20), st.lists(computed, unique_by=lambda one: one[0]))
def test_a_table_is_what_its_items_are(script: list[Any], found: list[tuple[str, Json, Fault | None]]) -> None:
    one, all_, moved, made = Cells(), Cells(), Cells(), Cells().columns
    for step in script:
        for cells in (one, all_, moved):
            if isinstance(step, tuple):
                cells.store_result(*step)
            else:
                cells.apply(step)
    for row, (id_, value, fault) in enumerate(found):
        one.store_result(id_, value, fault)
        made.set(id_, value)
        made.put(row, value, fault)
    count = len(found)
    table = ComputedTable(made.ids, made.kind[:count], made.bits[:count], made.other, made.faults)
    all_.store_results(table)
    moved.store_results(
        replace(table, rows=np.arange(count, dtype=np.int32), columns=made)
    )  # with other columns, the rows differ
    assert dict(one) == dict(all_) == dict(moved)
    assert [canonical(cell.value) for cell in one.values()] == [canonical(cell.value) for cell in all_.values()]

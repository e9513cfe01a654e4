"""Columns, what is laid over them, and the way back, against a map of cells."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.cells import Cells
from rebaser_core.computed import ComputedTable
from rebaser_core.updates import Derive, Remove, Set, Unset, Update
from rebaser_core.values import Json, State, canonical

IDS = "abcdef"
ids = st.sampled_from(IDS)
values = st.sampled_from([None, True, False, 0, 1, -5, 2**62, 0.0, -0.0, 1.5, "x", [1, "y"], {"k": 1}])
many = st.lists(ids, max_size=30)  # so many that arrays are used, repeats included
updates: st.SearchStrategy[Update] = st.one_of(
    st.builds(Set, ids, values),
    st.builds(Unset, ids),
    st.builds(Remove, ids),
    st.builds(lambda id_, one: Derive(id_, "sum", {"x": one}), ids, ids),
    st.builds(lambda id_, some, at: Derive(id_, "sum", {"x": tuple(some), "y": "a"}, {"p": at}), ids, many, values),
)
computed = st.tuples(ids, values)
steps = st.one_of(updates, updates, updates, computed, st.sampled_from(["freeze", "thaw", "settle", "build"]))

Model = dict[str, tuple[Json, State, Derive | None]]


def apply(model: Model, update: Update) -> bool:
    old = model.get(update.id)
    if isinstance(update, Remove):
        model.pop(update.id, None)
        return old is not None
    if isinstance(update, Set):
        model[update.id] = (update.value, State.OK, None)
    elif isinstance(update, Unset):
        model[update.id] = (None, State.UNSET, None)
    else:
        model[update.id] = (old[0] if old else None, State.STALE, update)
    return True


def check(cells: Cells, model: Model) -> None:
    assert len(cells) == len(model)
    assert set(cells) == set(model)
    for id_ in IDS:
        waiting = {one for one, (_, _, how) in model.items() if how is not None and id_ in how.input_ids()}
        assert sorted(cells.dependents(id_)) == sorted(waiting)
        assert cells.is_input(id_) == bool(waiting)
        assert (id_ in cells) == (id_ in model)
        assert cells.is_derived(id_) == (id_ in model and model[id_][2] is not None)
    for id_, (value, state, how) in model.items():
        cell = cells[id_]
        assert (canonical(cell.value), cell.state, cell.definition) == (canonical(value), state, how)
    assert {id_: (canonical(one.value), one.state) for id_, one in cells.shown()} == {
        id_: (canonical(value), state) for id_, (value, state, _) in model.items()
    }


@given(st.lists(steps, max_size=40))
def test_cells_are_a_map(script: list[Any]) -> None:
    cells, model = Cells(), Model()
    for step in script:
        if step == "freeze":
            cells.frozen = 1
        elif step == "thaw":
            cells.frozen = 0
        elif step == "settle":
            cells.work_in(2)
        elif step == "build":
            if not cells.frozen:
                cells.columns.edges.behind = True
        elif isinstance(step, tuple):
            cells.compute(*step, None)
            if step[0] in model and model[step[0]][2] is not None:
                model[step[0]] = (step[1], State.OK, model[step[0]][2])
        else:
            assert cells.apply(step) == apply(model, step)
        check(cells, model)
    cells.frozen = 0
    while cells.work_in(1):
        check(cells, model)
    check(cells, model)
    columns = cells.columns
    assert len(columns.index) + len(columns.free) == columns.count


@given(st.lists(updates, max_size=20), st.lists(computed, unique_by=lambda one: one[0]))
def test_a_table_is_what_its_items_are(script: list[Update], found: list[tuple[str, Json]]) -> None:
    one, all_, made = Cells(), Cells(), Cells().columns
    for update in script:
        one.apply(update)
        all_.apply(update)
    for id_, value in found:
        one.compute(id_, value, None)
        made.set(id_, value)
    count = len(found)
    all_.compute_all(ComputedTable(made.ids, made.kind[:count], made.num[:count], made.other))
    assert dict(one) == dict(all_)
    assert [canonical(cell.value) for cell in one.values()] == [canonical(cell.value) for cell in all_.values()]

"""A state that adopts the ids of another one while it is loaded equals a state that is loaded without that."""

import random
from collections import Counter

import pytest

from rebaser_core.commit import Commit, Kind
from rebaser_core.state import value_columns
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.value_columns import ValueColumns
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Match, Remove, Set, Unset, Update
from tests.support.checkpoints import Stored
from tests.support.draws import drawing
from tests.support.example_states import parts

SEEDS, LONG = 150, 600


def drawn(rng: random.Random, names: int, *, removes: bool, patterns: bool) -> Update:
    id_ = f"v{rng.randrange(names)}"
    kind = rng.random()
    if removes and kind < 0.2:
        return Remove(id_)
    if kind < 0.3:
        return Unset(id_)
    if kind < 0.5:
        one = Match(f"v{rng.randrange(4)}*") if patterns and rng.random() < 0.3 else f"v{rng.randrange(names)}"
        return Derive(id_, "sum", {"of": (one, f"v{rng.randrange(names)}")})
    return Set(id_, rng.choice([1, 2.5, "text", None, [1]]))


def edit(state: ChangeSetState, updates: list[Update]) -> None:
    delta = tuple({update.id: update for update in updates}.values())
    state.fold(state.last + 1, Commit("c", state.last, Kind.REBASE, 0, "o", None, state.covers, delta=delta))


def check_rows(columns: ValueColumns) -> None:
    assert columns.index == {id_: row for row, id_ in enumerate(columns.ids) if id_}
    assert len(columns.ids) == columns.count
    assert sorted(columns.free) == [row for row, id_ in enumerate(columns.ids) if not id_]


@pytest.mark.parametrize("count", [SEEDS, pytest.param(LONG, marks=pytest.mark.long)])
def test_adopting_ids_changes_nothing_but_the_time(count: int) -> None:
    """The other state is the one that was written, before or after further edits, or one of another change set."""
    seen: Counter[str] = Counter()
    first = drawing("adopted ids").randrange(10**9)
    for seed in range(first, first + count):
        rng = random.Random(seed)
        names, removes, patterns = rng.choice([5, 20, 60]), rng.random() < 0.5, rng.random() < 0.4

        def edits(
            rng: random.Random = rng, names: int = names, removes: bool = removes, patterns: bool = patterns
        ) -> list[Update]:
            return [drawn(rng, names, removes=removes, patterns=patterns) for _ in range(rng.choice([1, 3, 30]))]

        state, stored = ChangeSetState(), Stored()
        limits = Thresholds(
            delta_changes_divisor=0, max_deltas=rng.choice([1, 3]), batch_rows=rng.choice([1, 4, 1000]), part_rows=9
        )
        with forced(limits):
            for _ in range(rng.randrange(1, 4)):
                edit(state, edits())
                stored.write(state)
        others = state if rng.random() < 0.8 else stored.read()
        if rng.random() < 0.2:
            others = ChangeSetState()
        for _ in range(rng.randrange(3)):
            edit(others, edits())
        before = parts(others)
        plain, adopting = stored.read(), stored.read(others=others.cells.columns)
        assert adopting.cells == plain.cells
        assert parts(adopting) == parts(plain)
        check_rows(adopting.cells.columns)
        later = edits()
        edit(plain, later)
        edit(adopting, later)
        assert parts(adopting) == parts(plain)
        check_rows(adopting.cells.columns)
        assert parts(others) == before
        check_rows(others.cells.columns)
        columns = adopting.cells.columns
        seen["adopted" if columns.adopted else "not adopted"] += 1
        seen["deltas"] += columns.adopted and bool(stored.chain.deltas)
        seen["removed"] += columns.adopted and removes
        seen["more"] += columns.adopted and len(others.cells.columns.ids) > len(columns.ids)
    assert all(seen[what] > count // 50 for what in ("adopted", "not adopted", "deltas", "removed", "more")), seen


def test_a_value_that_a_delta_removes_is_removed_from_adopted_ids() -> None:
    """The other state has many more ids, so its index is not kept."""
    state, stored, others = ChangeSetState(), Stored(), ChangeSetState()
    values: list[Update] = [Set(f"v{number}", number) for number in range(4)]
    edit(state, values)
    edit(others, [*values, *(Set(f"w{number}", number) for number in range(20))])
    with forced(Thresholds(delta_changes_divisor=0)):
        stored.write(state)
        edit(state, [Remove("v3")])
        stored.write(state)
    read = stored.read(others=others.cells.columns)
    assert stored.chain.deltas
    assert set(read.cells) == {"v0", "v1", "v2"}
    check_rows(read.cells.columns)


@pytest.mark.parametrize(("limit", "adopted"), [(10, True), (9, False)])
def test_ids_of_a_large_state_are_not_adopted(monkeypatch: pytest.MonkeyPatch, limit: int, adopted: bool) -> None:
    """Copying them would block the event loop."""
    state, stored = ChangeSetState(), Stored()
    edit(state, [Set(f"value {number}", number) for number in range(10)])
    stored.write(state)
    monkeypatch.setattr(value_columns, "MAX_ADOPTED", limit)
    read = stored.read(others=state.cells.columns)
    assert read.cells.columns.adopted == adopted
    assert read.cells == state.cells
    check_rows(read.cells.columns)


def test_ids_of_an_adopted_state_are_shared_in_memory() -> None:
    state, stored = ChangeSetState(), Stored()
    edit(state, [Set(f"value {number}", number) for number in range(10)])
    stored.write(state)
    edit(state, [Set("one more", 1)])
    read = stored.read(others=state.cells.columns)
    columns = read.cells.columns
    assert columns.adopted
    assert "one more" not in columns.index
    assert all(mine is other for mine, other in zip(columns.ids, state.cells.columns.ids, strict=False))

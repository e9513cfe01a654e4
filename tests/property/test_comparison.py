"""Comparing two states by columns gives the same result as comparing each pair of definitions.

Overlays, removed ids, changes of the branch and results of formulas hide contents of the columns. Each occurs in some
runs.
"""

import random

import pytest

from rebaser_core.branches.merge import Definition, same_definition
from rebaser_core.commit import Commit, Computed, Kind
from rebaser_core.state import comparison
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Remove, Set, Unset, Update

IDS = [f"v{number}" for number in range(12)]


def definition(rng: random.Random, id_: str) -> Definition:
    """Draw a definition, often one of a few, so that many are equal on both sides; some differ only in type or sign."""
    values = (0, 1, 1.0, 0.0, -0.0, False, True, None, "", "text", [1], {"a": 1})
    kind = rng.choice(("value", "value", "value", "unset", "derived", "none"))
    if kind == "value":
        return Set(id_, rng.choice(values))
    if kind == "derived":
        return Derive(id_, "sum", {"x": rng.choice((IDS[0], IDS[1]))}, {})
    return Unset(id_) if kind == "unset" else None


def fold(state: ChangeSetState, definitions: dict[str, Definition]) -> None:
    updates: list[Update] = [Remove(id_) if one is None else one for id_, one in definitions.items()]
    state.fold(state.last + 1, Commit("c", state.last, Kind.REBASE, 0, "o", None, None, delta=tuple(updates)))


def compute(rng: random.Random, state: ChangeSetState) -> None:
    """Store results, some of which equal plain values."""
    formulas = [id_ for id_ in IDS if type(state.cells.edit_of(id_)) is Derive]
    computed = tuple([Computed(id_, rng.choice((0, 1, 0.0, None))) for id_ in formulas])
    state.fold(state.last + 1, Commit("c", state.last, Kind.DVU, 0, "o", None, state.last, delta=computed))


def some(rng: random.Random, share: float) -> dict[str, Definition]:
    return {id_: definition(rng, id_) for id_ in IDS if rng.random() < share}


@pytest.mark.parametrize("seed", range(300))
def test_states_compared_by_columns_differ_where_their_definitions_do(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(comparison, "SLOW", rng.randint(1, 5))
    branch, target = ChangeSetState(), ChangeSetState()
    fold(branch, {id_: definition(rng, id_) for id_ in rng.sample(IDS, rng.randint(1, len(IDS)))})
    columns = branch.cells.columns
    room = rng.choice((0, len(columns.state) - columns.count))  # with no room left, the last row has a value
    more: dict[str, Definition] = {f"more{number}": Set(f"more{number}", rng.choice((0, 1))) for number in range(room)}
    fold(branch, more)
    compute(rng, branch)
    base = {id_: branch.cells.edit_of(id_) for id_ in IDS}
    view = branch.view() if rng.random() < 0.5 else None  # while a view is open, edits are folded into the overlay
    later = some(rng, rng.choice((0.0, 0.3, 0.8)))
    fold(branch, later)
    # The branch changed some of them; the others are those of the base, taken over by a rebase.
    changes = {id_: base[id_] for id_ in later if rng.random() < 0.5} | some(rng, 0.1)
    stood = {id_: changes[id_] if id_ in changes else branch.cells.edit_of(id_) for id_ in IDS}
    goes_back = rng.random() < 0.5
    theirs = (base if goes_back else stood) | {id_: branch.cells.edit_of(id_) for id_ in rng.sample(IDS, 2)}
    fold(target, more | {id_: theirs[id_] for id_ in rng.sample(IDS, len(IDS))})
    fold(target, some(rng, 0.2))
    compute(rng, target)
    theirs = {id_: target.cells.edit_of(id_) for id_ in IDS}
    found: dict[str, Definition] = {}
    for part in comparison.definitions_that_differ(branch, changes, target, rng.randint(1, 15)):
        found |= part
    assert found.keys() == {id_ for id_ in IDS if not same_definition(stood[id_], theirs[id_])}
    assert all(same_definition(one, theirs[id_]) for id_, one in found.items())
    if view is not None:
        view.close()

"""What depends on values that changed: the same ids, whether each value is followed by itself or all at once."""

import random

import pytest

from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Match, Remove, Set, Unset, Update

IDS = [f"{letter}{number}" for letter in "ab" for number in range(12)]
EACH, AT_ONCE = Thresholds(reach_at_once_min_share=2.0), Thresholds(reach_at_once_min_share=0.0)


def edit(rng: random.Random, *, patterns: bool) -> Update:
    id_, inputs = rng.choice(IDS), rng.sample(IDS, rng.randint(0, 4))
    if patterns and not rng.randrange(6):
        return Derive(id_, "sum", {"values": Match("b*")})
    derive = Derive(id_, "sum", {"values": inputs})
    edits: list[Update] = [Set(id_, 1), Unset(id_), Remove(id_), derive, derive, derive]
    return rng.choice(edits)


@pytest.mark.parametrize("patterns", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_both_ways_find_the_same(seed: int, patterns: bool) -> None:
    """Edits free rows, and leave edges of removed definitions. Roots are in the order of their rows or in another."""
    rng, state = random.Random(seed), ChangeSetState()
    for sequence in range(1, 120):
        state.cells.apply(edit(rng, patterns=patterns), sequence)
        known = [id_ for id_ in IDS if id_ in state.cells.columns.index]
        roots = rng.choice((known, rng.sample(IDS, rng.randint(0, len(IDS)))))
        state.roots = dict.fromkeys(roots, sequence)
        with forced(EACH):
            expected = state.stale()
        with forced(AT_ONCE):
            assert state.stale() == expected


def test_nothing_is_rebuilt_while_a_view_is_open() -> None:
    state = ChangeSetState()
    for update in (Set("a", 1), Derive("b", "sum", {"values": ["a"]}), Derive("c", "sum", {"values": ["b"]})):
        state.cells.apply(update, 1)
    state.roots["a"] = 1
    with forced(AT_ONCE), state.view():
        edges = state.cells.columns.edges.targets
        assert state.stale() == {"b", "c"}
        assert state.cells.columns.edges.targets is edges
    with forced(AT_ONCE):
        assert state.stale() == {"b", "c"}

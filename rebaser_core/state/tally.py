"""How many values of a state are what, and why those fail that do."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest

from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.values import Fault, State

FOLLOWS = "failed_input"  # the code of a value that fails because another does


@dataclass(frozen=True, slots=True)
class Tally:
    """`counts`: values by state, all states named. `causes`: ids and faults of values that fail by themselves, the
    first few in the order of their ids; `failing`: how many such there are."""

    counts: Mapping[State, int]
    causes: tuple[tuple[str, Fault], ...]
    failing: int

    @property
    def errors(self) -> int:
        return self.counts[State.ERROR]


def tally(state: ChangeSetState, at_most: int = 3) -> Tally:
    """Count the values of `state` as a reader sees them, with the first `at_most` causes. Reads no value."""
    stale = state.stale()
    counts: Counter[State] = Counter(dict.fromkeys(State, 0))
    counts.update(state.cells.states())
    for id_ in stale:
        counts[state.cells[id_].state] -= 1
    counts[State.STALE] += len(stale)
    faults = {id_: one for id_, one in state.cells.faults() if one.code != FOLLOWS and id_ not in stale}
    first = nsmallest(at_most, faults)
    return Tally(counts, tuple((id_, faults[id_]) for id_ in first), len(faults))

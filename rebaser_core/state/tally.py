"""Counts the values of a change set in each `State` (ok, stale, error, unset), lists causes of errors, and finds the
errors that one state has and another does not."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest

from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.values import Fault, State

FAILED_INPUT = "failed_input"  # the code of a value that fails because an input does


@dataclass(frozen=True, slots=True)
class Tally:
    """`counts` is the number of values in each state, zeros included. `failing` tells how many values fail by
    themselves, not because an input fails. `causes` are the ids and faults of the first few of these values, sorted by
    id.
    """

    counts: Mapping[State, int]
    causes: tuple[tuple[str, Fault], ...]
    failing: int

    @property
    def errors(self) -> int:
        return self.counts[State.ERROR]


def tally(state: ChangeSetState, at_most: int = 3) -> Tally:
    """Count the values of `state` as a reader sees them, with up to `at_most` causes. Decodes no value."""
    stale = state.stale()
    counts: Counter[State] = Counter(dict.fromkeys(State, 0))
    counts.update(state.cells.states())
    for id_ in stale:
        counts[state.cells[id_].state] -= 1
    counts[State.STALE] += len(stale)
    faults = {id_: fault for id_, fault in state.cells.faults() if fault.code != FAILED_INPUT and id_ not in stale}
    first = nsmallest(at_most, faults)
    return Tally(counts, tuple((id_, faults[id_]) for id_ in first), len(faults))


def new_faults(before: ChangeSetState, after: ChangeSetState) -> dict[str, Fault]:
    """Return the faults, by id, of the values that are errors in `after`, but not in `before`. Decodes no value.

    Values that fail by themselves come first, then values that fail because an input does; both groups are sorted by
    id. Values that are stale in `after` are left out.
    """
    stale, known = after.stale(), {id_ for id_, _ in before.cells.faults()}
    found = [one for one in after.cells.faults() if one[0] not in known and one[0] not in stale]
    return dict(sorted(found, key=lambda one: (one[1].code == FAILED_INPUT, one[0])))

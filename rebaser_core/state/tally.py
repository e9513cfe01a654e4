"""Counts the values of a change set in each `State` (ok, stale, error, unset), lists the causes of errors, and finds
errors that are new in a later state."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest

from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.values import Fault, State

FAILED_INPUT = "failed_input"  # the error code of a value that cannot be computed because one of its inputs failed


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of values of a change set in each state, and some causes of errors.

    `counts` maps each state to the number of values in this state, which may be 0. `failing` is the number of values
    that fail for a reason other than a failed input. `causes` are the ids and faults of the first few of these values,
    sorted by id.
    """

    counts: Mapping[State, int]
    causes: tuple[tuple[str, Fault], ...]
    failing: int

    @property
    def errors(self) -> int:
        return self.counts[State.ERROR]


def tally(state: ChangeSetState, at_most: int = 3) -> Tally:
    """Count the values of `state`, and list up to `at_most` causes of errors. No value is decoded."""
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
    """Return the faults, by id, of the values that are in error in `after` but not in `before`.

    Values that fail because of a failed input come after all others. Both groups are sorted by id. Values that are
    stale in `after` are not included. No value is decoded.
    """
    stale, known = after.stale(), {id_ for id_, _ in before.cells.faults()}
    found = [one for one in after.cells.faults() if one[0] not in known and one[0] not in stale]
    return dict(sorted(found, key=lambda one: (one[1].code == FAILED_INPUT, one[0])))

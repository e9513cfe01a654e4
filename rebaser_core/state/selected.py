"""Folds commits into a state of which only a few values are wanted, at a cost that does not depend on the others.

Invariant: a wanted value is what it would be if all updates had been folded. So are `last`, `edited`, `status`,
`marks`, `weight`, `taken`, `protected`, `born_ms` and the fields of `branch` but its changes and conflicts. If another
value owes an update of what depends on it, the state `owes` one; it may owe one more often than the whole state.
"""

from collections.abc import Container, Iterator
from dataclasses import replace

from rebaser_core.commit import Commit, Delta
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.computed_table import ComputedTable

OTHERS = ""  # the root that stands for all roots that are not wanted; no value has this id


def fold_selected(
    state: ChangeSetState, sequence: int, commit: Commit, ids: Container[str], weight: int = 0
) -> Iterator[None]:
    """Do what `state.fold_in_steps` does, for the values `ids` only.

    If the delta of `commit` is in a blob, it may be incomplete: it only has to have what concerns `ids`. A `replay`
    that is in a blob need not be loaded.
    """
    kept = select_delta(commit.delta, ids)
    if commit.has_edits and (commit.delta_blob is not None or len(kept) < len(commit.delta)):
        state.roots[OTHERS] = sequence
    yield from state.fold_in_steps(sequence, replace(commit, delta=kept), weight)
    if commit.has_edits:
        state.edited = sequence


def select_delta(delta: Delta, ids: Container[str]) -> Delta:
    """What `delta` says of the values `ids`."""
    if isinstance(delta, ComputedTable):
        return tuple([delta[at] for at, id_ in enumerate(delta.ids) if id_ in ids])
    return tuple([item for item in delta if item.id in ids])  # type: ignore[return-value] # all of one type

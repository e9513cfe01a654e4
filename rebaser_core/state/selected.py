"""Folds commits into a state from which only a few values are needed. The cost does not depend on the other values.

Invariant: the needed values are the same as if all updates had been folded. So are `last`, `edited`, `status`, `marks`,
`weight`, `taken`, `protected`, `born_ms`, and all fields of `branch` except its changes and conflicts. If `owes` would
be true in the complete state, it is also true in this state, but it may be true in this state alone.
"""

from collections.abc import Container, Iterator
from dataclasses import replace

from rebaser_core.commit import Commit, Delta
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.computed_table import ComputedTable

OTHERS = ""  # stands for all roots whose values are not needed; no value can have this id


def fold_selected(
    state: ChangeSetState, sequence: int, commit: Commit, ids: Container[str], weight: int = 0
) -> Iterator[None]:
    """Fold `commit` into `state` like `state.fold_in_steps`, but apply only its edits of the values `ids`.

    If the delta of `commit` is in a blob, the caller needs to load only the items about `ids`. If `commit.replay` is in
    a blob, the caller does not need to load it.
    """
    kept = select_delta(commit.delta, ids)
    if commit.has_edits and (commit.delta_blob is not None or len(kept) < len(commit.delta)):
        state.roots[OTHERS] = sequence
    yield from state.fold_in_steps(sequence, replace(commit, delta=kept), weight)
    if commit.has_edits:
        state.edited = sequence


def select_delta(delta: Delta, ids: Container[str]) -> Delta:
    """Return those items of `delta` that concern the values `ids`."""
    if isinstance(delta, ComputedTable):
        return tuple([delta[at] for at, id_ in enumerate(delta.ids) if id_ in ids])
    return tuple([item for item in delta if item.id in ids])  # type: ignore[return-value] # all items have one type

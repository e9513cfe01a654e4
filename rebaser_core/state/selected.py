"""Folds commits into a state from which only a few values are needed, at a cost that does not depend on the others.

Invariant: the wanted values are the same as if all updates had been folded. The same holds for `last`, `edited`,
`status`, `marks`, `weight`, `taken`, `protected`, `born_ms` and the fields of `branch` except its changes and
conflicts. If the whole state `owes` an update, this state does, too; this state may also owe one when the whole state
does not.
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

    If the delta of `commit` is in a blob, the loaded delta may be incomplete: only the items about `ids` are needed. A
    `replay` that is in a blob need not be loaded.
    """
    kept = select_delta(commit.delta, ids)
    if commit.has_edits and (commit.delta_blob is not None or len(kept) < len(commit.delta)):
        state.roots[OTHERS] = sequence
    yield from state.fold_in_steps(sequence, replace(commit, delta=kept), weight)
    if commit.has_edits:
        state.edited = sequence


def select_delta(delta: Delta, ids: Container[str]) -> Delta:
    """Return the items of `delta` about the values `ids`."""
    if isinstance(delta, ComputedTable):
        return tuple([delta[at] for at, id_ in enumerate(delta.ids) if id_ in ids])
    return tuple([item for item in delta if item.id in ids])  # type: ignore[return-value] # all of one type

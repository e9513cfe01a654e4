"""Finds, among the values on which a value depends, the one that was defined last.

Invariant: each value is visited once, so the cost is proportional to the number of inputs, whatever their paths.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rebaser_core.explain.values import matching
from rebaser_core.updates import Derive, Match

if TYPE_CHECKING:  # at run time, this import would load NumPy
    from rebaser_core.state.change_set import ChangeSetState


def newest_upstream(state: "ChangeSetState", ids: Iterable[str]) -> dict[str, str]:
    """Return, for each of `ids` that exists in `state`, the id of the value that was defined last among this value and
    all values on which it depends, directly or indirectly.

    If several of them were defined by the same commit, the one that is nearest to the value is returned. A value whose
    commit was not recorded counts as defined by the newest commit that may have defined it. Removed inputs do not
    count, because a state does not record which commit removed them.
    """
    state.stale()  # merges the overlay into the columns, which `matching` reads
    return {id_: _newest(state, id_) for id_ in ids if id_ in state.cells}


def _newest(state: "ChangeSetState", id_: str) -> str:
    known = {id_}
    todo = [id_]
    globs: set[str] = set()
    newest, defined = id_, 0
    for one in todo:  # the loop appends to this list
        edited = state.cells.edited(one) or state.untracked
        if edited > defined:
            newest, defined = one, edited
        for input_ in _inputs(state, one, globs):
            if input_ not in known and input_ in state.cells:
                known.add(input_)
                todo.append(input_)
    return newest


def _inputs(state: "ChangeSetState", id_: str, globs: set[str]) -> Iterator[str]:
    """Yield the ids of the inputs of `id_`. The matches of a pattern are yielded unless the pattern is in `globs`, to
    which it is added."""
    definition = state.cells.edit_of(id_)
    if not isinstance(definition, Derive):
        return
    for given in definition.inputs.values():
        for one in (given,) if isinstance(given, (str, Match)) else given:
            if not isinstance(one, Match):
                yield one
            elif one.glob not in globs:
                globs.add(one.glob)
                yield from matching(state, one)

"""Merges a patch into a change set, three-way and id by id, and builds the patch that takes commits back.

Invariant: a merge takes all of a patch or nothing. A caller that finds conflicts must not apply the updates. Only
definitions are merged; derived values follow from them.

A definition is the update that recreates a value (`Set`, `Derive` or `Unset`), or None if the value does not exist.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from rebaser_core.record import record
from rebaser_core.updates import Derive, Remove, Set, Update
from rebaser_core.values import canonical, same

Definition: TypeAlias = Update | None


def definition_of(update: Update) -> Definition:
    """Return the definition after `update`."""
    return None if type(update) is Remove else update


@record
class PatchEntry:
    """One entry of a patch: it changes the definition of `id` from `base` to `theirs`."""

    id: str
    base: Definition
    theirs: Definition


@record
class MergeConflict:
    """An id whose present definition (`ours`) is neither the one that the patch expects (`base`) nor `theirs`."""

    id: str
    base: Definition
    ours: Definition
    theirs: Definition


@dataclass(slots=True)
class Merged:
    """The `updates` that apply a patch, and its `conflicts`."""

    updates: list[Update] = field(default_factory=list)
    conflicts: list[MergeConflict] = field(default_factory=list)

    def add(self, here: Callable[[str], Definition], patch: Iterable[PatchEntry]) -> None:
        """Merge more of a patch. `here` returns the definition of an id in the change set that takes the patch."""
        for entry in patch:
            if same_definition(entry.base, entry.theirs):
                continue
            ours = here(entry.id)
            if same_definition(ours, entry.base):
                self.updates.append(Remove(entry.id) if entry.theirs is None else entry.theirs)
            elif not same_definition(ours, entry.theirs):
                self.conflicts.append(MergeConflict(entry.id, entry.base, ours, entry.theirs))


def same_definition(left: Definition, right: Definition) -> bool:
    """Return whether two definitions of an id are the same, including the types of values and parameters."""
    if type(left) is not type(right):
        return False
    if type(left) is Set and type(right) is Set:
        return same(left.value, right.value)
    if type(left) is Derive and type(right) is Derive:
        return (
            left.function == right.function
            and list(left.inputs.items()) == list(right.inputs.items())
            and canonical(dict(left.params)) == canonical(dict(right.params))
        )
    return True


class NetEffect:
    """The total effect of consecutive commits of one log: by id, the definitions before and after them."""

    def __init__(self) -> None:
        self._before: dict[str, Definition] = {}
        self._after: dict[str, Definition] = {}

    def __len__(self) -> int:
        return len(self._after)

    def add(self, before: Iterable[Update], delta: Iterable[Update]) -> None:
        """Add the next commit. `before` are the definitions that it replaced."""
        stood = {update.id: update for update in before}
        for update in delta:
            id_ = update.id
            if id_ not in self._after:
                self._before[id_] = stood.get(id_)
            self._after[id_] = definition_of(update)

    def inverse(self) -> tuple[PatchEntry, ...]:
        """Return the patch that undoes the net effect: from the definitions after the commits to those before them."""
        return tuple([PatchEntry(id_, after, self._before[id_]) for id_, after in self._after.items()])

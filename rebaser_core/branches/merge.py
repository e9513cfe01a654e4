"""Merges a patch into a change set by a three-way merge of each id, and builds the patch that reverts commits.

Invariant: a patch is applied either completely or not at all. If a merge has conflicts, the caller must not apply its
updates. Only definitions are merged; derived values are computed from them later.

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
    """Return the definition that a value has after `update`."""
    return None if type(update) is Remove else update


@record
class PatchEntry:
    """One entry of a patch, which changes the definition of the value `id` from `base` to `theirs`."""

    id: str
    base: Definition
    theirs: Definition


@record
class MergeConflict:
    """A conflict of a merge: the current definition of `id` (`ours`) is neither the definition that the patch expects
    (`base`) nor the one that it would set (`theirs`)."""

    id: str
    base: Definition
    ours: Definition
    theirs: Definition


@dataclass(slots=True)
class Merged:
    """The result of a merge: the `updates` that apply the patch, and the `conflicts` that prevent it."""

    updates: list[Update] = field(default_factory=list)
    conflicts: list[MergeConflict] = field(default_factory=list)

    def add(self, here: Callable[[str], Definition], patch: Iterable[PatchEntry]) -> None:
        """Merge further entries of the patch. `here` returns the current definition of an id in the change set into
        which the patch is merged."""
        for entry in patch:
            if same_definition(entry.base, entry.theirs):
                continue
            ours = here(entry.id)
            if same_definition(ours, entry.base):
                self.updates.append(Remove(entry.id) if entry.theirs is None else entry.theirs)
            elif not same_definition(ours, entry.theirs):
                self.conflicts.append(MergeConflict(entry.id, entry.base, ours, entry.theirs))


def same_definition(left: Definition, right: Definition) -> bool:
    """Return whether two definitions of one id are equal. Numbers of different types, such as 1 and 1.0, differ."""
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
    """The net effect of consecutive commits of one log: for each id that they edited, its definitions before the first
    commit and after the last commit."""

    def __init__(self) -> None:
        self._before: dict[str, Definition] = {}
        self._after: dict[str, Definition] = {}

    def __len__(self) -> int:
        return len(self._after)

    def add(self, before: Iterable[Update], delta: Iterable[Update]) -> None:
        """Add the next commit, with its updates `delta` and the definitions `before` that they replaced."""
        stood = {update.id: update for update in before}
        for update in delta:
            id_ = update.id
            if id_ not in self._after:
                self._before[id_] = stood.get(id_)
            self._after[id_] = definition_of(update)

    def inverse(self) -> tuple[PatchEntry, ...]:
        """Return the patch that undoes the commits: for each id, it restores the definition from before them."""
        return tuple([PatchEntry(id_, after, self._before[id_]) for id_, after in self._after.items()])

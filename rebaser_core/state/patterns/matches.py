"""The patterns that definitions of a change set name: which patterns match a value, and which values a pattern matches.

A pattern has a row in `Columns` under the key `updates.PATTERN_PREFIX` plus its glob; that row never has a value. The
dependents of that row are the definitions that name the pattern. The inputs of a definition list the pattern's row, not
the values that it matches; the planner looks those up here.

Invariant: writing a value costs as much as the patterns that match it, not as the values that they match. The rows that
a pattern matches are cached once they were looked up. Values that are added or removed afterwards are noted and merged
at the next lookup.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from rebaser_core import thresholds
from rebaser_core.state.patterns.globs import GlobSet
from rebaser_core.state.patterns.id_tree import IdTree
from rebaser_core.state.patterns.links import PatternLinks
from rebaser_core.state.value_columns import ValueColumns
from rebaser_core.updates import PATTERN_PREFIX


class PatternMatches:
    """The patterns of one `Columns`; false when no definition names a pattern.

    `generation` counts values that were added or removed and that a pattern matches, or may have matched before the
    first lookup.
    """

    def __init__(self, columns: ValueColumns) -> None:
        self._columns = columns
        self._patterns = GlobSet()
        self._names: IdTree | None = None  # once somebody has asked
        self._links = PatternLinks()
        self._new: dict[str, None] = {}  # keys that are not linked yet: all there are while there are no names
        self._found: dict[str, _Found] = {}
        self._kept = 0
        self.generation = 0

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, key: str) -> None:
        """`key` is named by a definition now."""
        if self._links.add(self._columns.index[key]):
            self._patterns.add(key[1:])
            self._new[key] = None

    def remove(self, key: str) -> None:
        """`key` is named no more; its row still is its own."""
        self._patterns.remove(key[1:])
        self._links.remove(self._columns.index[key])
        self._new.pop(key, None)
        self._forget(key)

    def keys(self, id_: str) -> list[str]:
        """The keys of the patterns that match `id_`."""
        return [PATTERN_PREFIX + glob for glob in self._patterns.matching(id_)]

    def value_added(self, id_: str) -> None:
        """There is a value `id_` now."""
        if self._names is None:
            self.generation += 1
            return
        self._names.add(id_)
        index, new = self._columns.index, self._new
        keys = self.keys(id_)
        self._links.value_added(index[id_], [index[key] for key in keys if key not in new])
        for found in self._found_by(keys):
            found.came[id_] = None

    def value_removed(self, id_: str) -> None:
        """There is no value `id_` any more; its row still is."""
        if self._names is None:
            self.generation += 1
            return
        self._names.remove(id_)
        row = self._columns.index[id_]
        self._links.value_removed(row)
        for found in self._found_by(self.keys(id_)):
            found.came.pop(id_, None)
            found.went.add(row)

    def _found_by(self, keys: list[str]) -> list["_Found"]:
        """What is kept of the patterns `keys`, by which something moved, if it is worth keeping."""
        self.generation += bool(keys)
        kept = []
        for key in keys:
            found = self._found.get(key)
            if found is None:
                continue
            if len(found.came) + len(found.went) > thresholds.now.matches_noted + len(found.rows) // 4:
                self._forget(key)
            else:
                kept.append(found)
        return kept

    def _forget(self, key: str) -> None:
        found = self._found.pop(key, None)
        if found is not None:
            self._kept -= len(found.rows)

    def links(self) -> PatternLinks:
        """From rows to patterns, all of them linked. Costs what came since somebody asked; the first time, all ids."""
        links, columns = self._links, self._columns
        links.reserve(columns.count)
        if links.needs_rebuild:
            named = links.rows
            links.clear()
            links.reserve(columns.count)
            for row in named:
                links.add(row)
                self._new[columns.ids[row]] = None
        if self._new:
            self._covering(self._new)
        for key in self._new:
            links.link(columns.index[key], self.rows(key))
        self._new.clear()
        return links

    def rows(self, key: str) -> NDArray[np.int32]:
        """The rows of all values that a pattern matches, in the order of their ids."""
        found = self._found.get(key)
        if found is not None and not found.came and not found.went:
            return found.rows
        rows = self._looked_up(key) if found is None else _worked_in(self._columns, found)
        self._forget(key)
        if self._kept + len(rows) > thresholds.now.matches_kept:
            self._found, self._kept = {}, 0
        self._found[key] = _Found(rows)
        self._kept += len(rows)
        return rows

    def _looked_up(self, key: str) -> NDArray[np.int32]:
        names, index = self._covering((key,)), self._columns.index
        found = names.matching(key[1:])
        return np.fromiter(map(index.__getitem__, found), np.int32, len(found))

    def _covering(self, keys: Iterable[str]) -> IdTree:
        """The names, with all that the patterns `keys` may match."""
        if self._names is None:
            self._names = IdTree()
        columns = self._columns
        self._names.cover((key[1:] for key in keys), lambda: compress(columns.ids, columns.state.tobytes()))
        return self._names


@dataclass(slots=True)
class _Found:
    """The rows that a pattern matched; ids that came since, and rows whose ids went, perhaps to come back."""

    rows: NDArray[np.int32]
    came: dict[str, None] = field(default_factory=dict)
    went: set[int] = field(default_factory=set)


def _worked_in(columns: ValueColumns, found: _Found) -> NDArray[np.int32]:
    ids = columns.ids
    rows = found.rows
    if found.went:
        rows = rows[np.isin(rows, list(found.went), invert=True)]  # the ids of those that are left are what they were
    came = sorted(found.came)
    at = [bisect_left(rows, id_, key=ids.__getitem__) for id_ in came]
    return np.insert(rows, at, [columns.index[id_] for id_ in came])

"""The patterns that definitions of a change set name: which patterns match a value, and which values a pattern matches.

A pattern has a row in `Columns` under the key `updates.PATTERN_PREFIX` plus its glob; that row never has a value. The
dependents of that row are the definitions that name the pattern. The inputs of a definition list the pattern's row, not
the values that it matches; the planner looks those up here.

Invariant: the cost of writing a value depends on the number of patterns that match it, not on the number of values that
these patterns match. The first lookup of a pattern caches the rows that it matches. Values that are added or removed
afterwards are recorded, and merged at the next lookup.
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

    While `generation` stays the same, each pattern matches the same values as before. It counts the values that were
    added or removed: all of them before the first lookup, and those that a pattern matches afterwards.
    """

    def __init__(self, columns: ValueColumns) -> None:
        self._columns = columns
        self._patterns = GlobSet()
        self._ids: IdTree | None = None  # None until the first lookup
        self._links = PatternLinks()
        self._new: dict[str, None] = {}  # keys that are not linked yet; before the first lookup, all keys
        self._cache: dict[str, _Matched] = {}
        self._cached_rows = 0
        self.generation = 0

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, key: str) -> None:
        """Add the pattern `key`, because a definition now refers to it."""
        if self._links.add(self._columns.index[key]):
            self._patterns.add(key[1:])
            self._new[key] = None

    def remove(self, key: str) -> None:
        """Remove the pattern `key`, because no definition refers to it any more; it still has its row."""
        self._patterns.remove(key[1:])
        self._links.remove(self._columns.index[key])
        self._new.pop(key, None)
        self._forget(key)

    def keys(self, id_: str) -> list[str]:
        """Return the keys of the patterns that match `id_`."""
        return [PATTERN_PREFIX + glob for glob in self._patterns.matching(id_)]

    def value_added(self, id_: str) -> None:
        """Record the new value `id_`."""
        if self._ids is None:
            self.generation += 1
            return
        self._ids.add(id_)
        index, new = self._columns.index, self._new
        keys = self.keys(id_)
        self._links.value_added(index[id_], [index[key] for key in keys if key not in new])
        for matched in self._cached(keys):
            matched.added[id_] = None

    def value_removed(self, id_: str) -> None:
        """Record that the value `id_` was removed; it still has its row."""
        if self._ids is None:
            self.generation += 1
            return
        self._ids.remove(id_)
        row = self._columns.index[id_]
        self._links.value_removed(row)
        for matched in self._cached(self.keys(id_)):
            matched.added.pop(id_, None)
            matched.removed.add(row)

    def _cached(self, keys: list[str]) -> list["_Matched"]:
        """Return the cached matches of `keys`, which are about to change. Drop entries with too many recorded
        changes."""
        self.generation += bool(keys)
        cached = []
        for key in keys:
            matched = self._cache.get(key)
            if matched is None:
                continue
            if (
                len(matched.added) + len(matched.removed)
                > thresholds.now.match_cache_max_changes + len(matched.rows) // 4
            ):
                self._forget(key)
            else:
                cached.append(matched)
        return cached

    def _forget(self, key: str) -> None:
        matched = self._cache.pop(key, None)
        if matched is not None:
            self._cached_rows -= len(matched.rows)

    def links(self) -> PatternLinks:
        """Return the links from rows to all patterns.

        The cost depends on the number of patterns and values added since the last call. The first call goes over all
        ids.
        """
        links, columns = self._links, self._columns
        links.reserve(columns.count)
        if links.needs_rebuild:
            rows = links.rows
            links.clear()
            links.reserve(columns.count)
            for row in rows:
                links.add(row)
                self._new[columns.ids[row]] = None
        if self._new:
            self._covering(self._new)
        for key in self._new:
            links.link(columns.index[key], self.rows(key))
        self._new.clear()
        return links

    def rows(self, key: str) -> NDArray[np.int32]:
        """Return the rows of all values that a pattern matches, in the order of their ids."""
        matched = self._cache.get(key)
        if matched is not None and not matched.added and not matched.removed:
            return matched.rows
        rows = self._look_up(key) if matched is None else _with_changes(self._columns, matched)
        self._forget(key)
        if self._cached_rows + len(rows) > thresholds.now.match_cache_max_rows:
            self._cache, self._cached_rows = {}, 0
        self._cache[key] = _Matched(rows)
        self._cached_rows += len(rows)
        return rows

    def _look_up(self, key: str) -> NDArray[np.int32]:
        tree, index = self._covering((key,)), self._columns.index
        ids = tree.matching(key[1:])
        return np.fromiter(map(index.__getitem__, ids), np.int32, len(ids))

    def _covering(self, keys: Iterable[str]) -> IdTree:
        """Return the id tree, with all ids that the patterns `keys` may match."""
        if self._ids is None:
            self._ids = IdTree()
        columns = self._columns
        self._ids.cover((key[1:] for key in keys), lambda: compress(columns.ids, columns.state.tobytes()))
        return self._ids


@dataclass(slots=True)
class _Matched:
    """The rows that a pattern matched at a lookup, and the changes after that lookup: added ids, and the rows of
    removed ids (which may exist again)."""

    rows: NDArray[np.int32]
    added: dict[str, None] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)


def _with_changes(columns: ValueColumns, matched: _Matched) -> NDArray[np.int32]:
    """Return the rows that a pattern matches, given the rows of an earlier lookup and the changes since that lookup."""
    ids = columns.ids
    rows = matched.rows
    if matched.removed:
        rows = rows[np.isin(rows, list(matched.removed), invert=True)]  # the remaining rows still have their ids
    added = sorted(matched.added)
    positions = [bisect_left(rows, id_, key=ids.__getitem__) for id_ in added]
    return np.insert(rows, positions, [columns.index[id_] for id_ in added])

"""Finds the patterns that match a value, and the values that a pattern matches, for the patterns that are inputs of
definitions.

A pattern has a row in `Columns` under its key, which is `updates.PATTERN_PREFIX` followed by its glob. This row never
has a value, and its dependents are the definitions that have the pattern as an input. The inputs of such a definition
include only the pattern's row; the planner of updates uses this module to find the values that match the pattern.

Invariant: the cost of writing a value depends on the number of patterns that match it, but not on the number of values
that these patterns match. The first lookup of a pattern caches the rows that match the pattern. When matching values
are added or removed later, this is recorded, and the next lookup updates the cached rows.
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
    """The patterns among the inputs in one `Columns`. The object is false if there are no patterns.

    `generation` is increased when a value is added or removed (after the first lookup, only if a pattern matches the
    value). As long as `generation` stays the same, every pattern matches the same values.
    """

    def __init__(self, columns: ValueColumns) -> None:
        self._columns = columns
        self._patterns = GlobSet()
        self._ids: IdTree | None = None  # None until the first lookup
        self._links = PatternLinks()
        self._new: dict[str, None] = {}  # the keys of patterns to which the matching values are not linked yet
        self._cache: dict[str, _Matched] = {}
        self._cached_rows = 0
        self.generation = 0

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, key: str) -> None:
        """Add the pattern with the key `key`, which a definition has as an input."""
        if self._links.add(self._columns.index[key]):
            self._patterns.add(key[1:])
            self._new[key] = None

    def remove(self, key: str) -> None:
        """Remove the pattern with the key `key`, which no definition uses any more. The pattern must still have its
        row."""
        self._patterns.remove(key[1:])
        self._links.remove(self._columns.index[key])
        self._new.pop(key, None)
        self._forget(key)

    def keys(self, id_: str) -> list[str]:
        """Return the keys of the patterns that match `id_`."""
        return [PATTERN_PREFIX + glob for glob in self._patterns.matching(id_)]

    def value_added(self, id_: str) -> None:
        """Record that the value `id_` was added."""
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
        """Record that the value `id_` was removed. The id must still have its row."""
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
        """Return the cached matches of the patterns `keys`, so that the caller can record a change in each of them.
        Cached matches with too many recorded changes are dropped instead."""
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

        The cost depends on the number of patterns and values that were added since the last call. The first call
        examines all ids.
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
        """Return the rows of all values that the pattern with the key `key` matches, in the order of their ids."""
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
        """Return the tree of ids, after adding all ids that the patterns `keys` may match."""
        if self._ids is None:
            self._ids = IdTree()
        columns = self._columns
        self._ids.cover((key[1:] for key in keys), lambda: compress(columns.ids, columns.state.tobytes()))
        return self._ids


@dataclass(slots=True)
class _Matched:
    """The cached result of a lookup: the rows that a pattern matched, and the changes since then.

    `added` contains the ids of added values, and `removed` the rows of removed values. A value that was removed and
    then added again is in both.
    """

    rows: NDArray[np.int32]
    added: dict[str, None] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)


def _with_changes(columns: ValueColumns, matched: _Matched) -> NDArray[np.int32]:
    """Return the rows that a pattern matches now, computed from the result of an earlier lookup and the changes since
    then."""
    ids = columns.ids
    rows = matched.rows
    if matched.removed:
        rows = rows[np.isin(rows, list(matched.removed), invert=True)]  # the ids of the remaining rows have not changed
    added = sorted(matched.added)
    positions = [bisect_left(rows, id_, key=ids.__getitem__) for id_ in added]
    return np.insert(rows, positions, [columns.index[id_] for id_ in added])

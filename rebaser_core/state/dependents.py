"""Finds the dependents of a row, which are the rows whose definitions have it as an input.

Invariant: the edges of a row lead to all of its dependents. They may also lead to other rows, because the edges of a
removed definition stay until the next `build`.

`build` sorts the edges of all definitions, so that the dependents of row r are `targets[offsets[r]:offsets[r + 1]]`.
Edges that are added later form a linked list for each row, newest first. The list begins with edge `head[r]`. The edge
after `edge` is `next[edge]`, and -1 marks the end of the list. `appended[edge]` is the dependent to which the edge
leads.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rebaser_core import thresholds

# Most change sets have no edges; their arrays are these.
_NO_EDGES: NDArray[np.int32] = np.zeros(0, np.int32)
_NO_OFFSETS: NDArray[np.int64] = np.zeros(1, np.int64)
_NO_VIEW = _NO_EDGES.data
MIN_CHAINED = 16  # edges that fit when the first one is added


class Edges:
    """The edges from each row to its dependents.

    `chained` is the number of edges that were added since the last `build`, and `dead_edges` is the number of edges
    whose definition was removed. If `stale` is true, edges are missing, and `build` must run before a lookup.
    """

    __slots__ = (
        *("_appended", "_head", "_next", "appended", "chained", "dead_edges", "head", "next"),
        *("offsets", "stale", "targets"),
    )

    def __init__(self) -> None:
        self.stale = False
        self.dead_edges = self.chained = 0
        self.offsets, self.targets = _NO_OFFSETS, _NO_EDGES
        self._clear()

    def _clear(self, rows: int = 0) -> None:
        self.chained = 0
        self.head = self.next = self.appended = _NO_EDGES
        self._head = self._next = self._appended = _NO_VIEW
        if rows:
            self.head = np.full(rows, -1, np.int32)
            self._head = self.head.data

    def _views(self) -> None:
        self._head, self._next, self._appended = self.head.data, self.next.data, self.appended.data

    @property
    def needs_rebuild(self) -> bool:
        """Whether it is time for another `build`, because edges are missing, or many were added or removed since the
        last `build`."""
        return self.stale or self.chained + self.dead_edges > max(
            thresholds.now.dependents_rebuild_min_edges, len(self.targets) // 4
        )

    def add(self, row: int, inputs: Sequence[int]) -> None:
        """Add an edge from each of `inputs` to `row`, whose new definition has these inputs."""
        if self.stale or not inputs:
            return
        # With this many new edges, it is cheaper to drop all edges and let the next lookup build them again.
        if self.chained > max(thresholds.now.dependents_drop_min_edges, 2 * len(self.targets)):
            self.stale = True
            self._clear()
            return
        self._make_room(max(inputs) + 1, len(inputs))
        at = self.chained
        if len(inputs) < thresholds.now.vectorized_write_min_inputs:
            head, next_, appended = self._head, self._next, self._appended
            for place, input_row in enumerate(inputs, at):
                next_[place] = head[input_row]
                appended[place] = row
                head[input_row] = place
        else:  # if an input occurs twice, only one of its two equal edges is stored
            places = np.arange(at, at + len(inputs), dtype=np.int32)
            self.next[places] = self.head[inputs]
            self.appended[places] = row
            self.head[inputs] = places
        self.chained += len(inputs)

    def _make_room(self, rows: int, more: int) -> None:
        if rows > len(self.head):
            grown = np.full(max(rows, 2 * len(self.head)), -1, np.int32)
            grown[: len(self.head)] = self.head
            self.head = grown
            self._views()
        if self.chained + more > len(self.next):
            size = max(self.chained + more, 2 * len(self.next), MIN_CHAINED)
            self.next = np.resize(self.next, size)
            self.appended = np.resize(self.appended, size)
            self._views()

    def candidates(self, row: int) -> list[int]:
        """Return all dependents of `row`, and possibly rows that were dependents in the past. A row may occur several
        times."""
        found: list[int] = (
            self.targets[self.offsets[row] : self.offsets[row + 1]].tolist() if row + 1 < len(self.offsets) else []
        )
        if row < len(self.head):
            place = self._head[row]
            while place >= 0:
                found.append(self._appended[place])
                place = self._next[place]
        return found

    def are_exact(self, count: int) -> bool:
        """Whether all edges of `count` rows have been built, and none was removed since."""
        return not (self.stale or self.chained or self.dead_edges) and len(self.offsets) == count + 1

    def reached(self, rows: NDArray[np.int32], count: int) -> NDArray[np.bool_]:
        """Return a mask of `count` rows: those that depend on any of `rows`, directly or through others. The edges must
        be exact."""
        mask = np.zeros(count, np.bool_)
        while len(rows):
            starts = self.offsets[rows]
            lengths = self.offsets[rows + 1] - starts
            places = np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
            found = self.targets[places]
            rows = np.unique(found[~mask[found]])
            mask[rows] = True
        return mask

    def build(self, inputs: NDArray[np.int32], rows: NDArray[np.int32], count: int) -> None:
        """Replace all edges with an edge from `inputs[i]` to `rows[i]` for each i. All row numbers are below
        `count`."""
        self.offsets = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(inputs, minlength=count), out=self.offsets[1:])
        self.targets = rows[np.argsort(inputs, kind="stable")]
        self.stale, self.dead_edges = False, 0
        self._clear(count)

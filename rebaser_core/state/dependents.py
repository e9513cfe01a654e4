"""Finds the dependents of a row: the rows whose definitions name it.

Invariant: the edges lead to all dependents. They may also lead to other rows, because the edges of a removed definition
stay until the next `build`.

`build` sorts the edges of all definitions: the dependents of row r are `targets[offsets[r]:offsets[r + 1]]`. Edges that
are added later form a linked list for each row, newest first: it begins at `head[r]` and continues at `next[edge]`
until that is -1; `appended[edge]` is the dependent.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rebaser_core import thresholds


class Edges:
    """The edges from each row to its dependents.

    `chained` counts the edges that were added since the last `build`, `dead_edges` those whose definition was removed.
    If `stale` is True, edges are missing, and `build` must run before a lookup.
    """

    def __init__(self) -> None:
        self.stale = False
        self.dead_edges = 0
        self.offsets: NDArray[np.int64] = np.zeros(1, np.int64)
        self.targets: NDArray[np.int32] = np.zeros(0, np.int32)
        self._clear(64)

    def _clear(self, rows: int) -> None:
        self.chained = 0
        self.head: NDArray[np.int32] = np.full(rows, -1, np.int32)
        self.next: NDArray[np.int32] = np.zeros(64, np.int32)
        self.appended: NDArray[np.int32] = np.zeros(64, np.int32)
        self._views()

    def _views(self) -> None:
        self._head, self._next, self._appended = self.head.data, self.next.data, self.appended.data

    @property
    def needs_rebuild(self) -> bool:
        """Whether so many edges were added or died since the last `build` that another one pays off."""
        return self.stale or self.chained + self.dead_edges > max(
            thresholds.now.dependents_rebuild_min_edges, len(self.targets) // 4
        )

    def add(self, row: int, inputs: Sequence[int]) -> None:
        """Add edges from each of `inputs` to `row`, which names them now."""
        if self.stale or not inputs:
            return
        # There was no lookup for a long time, so drop the edges; the next lookup rebuilds them.
        if self.chained > max(thresholds.now.dependents_drop_min_edges, 2 * len(self.targets)):
            self.stale = True
            self._clear(64)
            return
        self._make_room(max(inputs) + 1, len(inputs))
        at = self.chained
        if len(inputs) < thresholds.now.vectorized_write_min_inputs:
            head, next_, appended = self._head, self._next, self._appended
            for place, input_row in enumerate(inputs, at):
                next_[place] = head[input_row]
                appended[place] = row
                head[input_row] = place
        else:  # an input that occurs twice keeps one of its two edges, which are equal
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
            size = max(self.chained + more, 2 * len(self.next))
            self.next = np.resize(self.next, size)
            self.appended = np.resize(self.appended, size)
            self._views()

    def candidates(self, row: int) -> list[int]:
        """Return the rows that name `row`, and perhaps rows that no longer do. A row may occur several times."""
        found: list[int] = (
            self.targets[self.offsets[row] : self.offsets[row + 1]].tolist() if row + 1 < len(self.offsets) else []
        )
        if row < len(self.head):
            place = self._head[row]
            while place >= 0:
                found.append(self._appended[place])
                place = self._next[place]
        return found

    def build(self, inputs: NDArray[np.int32], rows: NDArray[np.int32], count: int) -> None:
        """Replace all edges by edges from each `inputs[i]` to `rows[i]`. All rows are from 0 to `count` - 1."""
        self.offsets = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(inputs, minlength=count), out=self.offsets[1:])
        self.targets = rows[np.argsort(inputs, kind="stable")]
        self.stale, self.dead_edges = False, 0
        self._clear(max(count, 64))

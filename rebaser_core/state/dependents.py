"""Who depends on whom: from a row to the rows whose definitions name it.

Invariant: nothing is left out; what is no longer true stays until the next `build`. So a walk along it reaches all that
it must, and perhaps more.

One piece (compressed sparse rows: those of row r are `to[start[r]:start[r + 1]]`) is built from all definitions; what
comes after hangs in a chain for each row (`head`, `next`, `late`), newest first.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rebaser_core import thresholds


class Edges:
    """`lost` counts edges that are no longer true; `behind`: nothing is known, `build` must come first."""

    def __init__(self) -> None:
        self.behind = False
        self.lost = 0
        self.start: NDArray[np.int64] = np.zeros(1, np.int64)
        self.to: NDArray[np.int32] = np.zeros(0, np.int32)
        self._clear(64)

    def _clear(self, rows: int) -> None:
        self.chained = 0
        self.head: NDArray[np.int32] = np.full(rows, -1, np.int32)
        self.next: NDArray[np.int32] = np.zeros(64, np.int32)
        self.late: NDArray[np.int32] = np.zeros(64, np.int32)
        self._views()

    def _views(self) -> None:
        self._head, self._next, self._late = self.head.data, self.next.data, self.late.data

    @property
    def worn(self) -> bool:
        """Whether building anew is paid for by what has come or gone since."""
        return self.behind or self.chained + self.lost > max(thresholds.now.edges_worn, len(self.to) // 4)

    def add(self, row: int, inputs: Sequence[int]) -> None:
        """`row` names `inputs` now."""
        if self.behind or not inputs:
            return
        if self.chained > max(
            thresholds.now.edges_behind, 2 * len(self.to)
        ):  # nobody has asked for long: build when somebody does
            self.behind = True
            self._clear(64)
            return
        self._make_room(max(inputs) + 1, len(inputs))
        at = self.chained
        if len(inputs) < thresholds.now.arrays:
            head, next_, late = self._head, self._next, self._late
            for place, one in enumerate(inputs, at):
                next_[place] = head[one]
                late[place] = row
                head[one] = place
        else:  # of an input that comes twice one place is kept: both say the same
            places = np.arange(at, at + len(inputs), dtype=np.int32)
            self.next[places] = self.head[inputs]
            self.late[places] = row
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
            self.late = np.resize(self.late, size)
            self._views()

    def of(self, row: int) -> list[int]:
        """Rows that name `row`, and perhaps some that did once; repeats possible."""
        found: list[int] = self.to[self.start[row] : self.start[row + 1]].tolist() if row + 1 < len(self.start) else []
        if row < len(self.head):
            place = self._head[row]
            while place >= 0:
                found.append(self._late[place])
                place = self._next[place]
        return found

    def build(self, inputs: NDArray[np.int32], rows: NDArray[np.int32], count: int) -> None:
        """Take `inputs[i]` being named by `rows[i]` as all there is, among rows 0 to `count` - 1."""
        self.start = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(inputs, minlength=count), out=self.start[1:])
        self.to = rows[np.argsort(inputs, kind="stable")]
        self.behind, self.lost = False, 0
        self._clear(max(count, 64))

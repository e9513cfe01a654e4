"""Links from rows to the patterns that match their ids, in arrays, so that compiled loops can follow them.

Invariant: the row of a value leads to exactly those linked patterns that match its id; a row without a value leads to
no pattern. A removed pattern stays in the links until `clear`, with -1 as its row.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebaser_core import thresholds


class PatternLinks:
    """The patterns that match the value in each row, as a linked list for each row.

    Patterns are numbered in the order of `add`; no number is used twice before `clear`. `first_link[row]` is 0 if no
    pattern matches the value in that row, `-n - 1` for the row of pattern n itself, and otherwise the number of a link.
    Link k leads to pattern `link_pattern[k]` and continues at `next_link[k]` until that is 0. Rows that match the same
    patterns share their links. Arrays by pattern: `pattern_row`, the row of its key (-1 if the pattern was removed),
    and `match_count`, how many values it matches.

    `linked` counts pairs of a value and a pattern that matches it; `dead` counts such pairs of removed patterns.
    """

    first_link: NDArray[np.int32]
    link_pattern: NDArray[np.int32]
    next_link: NDArray[np.int32]
    pattern_row: NDArray[np.int32]
    match_count: NDArray[np.int64]

    def __init__(self) -> None:
        self.clear()

    @classmethod
    def empty(cls) -> "PatternLinks":
        """Return links without any pattern: `first_link` is empty."""
        links = cls()
        links.first_link = links.first_link[:0]
        return links

    def clear(self) -> None:
        """Remove all patterns and links."""
        self.first_link, self.pattern_row, self.match_count = (
            np.zeros(64, np.int32),
            np.zeros(16, np.int32),
            np.zeros(16, np.int64),
        )
        self.link_pattern, self.next_link = np.zeros(16, np.int32), np.zeros(16, np.int32)
        self._patterns, self._links = 0, 1  # 0 stands for no link
        self._number: dict[int, int] = {}  # number of each pattern, by its row
        self._known: dict[tuple[int, int], int] = {}  # each link, by its next link and its pattern
        self.linked = self.dead = 0

    @property
    def rows(self) -> list[int]:
        """The rows of all patterns that definitions name."""
        return list(self._number)

    @property
    def needs_rebuild(self) -> bool:
        """Whether enough links are unused to pay for rebuilding all of them."""
        return max(self.dead, self._links) > 2 * self.linked + thresholds.now.pattern_links_max_excess

    def reserve(self, rows: int) -> None:
        """Make room for rows 0 to `rows` - 1."""
        self.first_link = _grown(self.first_link, rows)

    def add(self, row: int) -> bool:
        """Add the pattern in `row`, without links to it. Returns False if it was there already."""
        if row in self._number:
            return False
        number = self._number[row] = self._patterns
        self._patterns += 1
        self.pattern_row, self.match_count = (
            _grown(self.pattern_row, self._patterns),
            _grown(self.match_count, self._patterns),
        )
        self.pattern_row[number], self.match_count[number] = row, 0
        self.reserve(row + 1)
        self.first_link[row] = -number - 1
        return True

    def remove(self, row: int) -> None:
        """Remove the pattern in `row`."""
        number = self._number.pop(row)
        count = int(self.match_count[number])
        self.pattern_row[number], self.match_count[number], self.first_link[row] = -1, 0, 0
        self.linked -= count
        self.dead += count

    def link(self, row: int, members: NDArray[np.int32]) -> None:
        """Link the values in `members` to the pattern in `row`, which has no links yet."""
        if not len(members):
            return
        number = self._number[row]
        self.reserve(int(members.max()) + 1)
        before = self.first_link[members]
        if (before == before[0]).all():
            self.first_link[members] = self._link(int(before[0]), number)
        else:
            distinct, which = np.unique(before, return_inverse=True)
            self.first_link[members] = np.array([self._link(link, number) for link in distinct.tolist()], np.int32)[
                which
            ]
        self.match_count[number] = len(members)
        self.linked += len(members)

    def _link(self, before: int, number: int) -> int:
        link = self._known.get((before, number))
        if link is None:
            link = self._known[before, number] = self._links
            self._links += 1
            self.link_pattern, self.next_link = (
                _grown(self.link_pattern, self._links),
                _grown(self.next_link, self._links),
            )
            self.link_pattern[link], self.next_link[link] = number, before
        return link

    def value_added(self, row: int, patterns: Iterable[int]) -> None:
        """Link the new value in `row` to the patterns in the rows `patterns`, which match it."""
        link = 0
        for number in sorted([self._number[pattern_row] for pattern_row in patterns]):
            link = self._link(link, number)
            self.match_count[number] += 1
            self.linked += 1
        if link:
            self.reserve(row + 1)
            self.first_link[row] = link

    def value_removed(self, row: int) -> None:
        """Unlink the removed value in `row`."""
        if row >= len(self.first_link):
            return
        link = int(self.first_link[row])
        self.first_link[row] = 0
        while link:
            number = self.link_pattern[link]
            if self.pattern_row[number] >= 0:
                self.match_count[number] -= 1
                self.linked -= 1
            link = int(self.next_link[link])


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    if size <= len(array):
        return array
    grown = np.zeros(max(size, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown

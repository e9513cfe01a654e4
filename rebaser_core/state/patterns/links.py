"""Stores links from rows to the patterns that match their ids, in arrays that compiled code can read.

Invariant: the links of a row with a value lead to exactly those patterns that match the value's id. A row without a
value leads to no pattern. Links to a removed pattern stay until `clear`; until then, the pattern's item in
`pattern_row` is -1.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebaser_core import thresholds


class PatternLinks:
    """For each row, a linked list of the patterns that match the value in the row.

    Patterns are numbered in the order of `add`, and no number is used twice before `clear`. `first_link[row]` is the
    number of the first link of a row. It is 0 if no pattern matches the value in the row, and `-n - 1` for the row of
    pattern n itself. Link k leads to pattern `link_pattern[k]`. The number of the next link is `next_link[k]`, or 0 at
    the end of the list. Rows that match the same patterns share their links. `pattern_row[n]` is the row of pattern n,
    or -1 if the pattern was removed, and `match_count[n]` is the number of values that it matches.

    `linked` is the number of pairs of a value and a pattern that matches the value. `dead` is the number of such pairs
    whose pattern was removed.
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
        """Return links without any patterns, in which `first_link` is empty."""
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
        self._patterns, self._links = 0, 1  # the numbers of the next pattern and of the next link; 0 means no link
        self._number: dict[int, int] = {}  # maps the row of a pattern to its number
        self._known: dict[tuple[int, int], int] = {}  # maps a pair of next link and pattern to the link with both
        self.linked = self.dead = 0

    @property
    def rows(self) -> list[int]:
        """The rows of all patterns that have not been removed."""
        return list(self._number)

    @property
    def needs_rebuild(self) -> bool:
        """Whether all links should be built again, because too many of them are unused."""
        return max(self.dead, self._links) > 2 * self.linked + thresholds.now.pattern_links_max_excess

    def reserve(self, rows: int) -> None:
        """Enlarge the arrays, if necessary, for `rows` rows."""
        self.first_link = _grown(self.first_link, rows)

    def add(self, row: int) -> bool:
        """Add the pattern in `row`, without any links. Return false if it was already added."""
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
        """Link the values in the rows `members` to the pattern in `row`, which must not have links yet."""
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
        """Link the new value in `row` to the patterns that match it, which are in the rows `patterns`."""
        link = 0
        for number in sorted([self._number[pattern_row] for pattern_row in patterns]):
            link = self._link(link, number)
            self.match_count[number] += 1
            self.linked += 1
        if link:
            self.reserve(row + 1)
            self.first_link[row] = link

    def value_removed(self, row: int) -> None:
        """Remove the links of `row`, whose value has been removed."""
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

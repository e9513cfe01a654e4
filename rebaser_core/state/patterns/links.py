"""From rows to the patterns that match their ids, in arrays that loops over many rows can follow.

Invariant: a value leads to all patterns that match its id, of those that were linked, and to no other; a row without a
value leads nowhere. A pattern that is named no more stays in links, as one in row -1, until all is cleared.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebaser_core import thresholds


class Ways:
    """Patterns are numbered as they come, and no number comes twice before `clear`.

    `of[row]` is 0 where nothing matches, `-n - 1` for the row of pattern n, and else a link: link k is to pattern
    `pattern[k]`, and goes on at `before[k]`, until that is 0. Rows that the same patterns match share their links.
    By pattern: `row`, where it is named, and `size`, how many values it matches.

    `linked` counts pairs of a value and a pattern that matches it, `lost` those of patterns that are gone.
    """

    of: NDArray[np.int32]
    pattern: NDArray[np.int32]
    before: NDArray[np.int32]
    row: NDArray[np.int32]
    size: NDArray[np.int64]

    def __init__(self) -> None:
        self.clear()

    @classmethod
    def none(cls) -> "Ways":
        """That of no pattern: `of` is empty."""
        made = cls()
        made.of = made.of[:0]
        return made

    def clear(self) -> None:
        """Forget all."""
        self.of, self.row, self.size = np.zeros(64, np.int32), np.zeros(16, np.int32), np.zeros(16, np.int64)
        self.pattern, self.before = np.zeros(16, np.int32), np.zeros(16, np.int32)
        self._patterns, self._links = 0, 1  # link 0 is none
        self._number: dict[int, int] = {}  # of the pattern in a row
        self._known: dict[tuple[int, int], int] = {}  # the link that goes on at one, to a pattern
        self.linked = self.lost = 0

    @property
    def rows(self) -> list[int]:
        """Those of the patterns that are named."""
        return list(self._number)

    @property
    def worn(self) -> bool:
        """Whether so much is of no use that making all anew is paid for."""
        return max(self.lost, self._links) > 2 * self.linked + thresholds.now.ways_slack

    def reserve(self, rows: int) -> None:
        """Make room for rows 0 to `rows` - 1."""
        self.of = _grown(self.of, rows)

    def add(self, row: int) -> bool:
        """The pattern in `row` is named now, and nothing leads to it yet. False if it was named already."""
        if row in self._number:
            return False
        number = self._number[row] = self._patterns
        self._patterns += 1
        self.row, self.size = _grown(self.row, self._patterns), _grown(self.size, self._patterns)
        self.row[number], self.size[number] = row, 0
        self.reserve(row + 1)
        self.of[row] = -number - 1
        return True

    def remove(self, row: int) -> None:
        """The pattern in `row` is named no more."""
        number = self._number.pop(row)
        size = int(self.size[number])
        self.row[number], self.size[number], self.of[row] = -1, 0, 0
        self.linked -= size
        self.lost += size

    def link(self, row: int, members: NDArray[np.int32]) -> None:
        """The pattern in `row`, of which nothing was said before, matches the values in `members`."""
        if not len(members):
            return
        number = self._number[row]
        self.reserve(int(members.max()) + 1)
        before = self.of[members]
        if (before == before[0]).all():
            self.of[members] = self._link(int(before[0]), number)
        else:
            kinds, which = np.unique(before, return_inverse=True)
            self.of[members] = np.array([self._link(one, number) for one in kinds.tolist()], np.int32)[which]
        self.size[number] = len(members)
        self.linked += len(members)

    def _link(self, before: int, number: int) -> int:
        link = self._known.get((before, number))
        if link is None:
            link = self._known[before, number] = self._links
            self._links += 1
            self.pattern, self.before = _grown(self.pattern, self._links), _grown(self.before, self._links)
            self.pattern[link], self.before[link] = number, before
        return link

    def came(self, row: int, patterns: Iterable[int]) -> None:
        """There is a value in `row` that the patterns in the rows `patterns` match."""
        link = 0
        for number in sorted([self._number[one] for one in patterns]):
            link = self._link(link, number)
            self.size[number] += 1
            self.linked += 1
        if link:
            self.reserve(row + 1)
            self.of[row] = link

    def went(self, row: int) -> None:
        """There is no value in `row` any more."""
        if row >= len(self.of):
            return
        link = int(self.of[row])
        self.of[row] = 0
        while link:
            number = self.pattern[link]
            if self.row[number] >= 0:
                self.size[number] -= 1
                self.linked -= 1
            link = int(self.before[link])


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    if size <= len(array):
        return array
    grown = np.zeros(max(size, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown

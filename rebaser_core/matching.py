"""The patterns that definitions of a change set name, in rows: who matches, and what is matched.

A pattern stands in `Columns` as an id would that nobody ever sets: `updates.MARK` and the glob, in a row without a
value. So the way back from it leads to those who match, and nothing lists the values that it matches where they are
written. Who plans asks for them.

Invariant: writing a value costs what its patterns number, not what they match. What is matched is kept once somebody
has asked; what comes and goes is noted, and worked in when somebody asks again.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rebaser_core.names import Names
from rebaser_core.patterns import Patterns
from rebaser_core.updates import MARK

if TYPE_CHECKING:
    from rebaser_core.columns import Columns

_KEPT = 16_000_000  # rows of what is matched that are kept
_NOTED = 64  # what came and went, and is noted, before it is easier to look anew, however little is matched


class Matching:
    """Belongs to `Columns`. False when no definition has a pattern."""

    def __init__(self, columns: "Columns") -> None:
        self._columns = columns
        self._patterns = Patterns()
        self._names: Names | None = None  # all ids, once somebody has asked
        self._found: dict[str, _Found] = {}
        self._kept = 0

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, key: str) -> None:
        """`key` is named by a definition now."""
        self._patterns.add(key[1:])

    def remove(self, key: str) -> None:
        """`key` is named no more."""
        self._patterns.remove(key[1:])
        self._forget(key)

    def keys(self, id_: str) -> list[str]:
        """The keys of the patterns that match `id_`."""
        return [MARK + glob for glob in self._patterns.matching(id_)]

    def came(self, id_: str) -> None:
        """There is a value `id_` now."""
        if self._names is not None:
            self._names.add(id_)
            for found in self._found_by(id_):
                found.came[id_] = None

    def went(self, id_: str) -> None:
        """There is no value `id_` any more; its row still is."""
        if self._names is not None:
            self._names.remove(id_)
            row = self._columns.index[id_]
            for found in self._found_by(id_):
                found.came.pop(id_, None)
                found.went.add(row)

    def _found_by(self, id_: str) -> list["_Found"]:
        """What is kept of the patterns that match `id_`, if it is worth keeping."""
        if not self._found:
            return []
        kept = []
        for key in self.keys(id_):
            found = self._found.get(key)
            if found is None:
                continue
            if len(found.came) + len(found.went) > _NOTED + len(found.rows) // 4:
                self._forget(key)
            else:
                kept.append(found)
        return kept

    def _forget(self, key: str) -> None:
        found = self._found.pop(key, None)
        if found is not None:
            self._kept -= len(found.rows)

    def rows(self, key: str) -> NDArray[np.int32]:
        """The rows of all values that a pattern matches, in the order of their ids."""
        columns = self._columns
        found = self._found.get(key)
        if found is not None:
            rows = found.rows
            if found.came or found.went:
                rows = _worked_in(columns, found)
                self._forget(key)
        else:
            names = self._names
            if names is None:
                ids = columns.ids
                self._names = names = Names(ids[row] for row in columns.rows().tolist())
            rows = np.array([columns.index[id_] for id_ in names.matching(key[1:])], np.int32)
        if key not in self._found:
            if self._kept + len(rows) > _KEPT:
                self._found, self._kept = {}, 0
            self._found[key] = _Found(rows)
            self._kept += len(rows)
        return rows


@dataclass(slots=True)
class _Found:
    """The rows that a pattern matched; ids that came since, and rows whose ids went, perhaps to come back."""

    rows: NDArray[np.int32]
    came: dict[str, None] = field(default_factory=dict)
    went: set[int] = field(default_factory=set)


def _worked_in(columns: "Columns", found: _Found) -> NDArray[np.int32]:
    ids = columns.ids
    rows = found.rows
    if found.went:
        rows = rows[np.isin(rows, list(found.went), invert=True)]  # the ids of those that are left are what they were
    came = sorted(found.came)
    at = [bisect_left(rows, id_, key=ids.__getitem__) for id_ in came]
    return np.insert(rows, at, [columns.index[id_] for id_ in came])

"""The patterns that definitions of a change set name, in rows: who matches, and what is matched.

A pattern stands in `Columns` as an id would that nobody ever sets: `updates.MARK` and the glob, in a row without a
value. So the way back from it leads to those who match, and nothing lists the values that it matches where they are
written. Who plans asks for them.

Invariant: writing a value costs what its patterns number, not what they match. What is matched is kept once somebody
has asked, and only for as long as no such id comes or goes.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rebaser_core.names import Names
from rebaser_core.patterns import Patterns
from rebaser_core.updates import MARK

if TYPE_CHECKING:
    from rebaser_core.columns import Columns

_KEPT = 16_000_000  # rows of what is matched that are kept


class Matching:
    """Belongs to `Columns`. False when no definition has a pattern."""

    def __init__(self, columns: "Columns") -> None:
        self._columns = columns
        self._patterns = Patterns()
        self._names: Names | None = None  # all ids, once somebody has asked
        self._rows: dict[str, NDArray[np.int32]] = {}
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
            self._changed(id_)

    def went(self, id_: str) -> None:
        """There is no value `id_` any more."""
        if self._names is not None:
            self._names.remove(id_)
            self._changed(id_)

    def _changed(self, id_: str) -> None:
        if self._rows:
            for key in self.keys(id_):
                self._forget(key)

    def _forget(self, key: str) -> None:
        rows = self._rows.pop(key, None)
        if rows is not None:
            self._kept -= len(rows)

    def rows(self, key: str) -> NDArray[np.int32]:
        """The rows of all values that a pattern matches, in the order of their ids."""
        found = self._rows.get(key)
        if found is None:
            columns = self._columns
            names = self._names
            if names is None:
                ids = columns.ids
                self._names = names = Names(ids[row] for row in columns.rows().tolist())
            index = columns.index
            found = np.array([index[id_] for id_ in names.matching(key[1:])], np.int32)
            if self._kept + len(found) > _KEPT:
                self._rows, self._kept = {}, 0
            self._rows[key] = found
            self._kept += len(found)
        return found

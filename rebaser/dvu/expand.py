"""What patterns among inputs stand for when an update is planned.

Invariant: costs what the patterns of the affected values match; where no definition has one, nobody comes here.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rebaser_core.codes import ABSENT
from rebaser_core.columns import Columns
from rebaser_core.errors import DvuError
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.shapes import Shape
from rebaser_core.updates import MARK

Ints: TypeAlias = npt.NDArray[np.int32]

MAX_INPUTS = (
    DEFAULT_LIMITS.max_inputs
)  # of a value, patterns included; whatever the settings, as all servers must agree
MAX_ALL = 50_000_000  # of all values that an update has to do with: 30 bytes each


@dataclass(slots=True)
class Expanded:
    """The inputs of some rows as rows: those of row i are `inputs[ptr[i]:ptr[i + 1]]`.

    `shape` is that of row i, or `-k - 1` for `wide[k]`, where a pattern became as many inputs as it matches. `crowded`
    are those that have more than `MAX_INPUTS`; no input of theirs is here.
    """

    ptr: Ints
    inputs: Ints
    shape: Ints
    wide: list[Shape]
    crowded: list[int]

    def local(self, rows: Ints, mark: npt.NDArray[np.uint8], count: int) -> tuple[Ints, Ints]:
        """Inputs by position in `rows`, which are marked among `count`, or `-k - 1` for constant k; and the rows of
        these constants."""
        position = np.empty(count, np.int32)
        position[rows] = np.arange(len(rows), dtype=np.int32)
        inside = mark[self.inputs] > 0
        idx = np.empty(len(self.inputs), np.int32)
        idx[inside] = position[self.inputs[inside]]
        outside, constant = np.unique(self.inputs[~inside], return_inverse=True)
        idx[~inside] = -1 - constant
        return idx, outside


def expand(columns: Columns, rows: Ints) -> Expanded:
    """The inputs of `rows`, all derived, with all that their patterns match. Raises `DvuError` if they are too many."""
    counts = columns.shapes.arity[columns.shape[rows]].astype(np.int64)
    starts = np.cumsum(counts) - counts
    refs = columns.refs[np.arange(counts.sum()) + np.repeat(columns.in_at[rows] - starts, counts)]
    members = _members(columns, refs)
    owner = np.repeat(np.arange(len(rows)), counts)
    patterns = np.flatnonzero(np.isin(refs, list(members)))
    sizes = np.ones(len(refs), np.int64)
    sizes[patterns] = [len(members[row]) for row in refs[patterns].tolist()]
    per_row = np.bincount(owner, sizes, len(rows)).astype(np.int64)
    crowded = np.flatnonzero(per_row > MAX_INPUTS)
    crowded = crowded[np.isin(crowded, owner[patterns])]
    per_row[crowded] = 0
    sizes[np.isin(owner, crowded)] = 0
    total = int(per_row.sum())
    if total > MAX_ALL:
        raise DvuError(f"patterns make {total} inputs of one update; at most {MAX_ALL}", code="too_large")
    ptr = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(per_row, out=ptr[1:])
    at = np.cumsum(sizes) - sizes
    alone = sizes > 0
    alone[patterns] = False
    inputs = np.empty(total, np.int32)
    inputs[at[alone]] = refs[alone]
    for place in patterns[sizes[patterns] > 0].tolist():
        inputs[at[place] : at[place] + sizes[place]] = members[int(refs[place])]
    shape, wide = _shapes(
        columns, columns.shape[rows], owner[patterns], patterns - starts[owner[patterns]], sizes[patterns]
    )
    return Expanded(ptr, inputs, shape, wide, crowded.tolist())


def _members(columns: Columns, refs: Ints) -> dict[int, Ints]:
    """By row of each pattern among `refs`, the rows that it matches."""
    patterns = columns.patterns
    nothing_there = np.unique(refs[columns.state[refs] == ABSENT]).tolist()
    return {
        row: patterns.rows(key)
        for row in nothing_there
        if patterns is not None and (key := columns.ids[row])[0] == MARK
    }


def _shapes(columns: Columns, shape: Ints, owners: Any, places: Any, sizes: Any) -> tuple[Ints, list[Shape]]:
    """`shape` with those of rows that have patterns: row `owners[i]` has one as input `places[i]`, which becomes
    `sizes[i]` inputs."""
    known: dict[tuple[int, ...], int] = {}
    wide: list[Shape] = []
    found: dict[int, list[int]] = {}
    for owner, place, size in zip(owners.tolist(), places.tolist(), sizes.tolist(), strict=True):
        found.setdefault(owner, []).extend((place, size))
    for owner, said in found.items():
        key = (int(shape[owner]), *said)
        if key not in known:
            wide.append(_widened(columns.shapes[key[0]], dict(zip(said[::2], said[1::2], strict=True))))
            known[key] = -len(wide)
        shape[owner] = known[key]
    return shape, wide


def _widened(shape: Shape, sizes: dict[int, int]) -> Shape:
    at = 0
    inputs = []
    for name, count in shape.inputs:
        end = at + abs(count)
        inputs.append((name, count if count < 0 else sum(sizes.get(place, 1) for place in range(at, end))))
        at = end
    return Shape(shape.function, tuple(inputs), shape.params)

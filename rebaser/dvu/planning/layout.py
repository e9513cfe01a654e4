"""The whole graph of a change set put in order, kept until a definition changes.

Invariant: what is kept is of the definitions as they are, or not given out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from rebaser.dvu.planning import subgraph
from rebaser.dvu.planning.loop_loader import loops_for
from rebaser.dvu.wire.structure import Structure
from rebaser_core.errors import DvuError
from rebaser_core.state.columns import Columns
from rebaser_core.state.computed_table import RowIds


@dataclass(slots=True, eq=False)
class GraphLayout:
    """The structure of a change set as its definitions were when their count was `defined`, and what their patterns
    match when that had `moved` so often; None for one with a cycle, or with more inputs by pattern than may be.

    `rows` by slot, and the way back: `slot` by row, -1 for a row that is in no definition. `names` are the ids of the
    nodes, once a large update has asked for them.
    """

    defined: int
    moved: int
    structure: Structure | None
    rows: subgraph.Ints
    slot: subgraph.Ints
    sent: bool = False
    names: "IdText | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class IdText:
    """Ids in one piece, each with a line break behind it; `ends` tells where it ends, by node."""

    text: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, ids: Sequence[str]) -> "IdText":
        """Those of `ids`, of which none has a line break in it."""
        text = np.frombuffer("".join([f"{id_}\n" for id_ in ids]).encode(), np.uint8)
        return cls(text, np.flatnonzero(text == ord("\n")) + 1)

    def lines(self, nodes: subgraph.Ints, interpreted_max: int) -> bytes:
        """The ids of `nodes`, of which there is one at least, a line each."""
        first, last = int(nodes[0]), int(nodes[-1])
        if last - first == len(nodes) - 1 and bool((np.diff(nodes) == 1).all()):  # all, most of the time
            return self.text[self.ends[first - 1] if first else 0 : self.ends[last] - 1].tobytes()
        lengths = np.diff(self.ends, prepend=0)
        out = np.empty(int(lengths[nodes].sum()), np.uint8)
        loops_for(len(nodes), interpreted_max).gather(self.text, self.ends, nodes, out)
        return out[:-1].tobytes()


@dataclass(frozen=True, slots=True)
class TextRowIds(RowIds):
    """`RowIds` of many nodes of one structure, whose text is at hand."""

    names: IdText
    nodes: subgraph.Ints
    interpreted_max: int

    def lines(self) -> bytes:
        return self.names.lines(self.nodes, self.interpreted_max)


_layouts: "WeakKeyDictionary[Columns, GraphLayout]" = WeakKeyDictionary()


def cached_layout(columns: Columns) -> GraphLayout | None:
    """What was laid for the definitions as they are."""
    found = _layouts.get(columns)
    return (
        found
        if found is not None and (found.defined, found.moved) == (columns.definition_generation, _moved(columns))
        else None
    )


def _moved(columns: Columns) -> int:
    return columns.patterns.generation if columns.patterns else 0


def build_layout(columns: Columns, interpreted_max: int) -> GraphLayout:
    """Put all definitions in order. Costs what they all cost, and is kept until one of them changes, or what one of
    their patterns matches."""
    made = _layouts[columns] = _layout_of(columns, interpreted_max)
    return made


def _layout_of(columns: Columns, interpreted_max: int) -> GraphLayout:
    derived = np.flatnonzero(columns.template[: columns.count] >= 0).astype(np.int32)
    count = len(derived)
    made = GraphLayout(columns.definition_generation, _moved(columns), None, *np.zeros((2, 0), np.int32))
    try:
        behind = subgraph.expand_patterns(columns, derived, interpreted_max)
    except DvuError:
        return made
    if behind is not None and behind.crowded:
        return made
    shape, wide = (columns.template[derived], []) if behind is None else (behind.shape, behind.wide)
    mark = np.zeros(columns.count, np.uint8)
    mark[derived] = 1
    ptr, idx, outside = subgraph.local_edges(columns, derived, mark, interpreted_max, behind)
    run = loops_for(count + len(idx), interpreted_max)
    order = np.arange(count, dtype=np.int32) if run.ascending(ptr, idx) else _depth_first_order(run, ptr, idx)
    if len(order) == count:
        rank = np.empty(count, np.int32)
        rank[order] = np.arange(count, dtype=np.int32)
        refs = np.empty(len(idx), np.int32)
        run.relabel(order, rank, ptr, idx, len(outside), refs)
        known, which = np.unique(shape[order], return_inverse=True)
        shapes = [columns.templates[at] if at >= 0 else wide[-at - 1] for at in known.tolist()]
        made.structure = Structure.make(len(outside), shapes, which.astype(np.int32), refs)
        made.rows = np.concatenate((outside, derived[order]))
        made.slot = np.full(columns.count, -1, np.int32)
        made.slot[made.rows] = np.arange(len(made.rows), dtype=np.int32)
    return made


def _depth_first_order(run: Any, ptr: subgraph.Ints, idx: subgraph.Ints) -> subgraph.Ints:
    """Positions with inputs first; not all of them if some depend on each other."""
    count = len(ptr) - 1
    waiting, sptr, sidx = np.zeros(count, np.int32), np.zeros(count + 1, np.int32), np.empty(len(idx), np.int32)
    run.successors(ptr, idx, waiting, sptr, sidx)
    order = np.empty(count, np.int32)
    return order[: run.depth_first(sptr, sidx, waiting, np.empty(count, np.int32), order)]

"""Sorts the whole graph of a change set topologically, and keeps that order until a definition changes.

Invariant: a cached layout is used only if it was built from the current definitions and pattern matches.
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
    """The whole graph of a change set in topological order, as a structure, and the row of each of its slots.

    `generation` identifies the definitions and pattern matches for which the layout was built. `structure` is None if
    the graph has a cycle, or if its patterns match too many values.

    `rows[s]` is the row of slot `s`. `slot[row]` is the slot of a row, or -1 if the row is neither a derived value nor
    an input of one. `sent` is True once workers have received the structure. `id_text` has the ids of the nodes once a
    large update has needed them.
    """

    generation: tuple[int, int]
    structure: Structure | None
    rows: subgraph.Ints
    slot: subgraph.Ints
    sent: bool = False
    id_text: "IdText | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class IdText:
    """A UTF-8 text that consists of ids, each followed by a line break. `ends[i]` is the offset, in bytes, at which the
    line of id `i` ends, after the line break."""

    text: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, ids: Sequence[str]) -> "IdText":
        """Return `ids` as one text, an id per line. No id may contain a line break."""
        text = np.frombuffer("".join([f"{id_}\n" for id_ in ids]).encode(), np.uint8)
        return cls(text, np.flatnonzero(text == ord("\n")) + 1)

    def lines(self, nodes: subgraph.Ints, interpreted_max: int) -> bytes:
        """Return the ids at the indexes `nodes`, separated by line breaks. `nodes` must not be empty."""
        first, last = int(nodes[0]), int(nodes[-1])
        if last - first == len(nodes) - 1 and bool((np.diff(nodes) == 1).all()):  # `nodes` are usually consecutive
            return self.text[self.ends[first - 1] if first else 0 : self.ends[last] - 1].tobytes()
        lengths = np.diff(self.ends, prepend=0)
        out = np.empty(int(lengths[nodes].sum()), np.uint8)
        loops_for(len(nodes), interpreted_max).concatenate(self.text, self.ends, nodes, out)
        return out[:-1].tobytes()


@dataclass(frozen=True, slots=True)
class TextRowIds(RowIds):
    """The ids of `nodes`. `lines` copies them from `id_text`, which is faster than joining them one by one."""

    id_text: IdText
    nodes: subgraph.Ints
    interpreted_max: int

    def lines(self) -> bytes:
        return self.id_text.lines(self.nodes, self.interpreted_max)


_layouts: "WeakKeyDictionary[Columns, GraphLayout]" = WeakKeyDictionary()


def cached_layout(columns: Columns) -> GraphLayout | None:
    """Return the cached layout of `columns`; None if there is none for the current definitions and pattern matches."""
    layout = _layouts.get(columns)
    return layout if layout is not None and layout.generation == _generation(columns) else None


def build_layout(columns: Columns, interpreted_max: int) -> GraphLayout:
    """Put the whole graph of a change set in topological order, and cache the result.

    The cost grows with the number of definitions and their inputs. The layout remains valid until a definition changes
    or a pattern matches other ids.
    """
    layout = _layouts[columns] = _layout_of(columns, interpreted_max)
    return layout


def _generation(columns: Columns) -> tuple[int, int]:
    return columns.definition_generation, columns.patterns.generation if columns.patterns else 0


def _layout_of(columns: Columns, interpreted_max: int) -> GraphLayout:
    derived = np.flatnonzero(columns.template[: columns.count] >= 0).astype(np.int32)
    count = len(derived)
    layout = GraphLayout(_generation(columns), None, *np.zeros((2, 0), np.int32))
    try:
        expansion = subgraph.expand_patterns(columns, derived, interpreted_max)
    except DvuError:
        return layout
    if expansion is not None and expansion.faults:
        return layout
    mark = np.zeros(columns.count, np.uint8)
    mark[derived] = 1
    ptr, idx, outside = subgraph.local_edges(columns, derived, mark, interpreted_max, expansion)
    loops = loops_for(count + len(idx), interpreted_max)
    order = np.arange(count, dtype=np.int32) if loops.is_topological(ptr, idx) else _topological_order(loops, ptr, idx)
    if len(order) < count:
        return layout
    rank = np.empty(count, np.int32)
    rank[order] = np.arange(count, dtype=np.int32)
    refs = np.empty(len(idx), np.int32)
    loops.input_slots(order, rank, ptr, idx, len(outside), refs)
    template = columns.template[derived] if expansion is None else expansion.template
    used, which = np.unique(template[order], return_inverse=True)
    templates = [
        columns.templates[number] if expansion is None or number >= 0 else expansion.widened[-number - 1]
        for number in used.tolist()
    ]
    layout.structure = Structure.make(len(outside), templates, which.astype(np.int32), refs)
    layout.rows = np.concatenate((outside, derived[order]))
    layout.slot = np.full(columns.count, -1, np.int32)
    layout.slot[layout.rows] = np.arange(len(layout.rows), dtype=np.int32)
    return layout


def _topological_order(loops: Any, ptr: subgraph.Ints, idx: subgraph.Ints) -> subgraph.Ints:
    """Return the positions in topological order, without those that are in a cycle or depend on one."""
    count = len(ptr) - 1
    waiting, sptr, sidx = np.zeros(count, np.int32), np.zeros(count + 1, np.int32), np.empty(len(idx), np.int32)
    loops.reverse_edges(ptr, idx, waiting, sptr, sidx)
    order = np.empty(count, np.int32)
    return order[: loops.depth_first(sptr, sidx, waiting, np.empty(count, np.int32), order)]

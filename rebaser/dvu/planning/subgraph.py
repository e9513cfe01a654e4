"""Finds the subgraph of the values that depend on the roots of an update, and sorts it topologically.

Invariant: the cost grows with the affected values and their edges, not with the size of the change set. (Some arrays
have an item for each row of the change set, but unused items are never read or written.) No function is recursive, so a
chain of a million values takes no longer than a flat graph.
"""

from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rebaser.dvu.planning import patterns
from rebaser.dvu.planning.loop_loader import loops_for
from rebaser_core.state.change_set import View
from rebaser_core.state.columns import Columns
from rebaser_core.state.kinds import ABSENT
from rebaser_core.state.patterns.links import PatternLinks
from rebaser_core.state.templates import DefinitionTemplate
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import functions_of

Ints: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]

_NO_LINKS: Final = PatternLinks.empty()
_NO_EXPANSION: Final = tuple(np.zeros(0, kind) for kind in (np.int32, np.int64, np.int64, np.int32, np.int64))


@dataclass(slots=True)
class Subgraph:
    """The derived values that an update may change, numbered by position: `rows[i]` is the row at position `i`.

    The inputs of position `i`, in declared order, are `idx[ptr[i]:ptr[i + 1]]`. Each is a position or, if it is not in
    the subgraph, `-k - 1` for constant `k`, whose row is `outside[k]`. The dependents of position `i` are
    `sidx[sptr[i]:sptr[i + 1]]`.

    `dirty[i]` is 1 if the value must be computed even if no input changes: it is a root, one of its inputs is a root,
    or a recompute of it was requested. `order` lists all positions outside cycles, inputs before dependents, level by
    level. `cycles` lists the members of each cycle.

    `template[i]` is an index into the templates of the change set, or `-k - 1` for `widened[k]`. `faults` maps each
    position whose patterns match too many values to the code and message of its fault. Such a position has no inputs
    in this subgraph.
    """

    rows: Ints
    ptr: Ints
    idx: Ints
    outside: Ints
    sptr: Ints
    sidx: Ints
    dirty: npt.NDArray[np.uint8]
    order: Ints
    cycles: list[list[int]]
    template: Ints
    widened: list[DefinitionTemplate]
    faults: dict[int, tuple[str, str]]


@dataclass(slots=True)
class Reached:
    """The derived rows that an update may change: derived roots, rows to recompute, and all rows that depend on a root
    or on a row to recompute.

    `direct` is a number: the first `direct` items of `rows` are roots, direct dependents of roots, or rows to
    recompute. `mark` has an item for each row of the change set: 1 if the row is in `rows`, otherwise 0.
    """

    rows: Ints
    direct: int
    mark: npt.NDArray[np.uint8]


def refresh_indexes(columns: Columns) -> None:
    """Bring the indexes of `columns` up to date: the edges and the pattern links, which planning follows.

    Only one thread at a time may change these indexes. `update` calls this function first, under a lock, so the calls
    in `plan` and `build_subgraph` have nothing to do.
    """
    columns.compact()
    if columns.patterns:
        columns.patterns.links()


def root_rows(view: View) -> Ints:
    """Return the rows of the roots of `view`, followed by the rows of the patterns that match the ids of removed roots.
    A removed root may have no row."""
    roots, columns = view.roots, view.columns
    index, globs = columns.index, columns.patterns
    rows = np.fromiter(map(index.get, roots, repeat(-1)), np.int32, len(roots))
    known = rows[rows >= 0]
    if not globs or (len(known) == len(rows) and columns.state[known].all()):
        return known
    removed = (rows < 0) | (columns.state[rows] == ABSENT)
    keys = {key for id_ in compress(roots, removed.tolist()) for key in globs.keys(id_)}
    return np.concatenate((known, np.array([index[key] for key in keys], np.int32)))


def recompute_rows(view: View) -> Ints:
    """Return the rows of the derived values that call a function for which a recompute was requested."""
    if not view.recompute:
        return np.zeros(0, np.int32)
    return view.columns.derived(functions_of(view.recompute)).astype(np.int32)


def input_count(columns: Columns, rows: Ints, interpreted_max: int) -> int:
    """Return the number of inputs of all the derived `rows`; each value that a pattern matches counts as one."""
    declared = _declared_inputs(columns, rows)
    if not columns.patterns:
        return declared
    counts, _ = patterns.input_counts(columns, rows, loops_for(declared, interpreted_max))
    return int(counts.sum())


def _declared_inputs(columns: Columns, rows: Ints) -> int:
    """Return the number of inputs of all the derived `rows`; each pattern counts as one."""
    return int(columns.templates.arity[columns.template[rows]].sum(dtype=np.int64))


def expand_patterns(columns: Columns, rows: Ints, interpreted_max: int) -> patterns.Expansion | None:
    """Return the inputs of the derived `rows`, with patterns replaced by the values that they match; None if the change
    set has no patterns.

    Raise `DvuError` if `rows` have too many inputs together after that replacement.
    """
    if not columns.patterns:
        return None
    return patterns.expand(columns, rows, loops_for(_declared_inputs(columns, rows), interpreted_max))


def build_subgraph(view: View, limits: Thresholds, reached: Reached | None = None) -> Subgraph:
    """Return the subgraph of all derived values that the update of `view` may change; see `Reached`.

    `reached` is the result of `reach`, if the caller has it already. Raise `DvuError` if the values have too many
    inputs together after patterns are replaced by the values that they match.
    """
    columns = view.columns
    if reached is None:
        refresh_indexes(columns)
        reached = reach(view, root_rows(view), limits)
        assert reached is not None  # noqa: S101 - without a limit, `reach` finds all rows
    rows, interpreted_max = reached.rows, limits.interpreted_max
    count = len(rows)
    expansion = expand_patterns(columns, rows, interpreted_max)
    ptr, idx, outside = local_edges(columns, rows, reached.mark, interpreted_max, expansion)
    loops = loops_for(count + len(idx), interpreted_max)
    waiting, sptr, sidx = np.zeros(count, np.int32), np.zeros(count + 1, np.int32), np.empty(len(idx), np.int32)
    loops.reverse_edges(ptr, idx, waiting, sptr, sidx)
    order, cycles = _topological_order(loops, sptr, sidx, waiting)
    dirty = np.zeros(count, np.uint8)
    dirty[: reached.direct] = 1
    if expansion is None:
        return Subgraph(rows, ptr, idx, outside, sptr, sidx, dirty, order, cycles, columns.template[rows], [], {})
    definitions = (expansion.template, expansion.widened, expansion.faults)
    return Subgraph(rows, ptr, idx, outside, sptr, sidx, dirty, order, cycles, *definitions)


def local_edges(
    columns: Columns,
    rows: Ints,
    mark: npt.NDArray[np.uint8],
    interpreted_max: int,
    expansion: patterns.Expansion | None,
) -> tuple[Ints, Ints, Ints]:
    """Return the arrays `ptr`, `idx` and `outside` of a `Subgraph` that consists of `rows`. `mark[row]` must be 1 for
    each of `rows`, and 0 for their other inputs."""
    if expansion is None:
        edges, expanded = _declared_inputs(columns, rows), _NO_EXPANSION
    else:
        edges = int(expansion.input_counts.sum())
        expanded = (
            *(expansion.pattern_of, expansion.begin, expansion.size),
            *(expansion.members, expansion.input_counts),
        )
    ptr, idx = np.zeros(len(rows) + 1, np.int32), np.empty(edges, np.int32)
    outside = np.empty(edges, np.int32)
    definitions = (columns.template, columns.first_input, columns.templates.arity, columns.refs)
    position, constant = np.empty(columns.count, np.int32), np.zeros(columns.count, np.int32)
    constants = loops_for(len(rows) + edges, interpreted_max).local_edges(
        *(rows, definitions, expanded, mark, position, constant, ptr, idx, outside)
    )
    return ptr, idx, outside[:constants]


def reach(view: View, roots: Ints, limits: Thresholds, max_rows: int | None = None) -> Reached | None:
    """Return the derived rows that the update may change because of `roots` or a requested recompute; None if there are
    more than `max_rows` such rows."""
    columns = view.columns
    edges, count, interpreted_max = columns.edges, columns.count, limits.interpreted_max
    max_rows = count if max_rows is None else max_rows
    recomputed = recompute_rows(view)
    if len(recomputed) > max_rows:
        return None
    links = columns.patterns.links() if columns.patterns else _NO_LINKS
    graph = (
        (columns.state, columns.template, columns.first_input, columns.templates.arity, columns.refs),
        (edges.offsets, edges.targets, edges.head, edges.next, edges.appended),
        (links.first_link, links.link_pattern, links.next_link, links.pattern_row),
        limits.verify_edge_max_inputs if edges.dead_edges else -1,
    )
    out = np.empty(count, np.int32)
    out[: len(recomputed)] = recomputed
    starts = len(roots) + len(recomputed)
    # Each attempt is a pair: the `size` for `loops_for`, and the maximum number of rows. If there are few rows to start
    # from, the first attempt uses interpreted loops and gives up when it finds too many rows for them.
    attempts = []
    if starts <= interpreted_max:
        attempts.append((starts, min(interpreted_max, max_rows)))
    if starts > interpreted_max or max_rows > interpreted_max:
        attempts.append((interpreted_max + 1, max_rows))
    for work, limit in attempts:
        mark = np.zeros(count, np.uint8)
        mark[recomputed] = 1
        direct, found = loops_for(work, interpreted_max).reach(roots, len(recomputed), *graph, limit, mark, out)
        if direct >= 0:
            return Reached(out[:found].copy(), direct, mark)
    return None


def _topological_order(loops: Any, sptr: Ints, sidx: Ints, waiting: Ints) -> tuple[Ints, list[list[int]]]:
    """Return the positions outside cycles in topological order, level by level; and the members of each cycle.
    `waiting` is the number of inputs of each position that are not constants; this function changes it."""
    count = len(waiting)
    order = np.empty(count, np.int32)
    ready = np.flatnonzero(waiting == 0)
    order[: len(ready)] = ready
    filled = loops.append_ready(0, len(ready), sptr, sidx, waiting, order)
    if filled == count:
        return order, []
    rest = np.flatnonzero(waiting).tolist()
    cycles = _cycles(rest, {position: sidx[sptr[position] : sptr[position + 1]].tolist() for position in rest})
    members = np.zeros(count, np.uint8)
    members[[position for cycle in cycles for position in cycle]] = 1
    start = filled
    for member in np.flatnonzero(members).tolist():
        for dependent in sidx[sptr[member] : sptr[member + 1]].tolist():
            waiting[dependent] -= 1
            if not waiting[dependent] and not members[dependent]:
                order[filled] = dependent
                filled += 1
    waiting[members == 1] = -1  # members of cycles never become ready
    filled = loops.append_ready(start, filled, sptr, sidx, waiting, order)
    return order[:filled], cycles


def _cycles(rest: list[int], successors: dict[int, list[int]]) -> list[list[int]]:
    """Return the members of each cycle among the positions `rest`, whose dependents are `successors`. A cycle is a
    strongly connected component of two or more positions, or a position that depends on itself (Tarjan 1972, without
    recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    components: list[list[int]] = []
    for start in rest:
        if start in number:
            continue
        work = [(start, iter(successors[start]))]
        number[start] = low[start] = len(number)
        path.append(start)
        on_path.add(start)
        while work:
            node, edges = work[-1]
            for successor in edges:
                if successor not in number:
                    number[successor] = low[successor] = len(number)
                    path.append(successor)
                    on_path.add(successor)
                    work.append((successor, iter(successors[successor])))
                    break
                if successor in on_path:
                    low[node] = min(low[node], number[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    component = _pop_component(path, on_path, node)
                    if len(component) > 1 or node in successors[node]:
                        components.append(component)
    return components


def _pop_component(path: list[int], on_path: set[int], first: int) -> list[int]:
    component: list[int] = []
    while True:
        member = path.pop()
        on_path.discard(member)
        component.append(member)
        if member == first:
            return component


def islands(graph: Subgraph, order: Ints, interpreted_max: int) -> tuple[Ints, Ints]:
    """Divide the positions in `order` into islands, which have no edges between them.

    Return the positions of all islands, one island after another, in the same order as in `order` within each island;
    and the index at which each island begins, followed by the end of the last island. Members of cycles do not connect
    islands, because their faults are determined already.
    """
    count = len(graph.rows)
    alive = np.zeros(count, np.uint8)
    alive[order] = 1
    begin, parts = np.zeros(len(order) + 1, np.int32), np.empty(len(order), np.int32)
    island_count = loops_for(len(order), interpreted_max).islands(
        *(order, graph.ptr, graph.idx, alive, np.arange(count, dtype=np.int32), np.full(count, -1, np.int32)),
        *(begin, parts),
    )
    return parts, begin[: island_count + 1]

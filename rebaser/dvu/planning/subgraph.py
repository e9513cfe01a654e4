"""The part of a graph that roots reach, in an order in which it can be computed.

Invariant: costs what is affected, edges included, and never what the change set holds (zeroed memory that is not
touched costs nothing). Nothing here recurses, so a chain of a million values is as good as a bush.
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
from rebaser_core.state.templates import Template
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import functions_of

Ints: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]

_NO_LINKS: Final = PatternLinks.empty()
_NO_PATTERNS: Final = tuple(np.zeros(0, kind) for kind in (np.int32, np.int64, np.int64, np.int32, np.int64))


@dataclass(slots=True)
class Subgraph:
    """Derived values that may change, by position: `rows[i]` is the row at position i.

    `idx[ptr[i]:ptr[i + 1]]` are its inputs in declared order, a position each, or `-k - 1` for constant k, which stands
    in row `outside[k]`; `sidx[sptr[i]:sptr[i + 1]]` are those that name it. `dirty[i]` is 1 where a root is the value
    itself or one of its inputs, or where it is asked for anew: it is computed whatever its inputs say. `order` lists
    every position outside cycles, inputs before dependents, nearest to the roots first; `cycles` lists the members of
    each cycle. `shape[i]` is the shape of row i, or `-k - 1` for `wide[k]`; `crowded` are positions that have too many
    inputs, and none of them here, with code and words of their fault.
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
    shape: Ints
    wide: list[Template]
    crowded: dict[int, tuple[str, str]]


@dataclass(slots=True)
class Reached:
    """Derived rows that roots are or reach, the first `woken` directly; by row, `mark` is 1 for them."""

    rows: Ints
    woken: int
    mark: npt.NDArray[np.uint8]


def refresh_indexes(columns: Columns) -> None:
    """Bring what is kept with `columns` up to date, as far as planning follows it; one thread at a time."""
    columns.compact()
    if columns.patterns:
        columns.patterns.links()


def root_rows(view: View) -> Ints:
    """The rows of the roots of `view`, as far as anything knows of them, and of the patterns that match those that went
    away."""
    roots, columns = view.roots, view.columns
    index, globs = columns.index, columns.patterns
    rows = np.fromiter(map(index.get, roots, repeat(-1)), np.int32, len(roots))
    known = rows[rows >= 0]
    if not globs or (len(known) == len(rows) and columns.state[known].all()):
        return known
    gone = (rows < 0) | (columns.state[rows] == ABSENT)
    keys = {key for id_ in compress(roots, gone.tolist()) for key in globs.keys(id_)}
    return np.concatenate((known, np.array([index[key] for key in keys], np.int32)))


def input_count(columns: Columns, rows: Ints, interpreted_max: int) -> int:
    """How many inputs the derived `rows` have together, with all that their patterns match."""
    named = _named(columns, rows)
    return (
        int(patterns.widths(columns, rows, loops_for(named, interpreted_max))[0].sum()) if columns.patterns else named
    )


def _named(columns: Columns, rows: Ints) -> int:
    """How many inputs the derived `rows` have together, patterns as they are."""
    return int(columns.templates.arity[columns.template[rows]].sum(dtype=np.int64))


def expand_patterns(columns: Columns, rows: Ints, interpreted_max: int) -> patterns.Expanded | None:
    """What the patterns among the inputs of the derived `rows` stand for, None where there are none. Raises `DvuError`
    if that is too much."""
    return (
        patterns.expand(columns, rows, loops_for(_named(columns, rows), interpreted_max)) if columns.patterns else None
    )


def recompute_rows(view: View) -> Ints:
    """Rows that are to be computed though nothing changed."""
    if not view.recompute:
        return np.zeros(0, np.int32)
    return view.columns.derived(functions_of(view.recompute)).astype(np.int32)


def build_subgraph(view: View, limits: Thresholds, reached: Reached | None = None) -> Subgraph:
    """Everything derived that the roots of `view`, and what is asked for anew, are or reach; inputs outside it are
    constants."""
    columns = view.columns
    if reached is None:
        refresh_indexes(columns)
        reached = reach(view, root_rows(view), limits)
        assert reached is not None  # noqa: S101 - there is no limit
    rows, mark, interpreted_max = reached.rows, reached.mark, limits.interpreted_max
    count = len(rows)
    behind = expand_patterns(columns, rows, interpreted_max)
    ptr, idx, outside = local_edges(columns, rows, mark, interpreted_max, behind)
    run = loops_for(count + len(idx), interpreted_max)
    waiting, sptr, sidx = np.zeros(count, np.int32), np.zeros(count + 1, np.int32), np.empty(len(idx), np.int32)
    run.successors(ptr, idx, waiting, sptr, sidx)
    order, cycles = _sort(run, sptr, sidx, waiting)
    dirty = np.zeros(count, np.uint8)
    dirty[: reached.woken] = 1
    said = (columns.template[rows], [], {}) if behind is None else (behind.shape, behind.wide, behind.crowded)
    return Subgraph(rows, ptr, idx, outside, sptr, sidx, dirty, order, cycles, *said)


def local_edges(
    columns: Columns, rows: Ints, mark: npt.NDArray[np.uint8], interpreted_max: int, behind: patterns.Expanded | None
) -> tuple[Ints, Ints, Ints]:
    """`ptr`, `idx` and `outside` of `rows`, with what is `behind` their patterns."""
    edges = _named(columns, rows) if behind is None else int(behind.width.sum())
    ptr, idx = np.zeros(len(rows) + 1, np.int32), np.empty(edges, np.int32)
    outside = np.empty(edges, np.int32)
    members = _NO_PATTERNS if behind is None else (behind.of, behind.begin, behind.size, behind.members, behind.width)
    constants = loops_for(len(rows) + edges, interpreted_max).local(
        *(rows, columns.template, columns.first_input, columns.templates.arity, columns.refs, mark, *members),
        *(np.empty(columns.count, np.int32), np.zeros(columns.count, np.int32), ptr, idx, outside),
    )
    return ptr, idx, outside[:constants]


def reach(view: View, roots: Ints, limits: Thresholds, most: int | None = None) -> Reached | None:
    """What the rows `roots`, and what is asked for anew, reach; None if that is more than `most`."""
    columns = view.columns
    edges, count, interpreted_max = columns.edges, columns.count, limits.interpreted_max
    most = count if most is None else most
    again = recompute_rows(view)
    if len(again) > most:
        return None
    links = columns.patterns.links() if columns.patterns else _NO_LINKS
    given = (
        *(
            roots,
            len(again),
            columns.state,
            columns.template,
            columns.first_input,
            columns.templates.arity,
            columns.refs,
        ),
        *(edges.offsets, edges.targets, edges.head, edges.next, edges.appended),
        limits.checked if edges.dead_edges else -1,
        *(links.first_link, links.link_pattern, links.next_link, links.pattern_row),
    )
    out = np.empty(count, np.int32)
    out[: len(again)] = again
    size = len(roots) + len(again)
    by_python = [(size, min(interpreted_max, most))] if size <= interpreted_max else []
    by_compiled = (
        [(interpreted_max + 1, most)] if not by_python or most > interpreted_max else []
    )  # else no more is allowed than was tried
    for work, limit in by_python + by_compiled:
        mark = np.zeros(count, np.uint8)
        mark[again] = 1
        woken, found = loops_for(work, interpreted_max).reach(*given, limit, mark, out)
        if woken >= 0:
            return Reached(out[:found].copy(), woken, mark)
    return None


def _sort(run: Any, sptr: Ints, sidx: Ints, waiting: Ints) -> tuple[Ints, list[list[int]]]:
    """Positions outside cycles in topological order, first in first out and so level by level; and the cycles."""
    count = len(waiting)
    order = np.empty(count, np.int32)
    ready = np.flatnonzero(waiting == 0)
    order[: len(ready)] = ready
    filled = run.settle(0, len(ready), sptr, sidx, waiting, order)
    if filled == count:
        return order, []
    rest = np.flatnonzero(waiting).tolist()
    cycles = _cycles(rest, {at: sidx[sptr[at] : sptr[at + 1]].tolist() for at in rest})
    members = np.zeros(count, np.uint8)
    members[[at for cycle in cycles for at in cycle]] = 1
    start = filled
    for member in np.flatnonzero(members).tolist():
        for at in sidx[sptr[member] : sptr[member + 1]].tolist():
            waiting[at] -= 1
            if not waiting[at] and not members[at]:
                order[filled] = at
                filled += 1
    waiting[members == 1] = -1  # never ready
    filled = run.settle(start, filled, sptr, sidx, waiting, order)
    return order[:filled], cycles


def _cycles(rest: list[int], successors: dict[int, list[int]]) -> list[list[int]]:
    """Strongly connected components of two or more, and self-references (Tarjan 1972, with its own stack)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    found: list[list[int]] = []
    for start in rest:
        if start in number:
            continue
        work = [(start, iter(successors[start]))]
        number[start] = low[start] = len(number)
        path.append(start)
        on_path.add(start)
        while work:
            at, edges = work[-1]
            for reached in edges:
                if reached not in number:
                    number[reached] = low[reached] = len(number)
                    path.append(reached)
                    on_path.add(reached)
                    work.append((reached, iter(successors[reached])))
                    break
                if reached in on_path:
                    low[at] = min(low[at], number[reached])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[at])
                if low[at] == number[at]:
                    component = _close(path, on_path, at)
                    if len(component) > 1 or at in successors[at]:
                        found.append(component)
    return found


def _close(path: list[int], on_path: set[int], at: int) -> list[int]:
    component: list[int] = []
    while True:
        member = path.pop()
        on_path.discard(member)
        component.append(member)
        if member == at:
            return component


def islands(found: Subgraph, order: Ints, interpreted_max: int) -> tuple[Ints, Ints]:
    """`order` cut into weakly connected parts, each still in order, and where each begins. Cycle members connect
    nothing: they are known."""
    count = len(found.rows)
    alive = np.zeros(count, np.uint8)
    alive[order] = 1
    begin, parts = np.zeros(len(order) + 1, np.int32), np.empty(len(order), np.int32)
    how_many = loops_for(len(order), interpreted_max).islands(
        *(order, found.ptr, found.idx, alive, np.arange(count, dtype=np.int32), np.full(count, -1, np.int32)),
        *(begin, parts),
    )
    return parts, begin[: how_many + 1]

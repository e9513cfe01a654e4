"""The part of a graph that roots reach, in an order in which it can be computed.

Invariant: costs what is affected, edges included, and never what the change set holds (zeroed memory that is not
touched costs nothing). Nothing here recurses, so a chain of a million values is as good as a bush.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import compress, repeat
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rebaser.dvu.planning import loops as graph_kernel
from rebaser.dvu.planning import patterns as expand
from rebaser_core import thresholds
from rebaser_core.state.change_set import View
from rebaser_core.state.columns import Columns
from rebaser_core.state.kinds import ABSENT
from rebaser_core.state.patterns.links import Ways
from rebaser_core.state.templates import Shape
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import functions_of

Ints: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]

_NO_WAYS: Final = Ways.none()
_NO_PATTERNS: Final = tuple(np.zeros(0, kind) for kind in (np.int32, np.int64, np.int64, np.int32, np.int64))


@dataclass(slots=True)
class Affected:
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
    wide: list[Shape]
    crowded: dict[int, tuple[str, str]]


def loops(size: int, few: int) -> Any:
    """The loops over arrays for about `size` positions, compiled if there are more than `few`."""
    if size <= few:
        return _plain()
    if _loading.put_off and size <= thresholds.now.few_cold:
        _loading.missed = True
        return _plain()
    return load()


@cache
def _plain() -> Any:
    """As Python, which reads items of a view of an array, and counts with them, several times as fast as of itself."""
    return SimpleNamespace(**{name: _on_views(one) for name, one in vars(graph_kernel).items() if callable(one)})


def _on_views(function: Callable[..., Any]) -> Callable[..., Any]:
    view: Any = memoryview  # of an array, which is a buffer
    return lambda *args: function(*[view(one) if isinstance(one, np.ndarray) else one for one in args])


@cache
def load() -> Any:
    """The loops, compiled; this takes a second, and some more where nobody made them before."""
    from rebaser.dvu.compiled import linker  # noqa: PLC0415 - small graphs do without

    return linker.module(graph_kernel)


@dataclass(slots=True)
class _Loading:
    """Whether `load` is put off in this process, and if so, whether a graph would have had it."""

    put_off: bool = False
    missed: bool = False


_loading: Final = _Loading()


@contextmanager
def put_off() -> Iterator[Callable[[], bool]]:
    """Inside, only large graphs `load`; what it gives tells whether others would have, too."""
    _loading.put_off, _loading.missed = True, False
    try:
        yield lambda: _loading.missed
    finally:
        _loading.put_off = False


@dataclass(slots=True)
class Reached:
    """Derived rows that roots are or reach, the first `woken` directly; by row, `mark` is 1 for them."""

    rows: Ints
    woken: int
    mark: npt.NDArray[np.uint8]


def tidy(columns: Columns) -> None:
    """Bring what is kept with `columns` up to date, as far as planning follows it; one thread at a time."""
    columns.tidy()
    if columns.patterns:
        columns.patterns.ways()


def roots_of(view: View) -> Ints:
    """The rows of the roots of `view`, as far as anything knows of them, and of the patterns that match those that went
    away."""
    roots, columns = view.roots, view.columns
    index, patterns = columns.index, columns.patterns
    rows = np.fromiter(map(index.get, roots, repeat(-1)), np.int32, len(roots))
    known = rows[rows >= 0]
    if not patterns or (len(known) == len(rows) and columns.state[known].all()):
        return known
    gone = (rows < 0) | (columns.state[rows] == ABSENT)
    keys = {key for id_ in compress(roots, gone.tolist()) for key in patterns.keys(id_)}
    return np.concatenate((known, np.array([index[key] for key in keys], np.int32)))


def inputs_of(columns: Columns, rows: Ints, few: int) -> int:
    """How many inputs the derived `rows` have together, with all that their patterns match."""
    named = _named(columns, rows)
    return int(expand.widths(columns, rows, loops(named, few))[0].sum()) if columns.patterns else named


def _named(columns: Columns, rows: Ints) -> int:
    """How many inputs the derived `rows` have together, patterns as they are."""
    return int(columns.shapes.arity[columns.shape[rows]].sum(dtype=np.int64))


def expanded(columns: Columns, rows: Ints, few: int) -> expand.Expanded | None:
    """What the patterns among the inputs of the derived `rows` stand for, None where there are none. Raises `DvuError`
    if that is too much."""
    return expand.expand(columns, rows, loops(_named(columns, rows), few)) if columns.patterns else None


def anew(view: View) -> Ints:
    """Rows that are to be computed though nothing changed."""
    if not view.recompute:
        return np.zeros(0, np.int32)
    return view.columns.derived(functions_of(view.recompute)).astype(np.int32)


def affected(view: View, limits: Thresholds, reached: Reached | None = None) -> Affected:
    """Everything derived that the roots of `view`, and what is asked for anew, are or reach; inputs outside it are
    constants."""
    columns = view.columns
    if reached is None:
        tidy(columns)
        reached = reach(view, roots_of(view), limits)
        assert reached is not None  # noqa: S101 - there is no limit
    rows, mark, few = reached.rows, reached.mark, limits.few
    count = len(rows)
    behind = expanded(columns, rows, few)
    ptr, idx, outside = local(columns, rows, mark, few, behind)
    run = loops(count + len(idx), few)
    waiting, sptr, sidx = np.zeros(count, np.int32), np.zeros(count + 1, np.int32), np.empty(len(idx), np.int32)
    run.successors(ptr, idx, waiting, sptr, sidx)
    order, cycles = _sort(run, sptr, sidx, waiting)
    dirty = np.zeros(count, np.uint8)
    dirty[: reached.woken] = 1
    said = (columns.shape[rows], [], {}) if behind is None else (behind.shape, behind.wide, behind.crowded)
    return Affected(rows, ptr, idx, outside, sptr, sidx, dirty, order, cycles, *said)


def local(
    columns: Columns, rows: Ints, mark: npt.NDArray[np.uint8], few: int, behind: expand.Expanded | None
) -> tuple[Ints, Ints, Ints]:
    """`ptr`, `idx` and `outside` of `rows`, with what is `behind` their patterns."""
    edges = _named(columns, rows) if behind is None else int(behind.width.sum())
    ptr, idx = np.zeros(len(rows) + 1, np.int32), np.empty(edges, np.int32)
    outside = np.empty(edges, np.int32)
    patterns = _NO_PATTERNS if behind is None else (behind.of, behind.begin, behind.size, behind.members, behind.width)
    constants = loops(len(rows) + edges, few).local(
        *(rows, columns.shape, columns.in_at, columns.shapes.arity, columns.refs, mark, *patterns),
        *(np.empty(columns.count, np.int32), np.zeros(columns.count, np.int32), ptr, idx, outside),
    )
    return ptr, idx, outside[:constants]


def reach(view: View, roots: Ints, limits: Thresholds, most: int | None = None) -> Reached | None:
    """What the rows `roots`, and what is asked for anew, reach; None if that is more than `most`."""
    columns = view.columns
    edges, count, few = columns.edges, columns.count, limits.few
    most = count if most is None else most
    again = anew(view)
    if len(again) > most:
        return None
    ways = columns.patterns.ways() if columns.patterns else _NO_WAYS
    given = (
        *(roots, len(again), columns.state, columns.shape, columns.in_at, columns.shapes.arity, columns.refs),
        *(edges.start, edges.to, edges.head, edges.next, edges.late),
        limits.checked if edges.lost else -1,
        *(ways.of, ways.pattern, ways.before, ways.row),
    )
    out = np.empty(count, np.int32)
    out[: len(again)] = again
    size = len(roots) + len(again)
    by_python = [(size, min(few, most))] if size <= few else []
    by_compiled = [(few + 1, most)] if not by_python or most > few else []  # else no more is allowed than was tried
    for work, limit in by_python + by_compiled:
        mark = np.zeros(count, np.uint8)
        mark[again] = 1
        woken, found = loops(work, few).reach(*given, limit, mark, out)
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


def islands(found: Affected, order: Ints, few: int) -> tuple[Ints, Ints]:
    """`order` cut into weakly connected parts, each still in order, and where each begins. Cycle members connect
    nothing: they are known."""
    count = len(found.rows)
    alive = np.zeros(count, np.uint8)
    alive[order] = 1
    begin, parts = np.zeros(len(order) + 1, np.int32), np.empty(len(order), np.int32)
    how_many = loops(len(order), few).islands(
        *(order, found.ptr, found.idx, alive, np.arange(count, dtype=np.int32), np.full(count, -1, np.int32)),
        *(begin, parts),
    )
    return parts, begin[: how_many + 1]

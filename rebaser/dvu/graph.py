"""The part of a graph that roots reach, in an order in which it can be computed.

Invariant: costs what is affected, edges included, and never what the change set holds. Nothing here recurses, so a
chain of a million values is as good as a bush.
"""

from dataclasses import dataclass

from rebaser_core.state import Cell, View


@dataclass(slots=True)
class Affected:
    """Derived values that may change, by position; `ids[i]` is the id at position i.

    `dirty[i]` is 1 where a root is the value itself or one of its inputs: it is computed whatever its inputs say.
    `order` lists every position outside cycles, inputs before dependents, nearest to the roots first; `cycles` lists
    the members of each cycle.
    """

    ids: list[str]
    index: dict[str, int]
    cells: list[Cell]
    successors: list[list[int]]
    dirty: bytearray
    order: list[int]
    cycles: list[list[int]]


def affected(view: View) -> Affected:
    """Everything derived that the roots of `view` are or reach; inputs outside it are constants."""
    index = _woken(view)
    ids = list(index)
    woken = len(ids)
    successors: list[list[int]] = []
    dependents = view.dependents
    for id_ in ids:  # grows while it is walked
        reached: list[int] = []
        for dependent in dependents(id_):
            at = index.get(dependent)
            if at is None:
                at = index[dependent] = len(ids)
                ids.append(dependent)
            reached.append(at)
        successors.append(reached)
    cells = [view.cell(id_) for id_ in ids]
    dirty = bytearray(b"\x01") * woken + bytearray(len(ids) - woken)
    order, cycles = _sort(successors)
    return Affected(ids, index, cells, successors, dirty, order, cycles)  # type: ignore[arg-type] # all derived: exist


def _woken(view: View) -> dict[str, int]:
    """Derived roots and the direct dependents of every root; the old value of a root is not known, so no cutoff."""
    index: dict[str, int] = {}
    for root in view.roots:
        cell = view.cell(root)
        if cell is not None and cell.definition is not None:
            index.setdefault(root, len(index))
        for dependent in view.dependents(root):
            index.setdefault(dependent, len(index))
    return index


def _sort(successors: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Positions outside cycles in topological order, first in first out and so level by level; and the cycles."""
    waiting = [0] * len(successors)
    for reached in successors:
        for at in reached:
            waiting[at] += 1
    order = [at for at, count in enumerate(waiting) if not count]
    _settle(order, 0, successors, waiting)
    if len(order) == len(successors):
        return order, []
    cycles = _cycles([at for at, count in enumerate(waiting) if count], successors)
    members = {at for cycle in cycles for at in cycle}
    start = len(order)
    for member in members:
        for at in successors[member]:
            waiting[at] -= 1
            if not waiting[at] and at not in members:
                order.append(at)
    _settle(order, start, successors, waiting)
    return order, cycles


def _settle(order: list[int], start: int, successors: list[list[int]], waiting: list[int]) -> None:
    """Append to `order` what becomes ready through `order[start:]`."""
    append = order.append
    position = start
    while position < len(order):
        for at in successors[order[position]]:
            left = waiting[at] = waiting[at] - 1
            if not left:
                append(at)
        position += 1


def _cycles(rest: list[int], successors: list[list[int]]) -> list[list[int]]:
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


def islands(order: list[int], successors: list[list[int]]) -> list[list[int]]:
    """`order` cut into weakly connected parts, each still in order. Cycle members connect nothing: they are known."""
    parent = list(range(len(successors)))
    alive = bytearray(len(successors))
    for at in order:
        alive[at] = 1
    for at in order:
        root = _find(parent, at)
        for reached in successors[at]:
            if alive[reached]:
                other = _find(parent, reached)
                if other != root:
                    parent[other] = root
    parts: dict[int, list[int]] = {}
    for at in order:
        parts.setdefault(_find(parent, at), []).append(at)
    return list(parts.values())


def _find(parent: list[int], at: int) -> int:
    while parent[at] != at:
        parent[at] = parent[parent[at]]
        at = parent[at]
    return at

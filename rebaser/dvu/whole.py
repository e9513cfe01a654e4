"""Updates that reach much of a large graph: swept as a whole, over a structure that is kept between updates.

Invariant: gives what `rebaser.dvu.plan.Plan` would give. What a worker finds is compared here, by column, with what
stands in the change set; so nothing of what stood there travels, and no edge after the first time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from rebaser.dvu import bytecode, expand, faults, fingerprint, graph
from rebaser.dvu.column import FAULT, INT, NULL, OTHER, Column
from rebaser.dvu.filling import row_kinds
from rebaser.dvu.functions.registry import Registry
from rebaser.dvu.limits import PlanLimits
from rebaser.dvu.packet import Data, RawFault, Results, weight
from rebaser.dvu.structure import Reach, Structure, functions_of
from rebaser_core.codes import ABSENT, ERROR, OK
from rebaser_core.columns import Columns
from rebaser_core.commit import Computed
from rebaser_core.computed import ComputedTable, RowIds
from rebaser_core.errors import DvuError
from rebaser_core.shapes import Shape
from rebaser_core.state import View
from rebaser_core.values import Fault, same

BROUGHT_BYTES = 64 * 1024 * 1024  # of a structure that goes with its packet; a message has 128 MiB

# How workers come by the structure: they had it before; nobody has yet; they find it where it was put; in the packet.
_KEPT, _UNSENT, _SHARED, _BROUGHT = range(4)
_NUMBER, _REACHED, _NEEDED = 1, 1, 2  # the packet's; what a mark by slot says
_SAMPLE = 4096
_OTHER_BYTES = 32 * 1024 * 1024  # of texts, lists and maps that the nodes start from
_TABLE = 256  # values found from which on they stand in columns
_NAMED = 10_000  # and from which on their ids are kept as text, too


@dataclass(slots=True, eq=False)
class Laid:
    """The structure of a change set as its definitions were when their count was `defined`, and what their patterns
    match when that had `moved` so often; None for one with a cycle, or with more inputs by pattern than may be.

    `rows` by slot, and the way back: `slot` by row, -1 for a row that is in no definition. `names` are the ids of the
    nodes, once a large update has asked for them.
    """

    defined: int
    moved: int
    structure: Structure | None
    rows: graph.Ints
    slot: graph.Ints
    sent: bool = False
    names: "Names | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Ids in one piece, each with a line break behind it; `ends` tells where it ends, by node."""

    text: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, ids: Sequence[str]) -> "Names":
        """Those of `ids`, of which none has a line break in it."""
        text = np.frombuffer("".join([f"{id_}\n" for id_ in ids]).encode(), np.uint8)
        return cls(text, np.flatnonzero(text == ord("\n")) + 1)

    def lines(self, nodes: graph.Ints, few: int) -> str:
        """The ids of `nodes`, a line each."""
        lengths = np.diff(self.ends, prepend=0)
        out = np.empty(int(lengths[nodes].sum()), np.uint8)
        graph.loops(len(nodes), few).gather(self.text, self.ends, nodes, out)
        return out[:-1].tobytes().decode()


@dataclass(frozen=True, slots=True)
class NamedIds(RowIds):
    """`RowIds` of many nodes of one structure, whose text is at hand."""

    names: Names
    nodes: graph.Ints
    few: int

    def text(self) -> str:
        return self.names.lines(self.nodes, self.few)


_laid: "WeakKeyDictionary[Columns, Laid]" = WeakKeyDictionary()


def laid(columns: Columns) -> Laid | None:
    """What was laid for the definitions as they are."""
    found = _laid.get(columns)
    return found if found is not None and (found.defined, found.moved) == (columns.defined, _moved(columns)) else None


def _moved(columns: Columns) -> int:
    return columns.patterns.moved if columns.patterns else 0


def lay(columns: Columns, few: int) -> Laid:
    """Put all definitions in order. Costs what they all cost, and is kept until one of them changes."""
    derived = np.flatnonzero(columns.shape[: columns.count] >= 0).astype(np.int32)
    count = len(derived)
    made = _laid[columns] = Laid(columns.defined, _moved(columns), None, *np.zeros((2, 0), np.int32))
    shape, wide, expanded = columns.shape[derived], list[Shape](), None
    if columns.patterns:
        try:
            expanded = expand.expand(columns, derived, graph.loops(count, few))
        except DvuError:
            return made
        if expanded.crowded:
            return made
        shape, wide = expanded.shape, expanded.wide
    mark = np.zeros(columns.count, np.uint8)
    mark[derived] = 1
    ptr, idx, outside = graph.local(columns, derived, mark, few, expanded)
    run = graph.loops(count + len(idx), few)
    order = np.arange(count, dtype=np.int32) if run.ascending(ptr, idx) else _sorted(run, ptr, idx)
    if len(order) == count:
        rank = np.empty(count, np.int32)
        rank[order] = np.arange(count, dtype=np.int32)
        refs = np.empty(len(idx), np.int32)
        run.relabel(order, rank, ptr, idx, len(outside), refs)
        known, which = np.unique(shape[order], return_inverse=True)
        shapes = [columns.shapes[at] if at >= 0 else wide[-at - 1] for at in known.tolist()]
        made.structure = Structure.make(len(outside), shapes, which.astype(np.int32), refs)
        made.rows = np.concatenate((outside, derived[order]))
        made.slot = np.full(columns.count, -1, np.int32)
        made.slot[made.rows] = np.arange(len(made.rows), dtype=np.int32)
    return made


def _sorted(run: Any, ptr: graph.Ints, idx: graph.Ints) -> graph.Ints:
    """Positions with inputs first; not all of them if some depend on each other."""
    count = len(ptr) - 1
    waiting, sptr, sidx = np.zeros(count, np.int32), np.zeros(count + 1, np.int32), np.empty(len(idx), np.int32)
    run.successors(ptr, idx, waiting, sptr, sidx)
    order = np.empty(count, np.int32)
    return order[: run.depth_first(sptr, sidx, waiting, np.empty(count, np.int32), order)]


def sweep(view: View, at: Laid, roots: graph.Ints, functions: Registry, limits: PlanLimits) -> "WholePlan | None":
    """The plan of all that the rows `roots` reach, or None where another is better: there is a cycle, it is not that
    much, or too much of it is not for compiled code."""
    structure = at.structure
    if structure is None:
        return None
    roots = _named(view.columns, roots)
    slots = at.slot[roots[roots < len(at.slot)]]
    mark = np.zeros(len(at.rows), np.uint8)
    mark[slots[slots >= 0]] = _REACHED
    count = int(
        graph.loops(len(structure.refs), limits.few).spread(structure.base, structure.starts, structure.refs, mark)
    )
    if count < view.columns.size // limits.share:
        nodes = np.flatnonzero(mark[structure.base :] == _REACHED)
        if (structure.starts[nodes + 1] - structure.starts[nodes]).sum() < limits.many(len(structure.refs)):
            return None
    made = WholePlan(view.columns, at, mark, functions, limits)
    return made if made.suits(limits.slow) else None


def _named(columns: Columns, roots: graph.Ints) -> graph.Ints:
    """`roots`, and for a pattern among them, which has no slot, those that name it."""
    if not columns.patterns:
        return roots
    patterns = roots[columns.patterns.ways().of[roots] < 0].tolist()
    return np.concatenate((roots, *[np.array(columns.edges.of(row), np.int32) for row in patterns]))


class WholePlan:
    """As `rebaser.dvu.plan.Plan`, in one packet; a second time with the structure, for a worker that has it not."""

    def __init__(self, columns: Columns, at: Laid, mark: Any, functions: Registry, limits: PlanLimits) -> None:
        assert at.structure is not None  # noqa: S101 - there is no cycle
        self._columns = columns
        self._laid = at
        self._structure = structure = at.structure
        self._functions = functions
        self._few = limits.few
        base = structure.base
        self._reached = mark[base:] == _REACHED
        self._given = mark != 0
        self._given[base:] = mark[base:] == _NEEDED
        self._rows = at.rows[np.flatnonzero(self._given)]  # whose values it starts from
        self.size = int(self._reached.sum())
        self._whole = self.size == len(self._reached)
        self._store = ""
        self._way = _KEPT if at.sent else _UNSENT
        self._done = False
        self._flying = False
        self._found: list[tuple[graph.Ints, Column]] = []  # rows that changed, and what they are now
        self._changed_faults: dict[int, Fault] = {}  # by row
        self._faults: dict[int, Fault] = {}  # by slot, changed or not

    @property
    def unsent(self) -> Structure | None:
        """The structure, if workers may not have it: it comes with the packet, unless it is `shared` before."""
        return self._structure if self._way == _UNSENT else None

    @property
    def too_large(self) -> bool:
        """Whether the structure would have to go with the packet, and is too much for that."""
        return self._way in (_UNSENT, _BROUGHT) and len(self._structure.data) > BROUGHT_BYTES

    def shared(self, store: str) -> None:
        """Workers find the structure in the blob store `store`, or by themselves where that is empty."""
        self._store = store
        self._way = _SHARED

    def suits(self, slow: float) -> bool:
        """Whether compiled code does all of it but a share `slow`, from inputs that can be sent at once."""
        columns, structure = self._columns, self._structure
        calls = self._functions.functions
        by_python = [bytecode.translate(shape, calls.get(shape.function)) is None for shape in structure.shapes]
        if any(by_python) and int(np.array(by_python)[structure.shape[self._reached]].sum()) > slow * self.size:
            return False
        sample = slice(None, None, max(1, len(self._reached) // _SAMPLE))
        rows = self._laid.rows[structure.base :][sample][self._reached[sample]]
        odd = (columns.kind[rows] == OTHER) | (columns.state[rows] == ERROR)
        if int(odd.sum()) > slow * len(rows):
            return False
        texts = self._rows[columns.kind[self._rows] == OTHER].tolist()
        return sum(weight(columns.other[row]) for row in texts) <= _OTHER_BYTES

    def next_wave(self) -> list[bytes]:
        """The packet; none once its results are here."""
        if self._flying:
            raise DvuError("the results of the last wave are not absorbed yet")
        if self._done:
            return []
        self._flying = True
        structure, columns = self._structure, self._columns
        rows = self._rows
        kinds = row_kinds(columns, rows)
        others: dict[int, Any] = {at: columns.other[int(rows[at])] for at in np.flatnonzero(kinds == OTHER).tolist()}
        first = len(rows) == structure.base and bool(self._given[: structure.base].all())
        packet = Reach(
            _NUMBER,
            fingerprint.code(),
            self._functions.fingerprints(functions_of(structure.shapes)),
            structure.address,
            None if self._whole else self._reached,
            None if first else self._given,
            Column(kinds, columns.num[rows], others),
            structure.data if self._way in (_UNSENT, _BROUGHT) else b"",
            self._store,
        )
        return [packet.encode()]

    def absorb(self, results: Sequence[Data]) -> None:
        """Take in the results, in any order. Raises `DvuError` if they are not complete."""
        parts = sorted([Results.decode(data) for data in results], key=lambda part: part.part)
        self._flying = False
        if any(part.missing for part in parts):
            self._laid.sent = False
            if self._way in (_UNSENT, _BROUGHT):
                raise DvuError("a worker cannot take in the structure of the graph")
            self._way = _UNSENT if self._way == _KEPT else _BROUGHT
            return
        if [part.part for part in parts] != list(range(len(parts))) or not parts or not parts[-1].last:
            raise DvuError("results of a packet are not complete")
        if any(part.number != _NUMBER for part in parts) or sum(len(part.nodes) for part in parts) != self.size:
            raise DvuError("results are not those of what was sent")
        for part in parts:
            self._absorb(part)
        self._laid.sent = self._done = True
        self._way = _KEPT

    def _absorb(self, part: Results) -> None:
        columns, values = self._columns, part.values
        rows = self._laid.rows[self._structure.base + part.nodes]
        kinds, bits = values.kinds, values.bits
        unchanged = (columns.state[rows] == OK) & (columns.kind[rows] == kinds)
        unchanged &= (columns.num[rows] == bits) | (kinds < INT)
        for at in np.flatnonzero(kinds == OTHER).tolist():
            row = int(rows[at])
            stood = columns.state[row] == OK and columns.kind[row] == OTHER
            unchanged[at] = stood and same(columns.other[row], values.others[at])  # type: ignore[arg-type]
        for at, raw in zip(np.flatnonzero(kinds == FAULT).tolist(), part.faults, strict=True):
            row, slot = int(rows[at]), self._structure.base + int(part.nodes[at])
            self._faults[slot] = fault = self._fault(row, raw)
            unchanged[at] = columns.state[row] == ERROR and columns.faults.get(row) == fault
            if not unchanged[at]:
                self._changed_faults[row] = fault
        if not unchanged.any():
            self._found.append((rows, values))
            return
        places = np.flatnonzero(~unchanged)
        others = (
            {new: values.others[old] for new, old in enumerate(places.tolist()) if old in values.others}
            if values.others
            else {}
        )
        self._found.append((rows[places], Column(kinds[places], bits[places], others)))

    def _fault(self, row: int, raw: RawFault) -> Fault:
        """The words for what a worker said in slots."""
        columns = self._columns
        id_ = columns.ids[row]
        if not isinstance(raw, int):
            return Fault(*raw, id_)
        blamed = int(self._laid.rows[raw])
        if columns.state[blamed] == ABSENT:
            return faults.missing_input(id_, columns.ids[blamed])
        fault = self._faults.get(raw) or columns.faults.get(blamed)
        if fault is None:
            raise DvuError(f"a worker calls {faults.quote(columns.ids[blamed])} failed, and it is not")
        return faults.failed_input(columns.ids[blamed], fault)

    @property
    def upto(self) -> list[int]:
        """As `rebaser.dvu.plan.Plan` has it."""
        return [0, self.size]

    def computed(self) -> Sequence[Computed]:
        """What changed against the stored cells. Complete once `next_wave` has returned nothing."""
        rows = np.concatenate([rows for rows, _ in self._found] or [np.zeros(0, np.int32)])
        kinds = np.concatenate([values.kinds for _, values in self._found] or [np.zeros(0, np.uint8)])
        bits = np.concatenate([values.bits for _, values in self._found] or [np.zeros(0, np.int64)])
        others: dict[int, Any] = {}
        before = 0
        for some, values in self._found:
            others.update((before + at, value) for at, value in values.others.items())
            before += len(some)
        failed = np.flatnonzero(kinds == FAULT)
        by_place = {at: self._changed_faults[int(rows[at])] for at in failed.tolist()}
        if len(failed):
            kinds[failed] = NULL
        columns = self._columns
        table = ComputedTable(self._ids(rows), kinds, bits, others, by_place, rows, columns)
        return table if len(table) >= _TABLE else tuple(table)

    def _ids(self, rows: graph.Ints) -> RowIds:
        columns, at, base = self._columns, self._laid, self._structure.base
        if len(rows) < _NAMED:
            return RowIds(columns.ids, rows)
        if at.names is None:
            at.names = Names.of(RowIds(columns.ids, at.rows[base:]))
        return NamedIds(columns.ids, rows, at.names, at.slot[rows] - base, self._few)

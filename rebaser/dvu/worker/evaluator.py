"""One pass over a packet, in the worker.

Invariant: early cutoff. A node is computed if it is marked dirty or one of its inputs changed, and it counts as
changed only if value and state are not the same as before (`rebaser_core.values.same`). Nobody else is woken.

Two liberties, both safe: a fault that names another value always counts as changed (the planner, which knows the
ids, compares it), and a node that is skipped is computed after all if somebody needs a value of which only a digest
is at hand.

Numbers are computed by compiled code where that pays (`rebaser.dvu.compiled.kernel`). It runs over the same arrays,
stops at a node that it cannot do to the bit, and goes on after it. Of the rest, many of one definition are computed
together where they need nothing from each other (`rebaser.dvu.worker.batching`). What a function does, and every fault,
is said here only.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rebaser.dvu import faults
from rebaser.dvu.compiled import linker
from rebaser.dvu.compiled.phases import ASIDE, TEXT
from rebaser.dvu.functions.registry import FunctionRegistry
from rebaser.dvu.wire.column import CONSTANT_ITEMS, DIGEST, FALSE, FAULT, FLOAT, INT, NULL, OTHER, TRUE, Column
from rebaser.dvu.wire.equality import fault_digest, unchanged
from rebaser.dvu.wire.packet import NodeFault, Packet, estimated_size
from rebaser.dvu.worker import batching
from rebaser.dvu.worker.calls import child_handler, fault_of, isolated_caller, make_caller, storable
from rebaser.dvu.worker.child_process import ChildProcess, supported
from rebaser_core import thresholds
from rebaser_core.errors import DvuError
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.values import Json

MAX_INPUT_BYTES = 64 * 1024 * 1024  # all inputs of one value together
_MANY_INPUTS = MAX_INPUT_BYTES // DEFAULT_LIMITS.max_value_bytes  # fewer cannot be too large

_AS_THEY_STAND = np.empty(0, np.int32)

ReportProgress = Callable[[int], None]


class Evaluator:
    """Slots number the constants first, then the nodes.

    `kinds` are those of `Column`, by slot; integers are in `ints`, doubles in `floats`, which is NaN for all others. A
    node that was not computed (yet) has what stood there. A failed one has the slot of the input to blame in `ints`, or
    its fault in `own`. `changed` is 1 for what differs from what stood there. `told` is called with how many nodes were
    looked at since. `apart`: functions of plug-ins are called in a child process.
    """

    def __init__(
        self, work: Packet, functions: FunctionRegistry, told: ReportProgress | None = None, *, apart: bool = False
    ) -> None:
        self.work = work
        self.told: ReportProgress = told or (lambda _: None)
        self._functions = functions
        self.base = base = len(work.constants)
        self.count = len(work.template)
        self.kinds = np.concatenate((work.constants.kinds, work.old.kinds))
        self.ints = np.zeros(len(self.kinds), np.int64)
        self.floats = np.empty(len(self.kinds), np.float64)
        work.constants.split(self.ints[:base], self.floats[:base])
        work.old.split(self.ints[base:], self.floats[base:])
        self.others: dict[int, Any] = {**work.constants.others}
        self.others.update((base + at, item) for at, item in work.old.others.items())
        self.own: dict[int, tuple[str, str]] = {}
        self.changed = np.zeros(base + self.count, np.uint8)
        self.starts = _starts(work) if work.starts is None else work.starts
        self._forms = [functions.functions.get(shape.function) for shape in work.templates]
        self._callers = [make_caller(shape, form) for shape, form in zip(work.templates, self._forms, strict=True)]
        self._apart = ChildProcess(child_handler(self._callers)) if apart and supported() else None
        if self._apart is not None:
            self._set_apart(self._apart)
        # Reading one item of an array takes five times as long as one of a view of it.
        self._kinds = _view(self.kinds)
        self._ints = _view(self.ints)
        self._floats = _view(self.floats)
        self._bits = _view(self.floats.view(np.int64))
        self._changed = _view(self.changed)
        self._refs = _view(work.refs)
        self._starts = _view(self.starts)
        self._template = _view(work.template)
        self._dirty = _view(work.dirty)

    def _set_apart(self, apart: ChildProcess) -> None:
        for number, form in enumerate(self._forms):
            if form is not None and form.fingerprint:
                self._forms[number] = None  # no vector form: of many, one ends the process, and nobody knows which
                self._callers[number] = isolated_caller(apart, number, form.name)

    def run(self) -> None:
        """Compute what is dirty or woken, in order."""
        try:
            self._run()
        finally:
            if self._apart is not None:
                self._apart.close()

    def _run(self) -> None:
        linked = linker.link(self.work, self._functions, MAX_INPUT_BYTES // estimated_size(0))
        flags = self._flags(linked)
        if flags is None:
            self._stretch(linked, _AS_THEY_STAND, 0, self.count)
            return
        order, begin = linker.phase_order(self, flags)
        done = 0
        for phase in np.flatnonzero(np.diff(begin) >= thresholds.now.group).tolist():
            start, end = int(begin[phase]), int(begin[phase + 1])
            self.some(order[done:start].tolist())  # small phases, of a chain for instance
            if phase % 2:
                batching.compute(self, order[start:end], self._forms)
            else:
                self._stretch(linked, order, start, end)
            done = end
        self.some(order[done:].tolist())

    def _flags(self, linked: "linker.LinkedPrograms | None") -> Any:
        """By shape, as `rebaser.dvu.compiled.phases` wants them; None if nodes are best computed as they stand."""
        work, functions = self.work, self._forms
        vector = np.array([function is not None and function.vector is not None for function in functions], np.bool_)
        aside = vector if linked is None else ~np.array(linked.covers, np.bool_)
        if not aside.any() and (linked is None or not self.others):
            return None
        uses = np.bincount(work.template, minlength=len(functions))
        if linked is None and not (uses[vector] >= thresholds.now.group).any():
            return None
        stops = int(uses[aside].sum()) + len(self.others)
        if stops * thresholds.now.reorder < self.count + len(work.refs):
            return None
        text = np.array([function is not None and function.text for function in functions], np.bool_)
        return (aside * ASIDE + text * TEXT).astype(np.uint8)

    def _stretch(self, linked: "linker.LinkedPrograms | None", order: Any, at: int, end: int) -> None:
        """Nodes from place `at` to before `end` in `order`."""
        stride, limits = 1, thresholds.now
        while at < end:
            stopped = at if linked is None else linked.sweep(self, order, at, end)
            # Where it stops at every other node, calling it costs more than it saves: ask less and less often.
            stride = min(stride * 2, limits.stretch_longest) if stopped - at < limits.stretch else 1
            self.told(stopped - at)
            at = end if linked is None else min(stopped + stride, end)
            self.some(order[stopped:at].tolist() if len(order) else range(stopped, at))

    def results(self) -> tuple[Any, Column, list[NodeFault]]:
        """The changed nodes, ascending; their values; and the faults of those in error."""
        nodes = np.flatnonzero(self.changed[self.base :])
        slots: Any = nodes + self.base if len(nodes) < self.count else slice(self.base, None)
        kinds, bits = self.kinds[slots], self.floats.view(np.int64)[slots]
        whole = kinds == INT
        if whole.any():
            bits = np.where(whole, self.ints[slots], bits)
        places = np.flatnonzero(kinds == OTHER)
        texts = map(self.others.__getitem__, (nodes[places] + self.base).tolist())
        others = dict(zip(places.tolist(), texts, strict=True))
        values = Column(kinds, bits, others)
        failed = (nodes[kinds == FAULT] + self.base).tolist()
        raw: list[NodeFault] = [self.own[slot] if slot in self.own else self._ints[slot] for slot in failed]
        return nodes, values, raw

    def some(self, nodes: Iterable[int]) -> None:
        """Compute what is dirty or woken of `nodes`, one by one."""
        starts, refs, base, changed = self._starts, self._refs, self.base, self._changed
        marked, told = self._dirty, self.told
        for at in nodes:
            inputs = refs[starts[at] : starts[at + 1]].tolist()
            if marked[at] or any(map(changed.__getitem__, inputs)):
                changed[base + at] = self._compute(at, inputs)
            told(1)

    def _compute(self, node: int, inputs: list[int]) -> bool:
        """Settle `node`. Whether it is not what it was."""
        slot = self.base + node
        make_caller = self._callers[self._template[node]]
        if isinstance(make_caller, tuple):
            return self._fail(slot, make_caller)
        kinds, ints, floats = self._kinds, self._ints, self._floats
        values: list[Any] = []
        for ref in inputs:
            kind = kinds[ref]
            if kind >= DIGEST:
                self._catch_up(ref)
                kind = kinds[ref]
            if kind == FLOAT:
                values.append(floats[ref])
            elif kind == INT:
                values.append(ints[ref])
            elif kind < INT:
                values.append(CONSTANT_ITEMS[kind])
            elif kind == OTHER:
                values.append(self.others[ref])
            else:
                kinds[slot] = FAULT
                ints[slot] = ref
                floats[slot] = math.nan
                return True
        if len(values) > _MANY_INPUTS and sum(map(estimated_size, values)) > MAX_INPUT_BYTES:
            return self._fail(slot, faults.inputs_too_large(MAX_INPUT_BYTES))
        try:
            value = make_caller(values)
        except Exception as error:  # noqa: BLE001 - whatever a function raises is its value's fault
            return self._fail(slot, fault_of(error))
        return self._give(slot, value)

    def take(self, slot: int, value: Any) -> None:
        """Settle a slot with a value or an exception that a function gave."""
        failed = isinstance(value, Exception)
        self._changed[slot] = self._fail(slot, fault_of(value)) if failed else self._give(slot, value)

    def _give(self, slot: int, value: Any) -> bool:
        """Settle a slot with what a function gave, which may be anything."""
        try:
            value = storable(value)
        except Exception as error:  # noqa: BLE001 - what cannot be stored is the value's fault too
            return self._fail(slot, fault_of(error))
        return self._put(slot, value)

    def _put(self, slot: int, value: Json) -> bool:
        kinds, bits = self._kinds, self._bits
        was, before = kinds[slot], bits[slot]
        kind = type(value)
        if kind is float:
            kinds[slot] = FLOAT
            self._floats[slot] = value
            return bool(bits[slot] != before)
        self._floats[slot] = math.nan
        if kind is int:
            kinds[slot] = INT
            before = self._ints[slot]
            self._ints[slot] = value
            return bool(was != INT or value != before)
        if value is None or kind is bool:
            kinds[slot] = now = NULL if value is None else TRUE if value else FALSE
            return bool(now != was)
        same = (was in (OTHER, DIGEST)) and unchanged(self.others[slot], value)
        kinds[slot] = OTHER
        self.others[slot] = value
        return not same

    def _fail(self, slot: int, fault: tuple[str, str]) -> bool:
        same = self._kinds[slot] == DIGEST and self.others[slot] == fault_digest(*fault)
        self._kinds[slot] = FAULT
        self._floats[slot] = math.nan
        self.own[slot] = fault
        return not same

    def _catch_up(self, slot: int) -> None:
        """Compute a skipped node, and first what it needs of skipped ones; nothing here counts as changed."""
        refs, starts, kinds, base = self._refs, self._starts, self._kinds, self.base
        stack = [slot]
        while stack:
            node = stack[-1] - base
            inputs = refs[starts[node] : starts[node + 1]].tolist()
            needed = [ref for ref in inputs if kinds[ref] >= DIGEST]
            if needed:
                stack.extend(needed)
                continue
            stack.pop()
            if kinds[base + node] >= DIGEST:
                self._compute(node, inputs)


def _starts(work: Packet) -> Any:
    """Where the inputs of each node begin, and the end. Raises `DvuError` where they name what is not there."""
    arity = np.array([shape.arity for shape in work.templates], np.int64)
    starts = np.zeros(len(work.template) + 1, np.int64)
    np.cumsum(arity[work.template], out=starts[1:])
    refs, slots = work.refs, len(work.constants) + len(work.template)
    if starts[-1] != len(refs) or (len(refs) and not 0 <= refs.min() <= refs.max() < slots):
        raise DvuError("a packet names inputs that are not in it")
    return starts


def _view(array: Any) -> Any:
    return memoryview(array)

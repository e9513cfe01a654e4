"""Computes one packet, in a worker process.

Invariant ("early cutoff"): a node is computed only if it is dirty or one of its inputs changed. A node counts as
changed only if its new value or state differs from the previous one (`rebaser_core.values.same`).

There are two exceptions, which do not change any result. A fault whose message mentions another value always counts as
changed; the planner compares such faults, because only the planner has the ids. A node that would be skipped is
nevertheless computed if another node needs its value and the packet has only a digest of the value.

Compiled code (`rebaser.dvu.compiled.kernel`) computes numbers if that saves time. It runs over the same arrays, stops
at a node that it cannot compute exactly, and continues after Python has computed that node. Other nodes of one
definition that do not depend on each other are computed together (`rebaser.dvu.worker.batching`). Only this module
interprets the result or exception of a call, and produces faults.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rebaser.dvu import faults
from rebaser.dvu.compiled import linker
from rebaser.dvu.compiled.phases import BY_PYTHON, TEXT
from rebaser.dvu.functions.registry import FunctionRegistry
from rebaser.dvu.wire.column import DIGEST, FALSE, FAULT, FLOAT, INT, ITEM_OF_KIND, NULL, OTHER, TRUE, Column
from rebaser.dvu.wire.equality import fault_digest, unchanged
from rebaser.dvu.wire.packet import NodeFault, Packet, estimated_size
from rebaser.dvu.worker import batching
from rebaser.dvu.worker.calls import child_handler, fault_of, isolated_caller, make_caller, storable
from rebaser.dvu.worker.child_process import ChildProcess, supported
from rebaser_core import thresholds
from rebaser_core.errors import DvuError
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.values import Json

MAX_INPUT_BYTES = 64 * 1024 * 1024  # maximum total bytes of all inputs of one value
_MANY_INPUTS = MAX_INPUT_BYTES // DEFAULT_LIMITS.max_value_bytes  # fewer inputs cannot exceed MAX_INPUT_BYTES

_PACKET_ORDER = np.empty(0, np.int32)  # an empty array, which means that nodes are computed in the order of the packet

ReportProgress = Callable[[int], None]


class Evaluator:
    """Computes the nodes of `packet`. Its slots are numbered: first the constants, then the nodes.

    These arrays and mappings are indexed by slot. `kinds` has the kind of each value, as in `Column`. `ints` has the
    integers, `floats` the doubles (NaN for all other kinds), and `others` the texts, lists and maps. A node that is not
    computed (yet) has its previous value. A failed node has its fault in `own_faults` or, if it failed because of an
    input, the slot of that input in `ints`. `changed` is 1 for nodes whose value or state has changed.

    `report_progress` is called with the number of nodes that were visited since the last call. If `isolate` is true,
    plug-ins are called in a child process. The constructor raises `DvuError` if an input is out of range.
    """

    def __init__(
        self,
        packet: Packet,
        registry: FunctionRegistry,
        report_progress: ReportProgress | None = None,
        *,
        isolate: bool = False,
    ) -> None:
        self.packet = packet
        self.report_progress: ReportProgress = report_progress or (lambda _: None)
        self._registry = registry
        self.base = base = len(packet.constants)
        self.count = len(packet.template)
        self.kinds = np.concatenate((packet.constants.kinds, packet.old.kinds))
        self.ints = np.zeros(len(self.kinds), np.int64)
        self.floats = np.empty(len(self.kinds), np.float64)
        packet.constants.split(self.ints[:base], self.floats[:base])
        packet.old.split(self.ints[base:], self.floats[base:])
        self.others: dict[int, Any] = {**packet.constants.others}
        self.others.update((base + node, item) for node, item in packet.old.others.items())
        self.own_faults: dict[int, tuple[str, str]] = {}
        self.changed = np.zeros(base + self.count, np.uint8)
        self.starts = _starts(packet) if packet.starts is None else packet.starts
        self._functions = [registry.functions.get(template.function) for template in packet.templates]
        self._callers = [
            make_caller(template, function)
            for template, function in zip(packet.templates, self._functions, strict=True)
        ]
        self._child = ChildProcess(child_handler(self._callers)) if isolate and supported() else None
        if self._child is not None:
            self._isolate_plugins(self._child)
        # Indexing a view of an array is five times as fast as indexing the array.
        self._kinds = _view(self.kinds)
        self._ints = _view(self.ints)
        self._floats = _view(self.floats)
        self._bits = _view(self.floats.view(np.int64))
        self._changed = _view(self.changed)
        self._refs = _view(packet.refs)
        self._starts = _view(self.starts)
        self._template = _view(packet.template)
        self._dirty = _view(packet.dirty)

    def _isolate_plugins(self, child: ChildProcess) -> None:
        for number, function in enumerate(self._functions):
            if function is not None and function.fingerprint:
                self._functions[number] = None  # no batches: only single calls show which value ends the process
                self._callers[number] = isolated_caller(child, number, function.name)

    def run(self) -> None:
        """Compute all nodes that are dirty or have a changed input, in order."""
        try:
            self._run()
        finally:
            if self._child is not None:
                self._child.close()

    def _run(self) -> None:
        linked = linker.link(self.packet, self._registry, MAX_INPUT_BYTES // estimated_size(0))
        flags = self._phase_flags(linked)
        if flags is None:
            self._compute_range(linked, _PACKET_ORDER, 0, self.count)
            return
        order, phase_starts = linker.phase_order(self, flags)
        done = 0
        for phase in np.flatnonzero(np.diff(phase_starts) >= thresholds.now.group_min_values).tolist():
            start, end = int(phase_starts[phase]), int(phase_starts[phase + 1])
            self.compute_each(order[done:start].tolist())  # small phases, for instance those of a chain
            is_python_phase = phase % 2 == 1
            if is_python_phase:
                batching.compute(self, order[start:end], self._functions)
            else:
                self._compute_range(linked, order, start, end)
            done = end
        self.compute_each(order[done:].tolist())

    def _phase_flags(self, linked: "linker.LinkedPrograms | None") -> Any:
        """Return, for each template, the flags with which `rebaser.dvu.compiled.phases` sorts the nodes. Return None if
        computing the nodes in the order of the packet is faster."""
        packet, functions = self.packet, self._functions
        vector = np.array([function is not None and function.vector is not None for function in functions], np.bool_)
        by_python = vector if linked is None else ~np.array(linked.covers, np.bool_)
        if not by_python.any() and (linked is None or not self.others):
            return None
        uses = np.bincount(packet.template, minlength=len(functions))
        if linked is None and not (uses[vector] >= thresholds.now.group_min_values).any():
            return None
        stops = int(uses[by_python].sum()) + len(self.others)
        if stops * thresholds.now.reorder_elements_per_stop < self.count + len(packet.refs):
            return None
        text = np.array([function is not None and function.text for function in functions], np.bool_)
        return (by_python * BY_PYTHON + text * TEXT).astype(np.uint8)

    def _compute_range(self, linked: "linker.LinkedPrograms | None", order: Any, start: int, end: int) -> None:
        """Compute the nodes `order[start:end]`, with compiled code where that saves time."""
        stride, limits = 1, thresholds.now
        while start < end:
            stopped = start if linked is None else linked.sweep(self, order, start, end)
            # If compiled code stops after only a few nodes, calling it takes longer than it saves. The number of nodes
            # that Python computes before the next call is therefore doubled each time.
            back_off = stopped - start < limits.kernel_backoff_below_nodes
            stride = min(stride * 2, limits.kernel_backoff_max_nodes) if back_off else 1
            self.report_progress(stopped - start)
            start = end if linked is None else min(stopped + stride, end)
            self.compute_each(order[stopped:start].tolist() if len(order) else range(stopped, start))

    def results(self) -> tuple[Any, Column, list[NodeFault]]:
        """Return the changed nodes in ascending order; their values; and, in the same order, the faults of the nodes
        that failed."""
        nodes = np.flatnonzero(self.changed[self.base :])
        slots: Any = nodes + self.base if len(nodes) < self.count else slice(self.base, None)
        kinds, bits = self.kinds[slots], self.floats.view(np.int64)[slots]
        integers = kinds == INT
        if integers.any():
            bits = np.where(integers, self.ints[slots], bits)
        positions = np.flatnonzero(kinds == OTHER)
        values = map(self.others.__getitem__, (nodes[positions] + self.base).tolist())
        column = Column(kinds, bits, dict(zip(positions.tolist(), values, strict=True)))
        failed = (nodes[kinds == FAULT] + self.base).tolist()
        faults: list[NodeFault] = [
            self.own_faults[slot] if slot in self.own_faults else self._ints[slot] for slot in failed
        ]
        return nodes, column, faults

    def compute_each(self, nodes: Iterable[int]) -> None:
        """Compute, one by one, those of `nodes` that are dirty or have a changed input."""
        starts, refs, base, changed = self._starts, self._refs, self.base, self._changed
        dirty, report_progress = self._dirty, self.report_progress
        for node in nodes:
            inputs = refs[starts[node] : starts[node + 1]].tolist()
            if dirty[node] or any(map(changed.__getitem__, inputs)):
                changed[base + node] = self._compute(node, inputs)
            report_progress(1)

    def _compute(self, node: int, inputs: list[int]) -> bool:
        """Compute `node` from the slots `inputs`, and store the outcome. Return whether it changed."""
        slot = self.base + node
        caller = self._callers[self._template[node]]
        if isinstance(caller, tuple):
            return self._store_fault(slot, caller)
        kinds, ints, floats = self._kinds, self._ints, self._floats
        values: list[Any] = []
        for ref in inputs:
            kind = kinds[ref]
            if kind >= DIGEST:
                self._compute_skipped(ref)
                kind = kinds[ref]
            if kind == FLOAT:
                values.append(floats[ref])
            elif kind == INT:
                values.append(ints[ref])
            elif kind < INT:
                values.append(ITEM_OF_KIND[kind])
            elif kind == OTHER:
                values.append(self.others[ref])
            else:
                kinds[slot] = FAULT
                ints[slot] = ref
                floats[slot] = math.nan
                return True
        if len(values) > _MANY_INPUTS and sum(map(estimated_size, values)) > MAX_INPUT_BYTES:
            return self._store_fault(slot, faults.inputs_too_large(MAX_INPUT_BYTES))
        try:
            value = caller(values)
        except Exception as error:  # noqa: BLE001 - any exception of a function is a fault of its value
            return self._store_fault(slot, fault_of(error))
        return self._store_result(slot, value)

    def store(self, slot: int, outcome: Any) -> None:
        """Store the outcome of a function call for `slot`: a result, or an exception."""
        failed = isinstance(outcome, Exception)
        self._changed[slot] = (
            self._store_fault(slot, fault_of(outcome)) if failed else self._store_result(slot, outcome)
        )

    def _store_result(self, slot: int, result: Any) -> bool:
        """Store the result of a function, or a fault if it cannot be stored. Return whether the node changed."""
        try:
            value = storable(result)
        except Exception as error:  # noqa: BLE001 - a result that cannot be stored is a fault of the value
            return self._store_fault(slot, fault_of(error))
        return self._store_value(slot, value)

    def _store_value(self, slot: int, value: Json) -> bool:
        kinds, bits = self._kinds, self._bits
        old_kind, old_bits = kinds[slot], bits[slot]
        kind = type(value)
        if kind is float:
            kinds[slot] = FLOAT
            self._floats[slot] = value
            return bool(bits[slot] != old_bits)
        self._floats[slot] = math.nan
        if kind is int:
            kinds[slot] = INT
            old_int = self._ints[slot]
            self._ints[slot] = value
            return bool(old_kind != INT or value != old_int)
        if value is None or kind is bool:
            kinds[slot] = new_kind = NULL if value is None else TRUE if value else FALSE
            return bool(new_kind != old_kind)
        same = (old_kind in (OTHER, DIGEST)) and unchanged(self.others[slot], value)
        kinds[slot] = OTHER
        self.others[slot] = value
        return not same

    def _store_fault(self, slot: int, fault: tuple[str, str]) -> bool:
        same = self._kinds[slot] == DIGEST and self.others[slot] == fault_digest(*fault)
        self._kinds[slot] = FAULT
        self._floats[slot] = math.nan
        self.own_faults[slot] = fault
        return not same

    def _compute_skipped(self, slot: int) -> None:
        """Compute the skipped node in `slot`, after the skipped nodes that it needs. These nodes do not count as
        changed."""
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


def _starts(packet: Packet) -> Any:
    """Return, for each node, the index in `refs` at which its inputs begin, followed by the index at which the last
    node's inputs end. Raise `DvuError` if an input is out of range."""
    arity = np.array([template.arity for template in packet.templates], np.int64)
    starts = np.zeros(len(packet.template) + 1, np.int64)
    np.cumsum(arity[packet.template], out=starts[1:])
    refs, slots = packet.refs, len(packet.constants) + len(packet.template)
    if starts[-1] != len(refs) or (len(refs) and not 0 <= refs.min() <= refs.max() < slots):
        raise DvuError("a packet refers to inputs that do not exist, or has a wrong number of inputs")
    return starts


def _view(array: Any) -> Any:
    return memoryview(array)

"""Combines the programs of a packet for the kernel, and calls the kernel.

Invariant: compiled code and Python give the same results, to the bit, so linking never changes a result. A packet is
linked only if compiled code saves time.
"""

from typing import Any, Protocol

import numpy as np

from rebaser.dvu.compiled import instructions, loader
from rebaser.dvu.compiled.instructions import Program
from rebaser.dvu.compiled.phases import sort_into_phases
from rebaser.dvu.functions.registry import FunctionRegistry
from rebaser.dvu.wire.column import Column
from rebaser.dvu.wire.packet import Packet
from rebaser_core import thresholds
from rebaser_core.values import Json


class SweepArrays(Protocol):
    """A packet's arrays, which compiled code reads and writes. They are attributes of
    `rebaser.dvu.worker.evaluator.Evaluator`."""

    packet: Packet
    base: int
    starts: Any
    kinds: Any
    ints: Any
    floats: Any
    changed: Any


def link(packet: Packet, functions: FunctionRegistry, max_inputs: int) -> "LinkedPrograms | None":
    """Return the programs of a packet, ready to run; None if Python should compute the whole packet.

    Python computes the nodes that have more than `max_inputs` inputs.
    """
    count, limits, loaded = len(packet.template), thresholds.now, loader.kernel() is not None
    if count + len(packet.refs) < (limits.kernel_call_min_elements if loaded else limits.kernel_load_min_elements):
        return None
    uses = packet.uses if packet.uses is not None else np.bincount(packet.template, minlength=len(packet.templates))
    from rebaser.dvu.compiled.translate import translate  # noqa: PLC0415 - small packets do not need it

    programs = [
        translate(template, functions.functions.get(template.function))
        if used >= min(limits.translate_min_nodes, count) or used * template.arity >= limits.kernel_call_min_elements
        else None
        for template, used in zip(packet.templates, uses.tolist(), strict=True)
    ]
    covered = sum(used for program, used in zip(programs, uses.tolist(), strict=True) if program is not None)
    if not covered or (not loaded and covered * 4 < count) or not loader.load():
        return None
    return LinkedPrograms(programs, max_inputs)


class LinkedPrograms:
    """The programs of a packet in one array of instructions, and their registers.

    `covers` tells, for each template of the packet, whether it has a program.
    """

    def __init__(self, programs: list[Program | None], max_inputs: int) -> None:
        self.covers = [program is not None for program in programs]
        self._max_inputs = max_inputs
        self._entries = np.full((len(programs), 3), -1, np.int32)
        code: list[instructions.Instruction] = []
        constants: list[Json] = []
        for template, general in enumerate(programs):
            for form, program in enumerate(_forms(general)):
                if program is not None:
                    self._entries[template, form] = len(code)
                    code += program.placed(len(code), instructions.FIRST_CONSTANT + len(constants))
                    constants += program.constants
        self._code = np.array(code, np.uint32).reshape(-1, 4)
        registers = Column.from_items([*[None] * instructions.FIRST_CONSTANT, *constants])
        self._kinds, self._ints = registers.kinds.copy(), registers.bits
        self._floats = self._ints.view(np.float64)
        self._scratch = loader.kernel().scratch()

    def sweep(self, arrays: SweepArrays, order: Any, start: int, end: int) -> int:
        """Compute the nodes `order[start:end]`, in this order; an empty `order` means the order of the packet.

        Return the index of the first node that Python has to compute, or `end`.
        """
        packet = arrays.packet
        stopped: int = loader.kernel().sweep(
            *(start, end, arrays.base, order, packet.template, arrays.starts),
            *(packet.refs.view(np.uint32), packet.dirty.view(np.uint8)),
            *(arrays.kinds, arrays.ints, arrays.floats, arrays.floats.view(np.int64), arrays.changed),
            *(self._entries, self._code, self._max_inputs),
            *(self._kinds, self._ints, self._floats, self._scratch),
        )
        return stopped


def _forms(program: Program | None) -> tuple[Program | None, ...]:
    """Return three forms of `program`: for inputs of any kind, for doubles only, and for integers only. Return an empty
    tuple if `program` is None."""
    if program is None:
        return ()
    return program, instructions.for_doubles(program), instructions.for_integers(program)


def phase_order(arrays: SweepArrays, flags: Any) -> tuple[Any, Any]:
    """Return the nodes of a packet in the order of `rebaser.dvu.compiled.phases`, and the index at which each phase
    begins, followed by the end of the last phase. `flags` has the flags BY_PYTHON and TEXT of each template."""
    refs, count = arrays.packet.refs, len(arrays.packet.template)
    given = (arrays.packet.template, arrays.starts, refs.view(np.uint32), arrays.kinds, flags)
    begin, order = np.zeros(2 * count + 2, np.int32), np.empty(count, np.int32)
    if loader.kernel() is not None or (count + len(refs) >= thresholds.now.kernel_load_min_elements and loader.load()):
        scratch = np.empty(count, np.int32), np.empty(count, np.uint8)
        phases = loader.kernel().sort_into_phases(arrays.base, *given, *scratch, begin, order)
        return order, begin[: phases + 1]
    begin_list, order_list = [0] * len(begin), [0] * count
    given_lists: list[Any] = [array.tolist() for array in given]
    phases = sort_into_phases(arrays.base, *given_lists, [0] * count, bytearray(count), begin_list, order_list)  # type: ignore[call-arg]
    return np.array(order_list, np.int32), np.array(begin_list[: phases + 1], np.int32)

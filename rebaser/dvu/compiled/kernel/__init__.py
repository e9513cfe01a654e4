"""Runs programs (`rebaser.dvu.compiled.instructions`) over the arrays of a packet, in code that Numba compiles.

Only `rebaser.dvu.compiled.loader` may import this package, because the import compiles it. This package imports Numba,
the instructions and phases, and the kinds of `rebaser.dvu.wire.column`.

    base           defines constants, decorators and helpers that the modules share
    doubles        computes nodes whose inputs are all doubles: most nodes
    integers       computes nodes whose inputs are all integers
    interpreter    runs programs over inputs of any kind
    reductions     computes functions of all inputs of a node, such as sums, over inputs of any kind

Invariant: `sweep` writes the same bits as `rebaser.dvu.worker.evaluator` would. If `sweep` cannot compute a node
exactly, it stops, and Python computes the node. The reason may be text, a fault of the node itself, an overflow, an
integer that no double represents, or a number that is not finite.

This code never raises exceptions, allocates memory or calls Python. The numbers that denote kinds and instructions are
constants in the compiled code. The loader stores compiled code under the fingerprint of all sources, so these numbers
are always the same in the compiled code and in Python.
"""

import math
from typing import Any

import numpy as np
from numba import config, njit, types

from rebaser.dvu.compiled import instructions, phases
from rebaser.dvu.compiled.kernel.base import compiled
from rebaser.dvu.compiled.kernel.doubles import reduce_doubles, run_doubles
from rebaser.dvu.compiled.kernel.integers import all_integers, reduce_integers, run_integers
from rebaser.dvu.compiled.kernel.interpreter import interpret
from rebaser.dvu.compiled.kernel.reductions import PARTS, reduce_any
from rebaser.dvu.wire.column import FAULT, FLOAT, INT, MISSING

_INTS, _KINDS, _DOUBLES = types.int64[::1], types.uint8[::1], types.float64[::1]
_READ = types.Array(types.int32, 1, "C", readonly=True)
_REFS = types.Array(types.uint32, 1, "C", readonly=True)  # unsigned, so that an index needs no check of its sign
_CACHE = bool(config.CACHE_DIR)
_SIGNATURE = types.int64(
    *(types.int64, types.int64, types.int64, _READ, _READ, _INTS, _REFS, _KINDS),
    *(_KINDS, _INTS, _DOUBLES, _INTS, _KINDS),
    *(types.int32[:, ::1], types.uint32[:, ::1], types.int64),
    *(_KINDS, _INTS, _DOUBLES, _DOUBLES),
)
_WRITTEN = types.int32[::1]
_PHASES = types.int64(
    types.int64, _READ, _INTS, _REFS, _KINDS, _KINDS, _WRITTEN, _KINDS, _WRITTEN, _WRITTEN
)  # fmt: skip
sort_into_phases = njit(_PHASES, cache=_CACHE, nogil=True)(phases.sort_into_phases)


def scratch() -> Any:
    """Return an array that `sweep` uses for the partial sums of a node."""
    return np.empty(PARTS, np.float64)


@compiled
def _compute_any(
    slot, entry, start, end, refs, kinds, ints, floats, float_bits, changed, code, file_kinds, file_ints, file_floats,
    parts,
):  # fmt: skip
    """Compute the node in `slot`, whose inputs may have any kind. Return False if Python has to compute it."""
    for edge in range(start, end):
        ref = refs[edge]
        kind = kinds[ref]
        if kind > FLOAT:
            if kind != FAULT and kind != MISSING:
                return False
            kinds[slot] = FAULT
            ints[slot] = ref
            floats[slot] = np.nan
            changed[slot] = 1
            return True
    if code[entry, 0] >= instructions.REDUCE_SUM:
        result = reduce_any(
            code[entry, 0], code[entry, 2], start, end, refs, kinds, ints, floats,
            file_kinds, file_ints, file_floats, parts,
        )  # fmt: skip
    else:
        for edge in range(start, end):
            ref = refs[edge]
            file_kinds[edge - start] = kinds[ref]
            if kinds[ref] == FLOAT:
                file_floats[edge - start] = floats[ref]
            else:
                file_ints[edge - start] = ints[ref]
        result = interpret(entry, code, file_kinds, file_ints, file_floats)
    if result < 0:
        return False
    kind = file_kinds[result]
    same = kind == kinds[slot]
    if kind == FLOAT:
        same = same and float_bits[slot] == file_ints[result]
        floats[slot] = file_floats[result]
    else:
        same = same and (kind != INT or ints[slot] == file_ints[result])
        ints[slot] = file_ints[result]
        floats[slot] = np.nan
    kinds[slot] = kind
    if not same:
        changed[slot] = 1
    return True


@njit(_SIGNATURE, cache=_CACHE, nogil=True, error_model="numpy")
def sweep(
    at, end, base, order, template, starts, refs, dirty, kinds, ints, floats, float_bits, changed, entries, code,
    max_inputs, file_kinds, file_ints, file_floats, parts,
):  # fmt: skip
    """Compute those of the nodes `order[at:end]` that are dirty or have a changed input. If `order` is empty, these are
    the nodes of the packet from `at` to before `end`. Return the index of the first node that Python has to compute, or
    `end`.

    Node `i` is slot `base + i`. Its inputs are the slots `refs[starts[i]:starts[i + 1]]`. `template` and `dirty` have
    an item for each node. `kinds`, `changed`, `ints` and `floats` have an item for each slot; `floats` is NaN unless
    the kind is FLOAT. `float_bits` is a view of the memory of `floats`.

    `entries[t]` has the indexes in `code` at which three forms of the program of template `t` begin: for inputs of any
    kind, for doubles, and for integers; -1 if there is no such form. `file_kinds`, `file_ints` and `file_floats` (a
    view of the memory of `file_ints`) are the registers. `parts` is temporary storage for sums. A node with more than
    `max_inputs` inputs makes the sweep stop, so that Python computes the node.
    """
    # This code is not divided into functions. Passing eight arrays to a function would increment the reference count of
    # each, which would double the time that a node takes.
    ordered = len(order) > 0
    while at < end:
        node = np.int64(order[at]) if ordered else at
        first, last = starts[node], starts[node + 1]
        is_dirty = dirty[node] != 0
        edge = first
        while not is_dirty and edge < last:
            is_dirty = changed[refs[edge]] != 0
            edge += 1
        if not is_dirty:
            at += 1
            continue
        slot = base + node
        if last - first > max_inputs:
            return at

        # First, compute as if all inputs were doubles. If an input is not a double, the result is NaN.
        entry = entries[template[node], 1]
        if entry >= 0:
            if code[entry, 0] >= instructions.REDUCE_SUM:
                result = reduce_doubles(code[entry, 0], first, last, refs, floats, parts)
            else:
                result = 0.0
                for edge in range(first, last):
                    file_floats[edge - first] = floats[refs[edge]]
                    result += floats[refs[edge]]
                result = run_doubles(entry, code, file_floats) if not math.isnan(result) else result
            if math.isfinite(result):
                before = float_bits[slot]
                floats[slot] = result
                kinds[slot] = FLOAT
                if float_bits[slot] != before:
                    changed[slot] = 1
                at += 1
                continue

        # Then, if all inputs are integers, compute with integers.
        entry = entries[template[node], 2]
        if entry >= 0 and all_integers(first, last, refs, kinds):
            if code[entry, 0] >= instructions.REDUCE_SUM:
                done, integer = reduce_integers(code[entry, 0], first, last, refs, ints)
            else:
                for edge in range(first, last):
                    file_ints[edge - first] = ints[refs[edge]]
                done, integer = run_integers(entry, code, file_ints)
            if done:
                if kinds[slot] != INT or ints[slot] != integer:
                    changed[slot] = 1
                ints[slot] = integer
                floats[slot] = np.nan
                kinds[slot] = INT
                at += 1
                continue

        # Otherwise, interpret the form for inputs of any kind, or leave the node to Python.
        entry = entries[template[node], 0]
        if entry < 0 or not _compute_any(
            slot, entry, first, last, refs, kinds, ints, floats, float_bits, changed, code,
            file_kinds, file_ints, file_floats, parts,
        ):  # fmt: skip
            return at
        at += 1
    return at

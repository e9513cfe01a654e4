"""The compiled sweep: interprets programs (`rebaser.dvu.compiled.instructions`) over the arrays of a packet.

Invariant: what it puts down is to the bit what `rebaser.dvu.worker.evaluator` would. Wherever that takes thought (text,
a fault of the node's own, an overflow, an integer that no double holds, a number that is not finite) it stops at the
node, and Python computes it.

Nothing here raises, allocates or calls Python. Kinds and instructions are numbers of `column` and `ops`, built into
what is compiled: `rebaser.dvu.compiled.linker` keeps it apart by the fingerprint of all sources.
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
_REFS = types.Array(types.uint32, 1, "C", readonly=True)  # unsigned: an index that needs no look at its sign
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
    """Room for partial sums."""
    return np.empty(PARTS, np.float64)


@compiled
def settle(
    slot, entry, code, start, end, refs, kinds, ints, floats, float_bits, changed,
    file_kinds, file_ints, file_floats, parts,
):  # fmt: skip
    """Settle a node of any kinds; False if that is left to Python."""
    for at in range(start, end):
        ref = refs[at]
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
        for at in range(start, end):
            ref = refs[at]
            file_kinds[at - start] = kinds[ref]
            if kinds[ref] == FLOAT:
                file_floats[at - start] = floats[ref]
            else:
                file_ints[at - start] = ints[ref]
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
    at, end, base, order, shape, starts, refs, dirty, kinds, ints, floats, float_bits, changed, entries, code, most,
    file_kinds, file_ints, file_floats, parts,
):  # fmt: skip
    """Settle nodes from place `at` on in `order` (as they stand, if that is empty); returns the place of the first that
    is left to Python, or `end`.

    `entries` has the first instruction of each shape's program, of the one in doubles and of the one in integers, -1
    where there is none; the file is the registers. A node with more than `most` inputs is left.
    """
    ordered = len(order) > 0
    while at < end:
        node = np.int64(order[at]) if ordered else at
        first, last = starts[node], starts[node + 1]
        woken = dirty[node] != 0
        edge = first
        while not woken and edge < last:
            woken = changed[refs[edge]] != 0
            edge += 1
        if not woken:
            at += 1
            continue
        slot = base + node
        if last - first > most:
            return at
        entry = entries[shape[node], 1]
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
        entry = entries[shape[node], 2]
        if entry >= 0 and all_integers(first, last, refs, kinds):
            if code[entry, 0] >= instructions.REDUCE_SUM:
                done, whole = reduce_integers(code[entry, 0], first, last, refs, ints)
            else:
                for edge in range(first, last):
                    file_ints[edge - first] = ints[refs[edge]]
                done, whole = run_integers(entry, code, file_ints)
            if done:
                if kinds[slot] != INT or ints[slot] != whole:
                    changed[slot] = 1
                ints[slot] = whole
                floats[slot] = np.nan
                kinds[slot] = INT
                at += 1
                continue
        entry = entries[shape[node], 0]
        if entry < 0 or not settle(
            slot, entry, code, first, last, refs, kinds, ints, floats, float_bits, changed,
            file_kinds, file_ints, file_floats, parts,
        ):  # fmt: skip
            return at
        at += 1
    return at

"""Computes nodes whose inputs are all doubles. Most nodes are of this kind.

Invariant: the array `floats` contains only finite doubles, and NaN for all other values. If a result is not finite,
this module cannot compute the node: an input is not a double, or the result is out of range.
"""

import math

import numpy as np

from rebaser.dvu.compiled import instructions
from rebaser.dvu.compiled.kernel.base import compiled, inlined
from rebaser.dvu.compiled.kernel.reductions import add, rounded


@inlined
def run_doubles(pc, code, file):
    """Run the program at index `pc` of `code` over doubles; true is 1 and false is 0. Return its result, or NaN if it
    cannot be computed with doubles. `file` are the registers."""
    while True:
        op, to, left, right = code[pc, 0], code[pc, 1], code[pc, 2], code[pc, 3]
        pc += 1
        a, b = file[left], file[right]
        if op == instructions.ADD:
            result = a + b
        elif op == instructions.MULTIPLY:
            result = a * b
        elif op == instructions.SUBTRACT:
            result = a - b
        elif op == instructions.DIVIDE:
            if b == 0.0:
                return np.nan
            result = a / b
        elif op == instructions.RETURN:
            return a
        elif op == instructions.JUMP:
            pc = right
            continue
        elif op == instructions.JUMP_IF_NOT:
            if a == 0.0:
                pc = right
            continue
        elif op == instructions.NEGATE:
            result = -a
        elif op == instructions.MAGNITUDE:
            result = abs(a)
        elif op == instructions.LEAST:
            result = min(a, b)
        elif op == instructions.GREATEST:
            result = max(a, b)
        elif op == instructions.LESS:
            result = 1.0 if a < b else 0.0
        elif op == instructions.LESS_EQUAL:
            result = 1.0 if a <= b else 0.0
        elif op == instructions.GREATER:
            result = 1.0 if a > b else 0.0
        elif op == instructions.GREATER_EQUAL:
            result = 1.0 if a >= b else 0.0
        elif op == instructions.EQUAL:
            result = 1.0 if a == b else 0.0
        elif op == instructions.UNEQUAL:
            result = 1.0 if a != b else 0.0
        elif op == instructions.NOT:
            result = 1.0 - a
        else:  # MOVE, TRUTH
            result = a
        if not math.isfinite(result):
            return np.nan
        file[to] = result


@compiled
def _sum(start, end, refs, floats, parts):
    known = 0
    for at in range(start, end):
        known = add(floats[refs[at]], known, parts)
        if known < 0:
            return np.nan
    return rounded(known, parts)


@inlined
def reduce_doubles(op, start, end, refs, floats, parts):
    """Return the result of the reduction `op` over the inputs `refs[start:end]`. If it cannot be computed with doubles,
    the result is not finite."""
    count = end - start
    if count == 0:
        return np.nan
    first = floats[refs[start]]
    if op == instructions.REDUCE_SUM or op == instructions.REDUCE_MEAN:
        if count == 1:
            total = first + 0.0
        elif count == 2:
            total = (first + floats[refs[start + 1]]) + 0.0  # adding 0.0 turns a negative zero into zero
        else:
            total = _sum(start, end, refs, floats, parts)
        return total if op == instructions.REDUCE_SUM else total / np.float64(count)
    if op == instructions.REDUCE_MAX or op == instructions.REDUCE_MIN:
        best = first
        for at in range(start + 1, end):
            value = floats[refs[at]]
            if math.isnan(value):
                return np.nan
            if (value > best) if op == instructions.REDUCE_MAX else (value < best):
                best = value
        return best
    if op == instructions.REDUCE_PRODUCT:
        result = first
        for at in range(start + 1, end):
            result *= floats[refs[at]]
        return result
    if op == instructions.REDUCE_ABS and count == 1:
        return abs(first)
    return np.nan

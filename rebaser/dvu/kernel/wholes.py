"""Nodes of which all is integers, compiled.

Invariant: an integer is one of 64 bits. What would not fit, and a quotient that does not come out even, is left to the
whole of the rules.
"""

import numpy as np

from rebaser.dvu import ops
from rebaser.dvu.kernel.base import SAFE, compiled, inlined
from rebaser.dvu.wire.column import INT


@compiled
def all_whole(start, end, refs, kinds):
    """Whether these are all integers, and there is one."""
    for at in range(start, end):
        if kinds[refs[at]] != INT:
            return False
    return start < end


@inlined
def in_wholes(pc, code, file):
    """Run a program over integers, true being 1 and false 0: whether it came to an end, and what it gave."""
    while True:
        op, to, left, right = code[pc, 0], code[pc, 1], code[pc, 2], code[pc, 3]
        pc += 1
        a, b = file[left], file[right]
        if op == ops.ADD:
            result = a + b  # wraps around
            if ((a ^ result) & (b ^ result)) < 0:
                return False, a
        elif op == ops.SUBTRACT:
            result = a - b
            if ((a ^ b) & (a ^ result)) < 0:
                return False, a
        elif op == ops.MULTIPLY:
            result = a * b
            if not abs(np.float64(a) * np.float64(b)) < SAFE:
                return False, a
        elif op == ops.RETURN:
            return True, a
        elif op == ops.JUMP:
            pc = right
            continue
        elif op == ops.JUMP_IF_NOT:
            if a == 0:
                pc = right
            continue
        elif op == ops.LESS:
            result = np.int64(a < b)
        elif op == ops.LESS_EQUAL:
            result = np.int64(a <= b)
        elif op == ops.GREATER:
            result = np.int64(a > b)
        elif op == ops.GREATER_EQUAL:
            result = np.int64(a >= b)
        elif op == ops.EQUAL:
            result = np.int64(a == b)
        elif op == ops.UNEQUAL:
            result = np.int64(a != b)
        elif op == ops.NOT:
            result = 1 - a
        elif op == ops.LEAST:
            result = min(a, b)
        elif op == ops.GREATEST:
            result = max(a, b)
        elif op == ops.NEGATE or op == ops.MAGNITUDE:
            result = -a if op == ops.NEGATE or a < 0 else a
            if a < 0 and result < 0:  # -2**63 has no opposite
                return False, a
        elif op == ops.DIVIDE or op == ops.REMAINDER:
            if b == 0 or b == -1:  # -1: the one quotient that may not fit
                return False, a
            rest = a % b
            if op == ops.REMAINDER:
                result = rest - b if rest != 0 and (a < 0) != (b < 0) else rest  # the sign of `a`
            elif rest != 0:
                return False, a
            else:
                result = a // b
        else:  # MOVE, TRUTH, and what rounds
            result = a
        file[to] = result


@inlined
def over_wholes(op, start, end, refs, ints):
    """A function of all inputs: whether it came to an end, and what it gave."""
    total = ints[refs[start]]
    if op == ops.ALL_COUNT:
        return True, np.int64(end - start)
    for at in range(start + 1, end):
        value = ints[refs[at]]
        if op == ops.ALL_SUM:
            result = total + value
            if ((total ^ result) & (value ^ result)) < 0:
                return False, total
            total = result
        elif op == ops.ALL_PRODUCT:
            if not abs(np.float64(total) * np.float64(value)) < SAFE:
                return False, total
            total *= value
        elif op == ops.ALL_MAX:
            total = max(total, value)
        else:
            total = min(total, value)
    return True, total

"""Computes nodes whose inputs are all integers.

Invariant: an integer has 64 bits. If a result would not fit, or a quotient would not be an integer, this module leaves
the node to `interpreter` or `reductions`.
"""

import numpy as np

from rebaser.dvu.compiled import instructions
from rebaser.dvu.compiled.kernel.base import SAFE, compiled, inlined
from rebaser.dvu.wire.column import INT


@compiled
def all_integers(start, end, refs, kinds):
    """Return whether there are inputs `refs[start:end]`, and all of them are integers."""
    for at in range(start, end):
        if kinds[refs[at]] != INT:
            return False
    return start < end


@inlined
def run_integers(pc, code, file):
    """Run the program at index `pc` of `code` over integers; true is 1 and false is 0. Return whether it could be run
    to its end, and its result. `file` are the registers."""
    while True:
        op, to, left, right = code[pc, 0], code[pc, 1], code[pc, 2], code[pc, 3]
        pc += 1
        a, b = file[left], file[right]
        if op == instructions.ADD:
            result = a + b  # an overflow wraps around
            if ((a ^ result) & (b ^ result)) < 0:
                return False, a
        elif op == instructions.SUBTRACT:
            result = a - b
            if ((a ^ b) & (a ^ result)) < 0:
                return False, a
        elif op == instructions.MULTIPLY:
            result = a * b
            if not abs(np.float64(a) * np.float64(b)) < SAFE:
                return False, a
        elif op == instructions.RETURN:
            return True, a
        elif op == instructions.JUMP:
            pc = right
            continue
        elif op == instructions.JUMP_IF_NOT:
            if a == 0:
                pc = right
            continue
        elif op == instructions.LESS:
            result = np.int64(a < b)
        elif op == instructions.LESS_EQUAL:
            result = np.int64(a <= b)
        elif op == instructions.GREATER:
            result = np.int64(a > b)
        elif op == instructions.GREATER_EQUAL:
            result = np.int64(a >= b)
        elif op == instructions.EQUAL:
            result = np.int64(a == b)
        elif op == instructions.UNEQUAL:
            result = np.int64(a != b)
        elif op == instructions.NOT:
            result = 1 - a
        elif op == instructions.LEAST:
            result = min(a, b)
        elif op == instructions.GREATEST:
            result = max(a, b)
        elif op == instructions.NEGATE or op == instructions.MAGNITUDE:
            result = -a if op == instructions.NEGATE or a < 0 else a
            if a < 0 and result < 0:  # the negation of -2**63 overflows
                return False, a
        elif op == instructions.DIVIDE or op == instructions.REMAINDER:
            if b == 0 or b == -1:  # the quotient of -2**63 and -1 does not fit in 64 bits
                return False, a
            rest = a % b
            if op == instructions.REMAINDER:
                result = rest - b if rest != 0 and (a < 0) != (b < 0) else rest  # the remainder has the sign of `a`
            elif rest != 0:
                return False, a
            else:
                result = a // b
        else:  # MOVE, TRUTH, and the operators that round
            result = a
        file[to] = result


@inlined
def reduce_integers(op, start, end, refs, ints):
    """Apply the reduction `op` to the inputs `refs[start:end]`. There must be at least one input. Return whether the
    result fits in 64 bits, and the result."""
    total = ints[refs[start]]
    if op == instructions.REDUCE_COUNT:
        return True, np.int64(end - start)
    for at in range(start + 1, end):
        value = ints[refs[at]]
        if op == instructions.REDUCE_SUM:
            result = total + value
            if ((total ^ result) & (value ^ result)) < 0:
                return False, total
            total = result
        elif op == instructions.REDUCE_PRODUCT:
            if not abs(np.float64(total) * np.float64(value)) < SAFE:
                return False, total
            total *= value
        elif op == instructions.REDUCE_MAX:
            total = max(total, value)
        else:
            total = min(total, value)
    return True, total

"""Interprets programs over registers of any kind.

A register `r` has a kind, `kinds[r]`, and a value: `ints[r]` or `floats[r]`, which are views of the same memory. Each
function after `interpret` applies an operator to the registers `left` and `right`, and writes the result into the
register `to`.
"""

import math

import numpy as np

from rebaser.dvu.compiled import instructions
from rebaser.dvu.compiled.kernel.base import EXACT, SAFE, STOP, comparable, compiled, half_up
from rebaser.dvu.wire.column import FALSE, FLOAT, INT, NULL, TRUE


@compiled
def interpret(pc, code, kinds, ints, floats):
    """Run the program at index `pc` of `code`. Return the register that contains the result, or -1 if Python has to
    compute the result."""
    while True:
        op, to, left, right = code[pc, 0], code[pc, 1], code[pc, 2], code[pc, 3]
        pc += 1
        if op >= instructions.ADD:
            if op <= instructions.REMAINDER:
                done = _arithmetic(op, to, left, right, kinds, ints, floats)
            elif op <= instructions.GREATER_EQUAL:
                done = _compare(op, to, left, right, kinds, ints, floats)
            elif op <= instructions.TO_DOUBLE:
                done = _unary(op, to, left, kinds, ints, floats)
            else:
                done = _pick(op, to, left, right, kinds, ints, floats)
            if not done:
                return STOP
        elif op == instructions.RETURN:
            return np.int64(left)
        elif op == instructions.JUMP:
            pc = right
        elif op == instructions.MOVE:
            kinds[to] = kinds[left]
            ints[to] = ints[left]
        else:
            kind = kinds[left]
            nothing = op == instructions.JUMP_IF_NOTHING and kind == NULL
            if kind != TRUE and kind != FALSE and not nothing:
                return STOP
            if op == instructions.TRUTH:
                kinds[to] = kind
            elif kind != TRUE:
                pc = right


@compiled
def _arithmetic(op, to, left, right, kinds, ints, floats):
    """Apply an arithmetic operator to two operands. Return False if Python has to compute the result."""
    left_kind, right_kind = kinds[left], kinds[right]
    if left_kind == INT and right_kind == INT:
        return _integer_arithmetic(op, to, ints[left], ints[right], kinds, ints, floats)
    if left_kind < INT or right_kind < INT:
        return False
    a = floats[left] if left_kind == FLOAT else np.float64(ints[left])
    b = floats[right] if right_kind == FLOAT else np.float64(ints[right])
    if op == instructions.ADD:
        result = a + b
    elif op == instructions.SUBTRACT:
        result = a - b
    elif op == instructions.MULTIPLY:
        result = a * b
    else:
        if b == 0.0:
            return False
        result = a / b if op == instructions.DIVIDE else np.fmod(a, b)
    kinds[to] = FLOAT
    floats[to] = result
    return math.isfinite(result)


@compiled
def _integer_arithmetic(op, to, a, b, kinds, ints, floats):
    """Apply an arithmetic operator to the integers `a` and `b`. Return False if Python has to compute the result."""
    kinds[to] = INT
    if op == instructions.ADD:
        result = a + b  # an overflow wraps around
        ints[to] = result
        return ((a ^ result) & (b ^ result)) >= 0
    if op == instructions.SUBTRACT:
        result = a - b
        ints[to] = result
        return ((a ^ b) & (a ^ result)) >= 0
    if op == instructions.MULTIPLY:
        ints[to] = a * b
        return abs(np.float64(a) * np.float64(b)) < SAFE
    if b == 0 or b == -1:  # the quotient of -2**63 and -1 does not fit in 64 bits
        return False
    rest = a % b
    if op == instructions.REMAINDER:
        ints[to] = rest - b if rest != 0 and (a < 0) != (b < 0) else rest  # the remainder has the sign of `a`
        return True
    if rest == 0:
        ints[to] = a // b
        return True
    kinds[to] = FLOAT
    floats[to] = np.float64(a) / np.float64(b)
    return -EXACT <= a <= EXACT and -EXACT <= b <= EXACT


@compiled
def _compare(op, to, left, right, kinds, ints, floats):
    """Compare two operands. Return False if Python has to compute the result."""
    left_kind, right_kind = kinds[left], kinds[right]
    if left_kind < INT or right_kind < INT:
        left_truth = left_kind == TRUE or left_kind == FALSE
        right_truth = right_kind == TRUE or right_kind == FALSE
        if op > instructions.UNEQUAL and not (left_truth and right_truth):
            return False
        order = np.int64(left_kind) - np.int64(right_kind)  # the value of a null or boolean is its kind; FALSE < TRUE
    elif left_kind == INT and right_kind == INT:
        order = np.int64(ints[left] > ints[right]) - np.int64(ints[left] < ints[right])
    else:
        if not comparable(left, kinds, ints) or not comparable(right, kinds, ints):
            return False
        a = floats[left] if left_kind == FLOAT else np.float64(ints[left])
        b = floats[right] if right_kind == FLOAT else np.float64(ints[right])
        order = np.int64(a > b) - np.int64(a < b)
    if op == instructions.EQUAL:
        holds = order == 0
    elif op == instructions.UNEQUAL:
        holds = order != 0
    elif op == instructions.LESS:
        holds = order < 0
    elif op == instructions.LESS_EQUAL:
        holds = order <= 0
    elif op == instructions.GREATER:
        holds = order > 0
    else:
        holds = order >= 0
    kinds[to] = TRUE if holds else FALSE
    return True


@compiled
def _unary(op, to, left, kinds, ints, floats):
    """Apply an operator that takes one operand. Return False if Python has to compute the result."""
    kind = kinds[left]
    if op == instructions.NOT:
        kinds[to] = FALSE if kind == TRUE else TRUE
        return kind == TRUE or kind == FALSE
    if kind == INT:
        return _unary_integer(op, to, ints[left], kinds, ints, floats)
    if kind != FLOAT:
        return False
    value = floats[left]
    kinds[to] = FLOAT
    if op == instructions.NEGATE:
        floats[to] = -value
    elif op == instructions.MAGNITUDE:
        floats[to] = abs(value)
    elif op == instructions.CEIL:
        floats[to] = np.ceil(value) + 0.0  # adding 0.0 turns a negative zero into zero
    elif op == instructions.FLOOR:
        floats[to] = np.floor(value) + 0.0
    elif op == instructions.ROUND:
        floats[to] = half_up(value)
    elif op == instructions.ROOT:
        floats[to] = math.sqrt(value)
        return value >= 0.0
    elif op == instructions.TO_INT:
        kinds[to] = INT
        if not abs(value) < SAFE:
            return False
        ints[to] = np.int64(value)
    else:
        floats[to] = value
    return True


@compiled
def _unary_integer(op, to, value, kinds, ints, floats):
    """Apply an operator to the integer `value`. Return False if Python has to compute the result."""
    kinds[to] = INT
    if op == instructions.NEGATE or (op == instructions.MAGNITUDE and value < 0):
        ints[to] = -value
        return value > -EXACT  # -2**63 would overflow; Python also computes other large values
    if op == instructions.ROOT:
        kinds[to] = FLOAT
        floats[to] = math.sqrt(np.float64(value))
        return value >= 0
    if op == instructions.TO_DOUBLE:
        kinds[to] = FLOAT
        floats[to] = np.float64(value)
        return True
    ints[to] = value
    return True


@compiled
def _pick(op, to, left, right, kinds, ints, floats):
    """Choose the greater or the lesser of two numbers; the first if they are equal. Return False if Python has to
    compute the result."""
    if kinds[left] < INT or kinds[right] < INT:
        return False
    if kinds[left] == INT and kinds[right] == INT:
        greater, less = ints[right] > ints[left], ints[right] < ints[left]
    else:
        if not comparable(left, kinds, ints) or not comparable(right, kinds, ints):
            return False
        a = floats[left] if kinds[left] == FLOAT else np.float64(ints[left])
        b = floats[right] if kinds[right] == FLOAT else np.float64(ints[right])
        greater, less = b > a, b < a
    chosen = right if (greater if op == instructions.GREATEST else less) else left
    kinds[to] = kinds[chosen]
    ints[to] = ints[chosen]
    return True

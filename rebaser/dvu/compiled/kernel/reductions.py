"""Computes reductions over inputs of any kind: functions of all inputs of a node, such as sums, means and extremes.

The inputs of a node are the slots `refs[start:end]`. An input has a kind, and a value in `ints` or `floats`. The
result is written into register 0 of `file_kinds`, `file_ints` and `file_floats`.
"""

import math

import numpy as np

from rebaser.dvu.compiled import instructions
from rebaser.dvu.compiled.kernel.base import EXACT, SAFE, STOP, comparable, compiled, half_up, inlined
from rebaser.dvu.wire.column import FALSE, FLOAT, INT, NULL, TRUE

PARTS = 128  # maximum number of partial sums of doubles; at most 42 occur, because their bits do not overlap
NOTHING = -2  # the result of `_extreme` if no input is a number
_NEAR = 1e-3  # if a scaled value is closer to a half than this, Python rounds the value by its decimal digits
_ROUNDED = 2.0**40  # Python also rounds scaled values from this size on, which have too few bits after the point


@compiled
def reduce_any(op, given, start, end, refs, kinds, ints, floats, file_kinds, file_ints, file_floats, parts):
    """Apply the reduction `op` to all inputs. Return the register of the result, or -1 if Python has to compute it.

    `given` is the parameter of the reduction: a number of decimals, or the register of a default value. If the result
    is the default value, its register is returned. All other results are in register 0.
    """
    if op == instructions.REDUCE_SUM or op == instructions.REDUCE_MEAN:
        kind, numbers, whole, total = _sum(start, end, refs, kinds, ints, floats, parts)
        file_kinds[0] = kind
        if kind < 0 or (op == instructions.REDUCE_MEAN and kind == INT and not -EXACT <= whole <= EXACT):
            return STOP
        if kind == INT and op == instructions.REDUCE_SUM:
            file_ints[0] = whole
            return 0
        if numbers == 0:
            file_kinds[0] = NULL
            return 0
        file_kinds[0] = FLOAT
        if op == instructions.REDUCE_MEAN:
            total = (np.float64(whole) if kind == INT else total) / np.float64(numbers)
        file_floats[0] = total
        return 0 if math.isfinite(total) else STOP
    if op == instructions.REDUCE_PRODUCT:
        return _product(start, end, refs, kinds, ints, floats, file_kinds, file_ints, file_floats)
    if op == instructions.REDUCE_MIN or op == instructions.REDUCE_MAX:
        best = _extreme(op == instructions.REDUCE_MAX, start, end, refs, kinds, ints, floats)
        if best >= 0:
            return _take(best, kinds, ints, floats, file_kinds, file_ints, file_floats)
        file_kinds[0] = NULL
        return 0 if best == NOTHING else STOP
    if op == instructions.REDUCE_COALESCE:
        for at in range(start, end):
            if kinds[refs[at]] != NULL:
                return _take(refs[at], kinds, ints, floats, file_kinds, file_ints, file_floats)
        return np.int64(given)
    if op == instructions.REDUCE_COUNT:
        found = 0
        for at in range(start, end):
            found += kinds[refs[at]] != NULL
        file_kinds[0] = INT
        file_ints[0] = found
        return 0
    return _of_one(op, given, start, end, refs, kinds, ints, floats, file_kinds, file_ints, file_floats)


@compiled
def _sum(start, end, refs, kinds, ints, floats, parts):
    """Add all numbers among the inputs. Return a tuple of the kind of the sum (-1 if the caller must let Python compute
    the sum), the number of numbers, the sum if all are integers, and the sum if at least one is a double.

    The sum of doubles is rounded only once, by Shewchuk's algorithm, as in `math.fsum`.
    """
    kind, numbers, whole = INT, 0, np.int64(0)
    for at in range(start, end):
        ref = refs[at]
        if kinds[ref] == INT:
            numbers += 1
            if kind == INT:
                result = whole + ints[ref]
                if ((whole ^ result) & (ints[ref] ^ result)) < 0:
                    return STOP, 0, whole, 0.0
                whole = result
        elif kinds[ref] == FLOAT:
            numbers += 1
            kind = FLOAT
        elif kinds[ref] != NULL:
            return STOP, 0, whole, 0.0
    if kind == INT:
        return kind, numbers, whole, 0.0
    known = 0
    for at in range(start, end):
        ref = refs[at]
        if kinds[ref] != NULL:
            known = add(floats[ref] if kinds[ref] == FLOAT else np.float64(ints[ref]), known, parts)
            if known < 0:
                return STOP, 0, whole, 0.0
    return kind, numbers, whole, rounded(known, parts)


@inlined
def add(x, known, parts):
    """Add `x` to the sum in the first `known` items of `parts`, which are partial sums in ascending order. Return the
    new number of partial sums, or -1 if Python has to compute the sum."""
    kept = 0
    for k in range(known):
        y = parts[k]
        if abs(x) < abs(y):
            x, y = y, x
        high = x + y
        low = y - (high - x)
        if low != 0.0:
            parts[kept] = low
            kept += 1
        x = high
    if not math.isfinite(x) or kept + 2 > PARTS:
        return STOP
    if x != 0.0:
        parts[kept] = x
        kept += 1
    return kept


@compiled
def rounded(known, parts):
    """Return the sum of the first `known` items of `parts`, which are partial sums, rounded to the nearest double. A
    half is rounded to even."""
    if known == 0:
        return 0.0
    known -= 1
    high, low = parts[known], 0.0
    while known > 0:
        x = high
        known -= 1
        y = parts[known]
        high = x + y
        low = y - (high - x)
        if low != 0.0:
            break
    if known > 0 and ((low < 0.0 and parts[known - 1] < 0.0) or (low > 0.0 and parts[known - 1] > 0.0)):
        y = low * 2.0
        x = high + y
        if y == x - high:
            high = x
    return high


@compiled
def _product(start, end, refs, kinds, ints, floats, file_kinds, file_ints, file_floats):
    """Multiply all numbers among the inputs. Return 0, the register of the product, or -1 if Python has to compute the
    product."""
    exact, fits, whole, result = True, True, 1, 1.0
    for at in range(start, end):
        ref = refs[at]
        if kinds[ref] == INT:
            if not abs(np.float64(whole) * np.float64(ints[ref])) < SAFE:
                fits = False
            whole *= ints[ref]
            result *= np.float64(ints[ref])
        elif kinds[ref] == FLOAT:
            exact = False
            result *= floats[ref]
        elif kinds[ref] != NULL:
            return STOP
    if exact:
        file_kinds[0] = INT
        file_ints[0] = whole
        return 0 if fits else STOP
    file_kinds[0] = FLOAT
    file_floats[0] = result
    return 0 if math.isfinite(result) else STOP


@compiled
def _extreme(greatest, start, end, refs, kinds, ints, floats):
    """Return the slot of the greatest or smallest number; of equal numbers, the first. Return `NOTHING` if there is no
    number, and -1 if Python has to compute the result."""
    best = NOTHING
    for at in range(start, end):
        ref = refs[at]
        if kinds[ref] == NULL:
            continue
        if kinds[ref] < INT:
            return STOP
        if best == NOTHING:
            best = int(ref)
            continue
        if kinds[ref] == INT and kinds[best] == INT:
            better = ints[ref] > ints[best] if greatest else ints[ref] < ints[best]
        else:
            if kinds[ref] != kinds[best] and not (comparable(best, kinds, ints) and comparable(ref, kinds, ints)):
                return STOP
            a = floats[best] if kinds[best] == FLOAT else np.float64(ints[best])
            b = floats[ref] if kinds[ref] == FLOAT else np.float64(ints[ref])
            better = b > a if greatest else b < a
        if better:
            best = int(ref)
    return best


@compiled
def _take(ref, kinds, ints, floats, file_kinds, file_ints, file_floats):
    """Copy the input in slot `ref` into register 0. Return 0, the number of that register."""
    file_kinds[0] = kinds[ref]
    if kinds[ref] == FLOAT:
        file_floats[0] = floats[ref]
    else:
        file_ints[0] = ints[ref]
    return 0


@compiled
def _of_one(op, digits, start, end, refs, kinds, ints, floats, file_kinds, file_ints, file_floats):
    """Compute `abs` or `round`, which take one input. Return 0, the register of the result, or -1 if Python has to
    compute the result."""
    if end - start != 1:
        return STOP
    ref = refs[start]
    kind = kinds[ref]
    if kind == TRUE or kind == FALSE:
        return STOP
    _take(ref, kinds, ints, floats, file_kinds, file_ints, file_floats)
    if kind == INT and op == instructions.REDUCE_ABS:
        file_ints[0] = abs(ints[ref])
        return 0 if file_ints[0] >= 0 else STOP
    if kind != FLOAT:
        return 0
    value = floats[ref]
    if op == instructions.REDUCE_ABS:
        file_floats[0] = abs(value)
        return 0
    if digits == 0:
        file_floats[0] = half_up(value)
        return 0
    # If the scaled value is almost halfway between two integers, leave it to Python, which rounds by decimal digits.
    # Otherwise, rounding the double gives the same result.
    tens = 10.0**digits
    scaled = abs(value) * tens
    whole = np.floor(scaled)
    if not scaled < _ROUNDED or abs(scaled - whole - 0.5) < _NEAR:
        return STOP
    if scaled - whole > 0.5:
        whole += 1.0
    file_floats[0] = math.copysign(whole / tens, value) + 0.0
    return 0

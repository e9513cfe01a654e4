"""Constants, decorators and helpers that the modules of the kernel share."""

import math
from typing import Any

import numpy as np
from numba import njit

from rebaser.dvu.wire.column import FLOAT

EXACT = 2**53  # a double represents every integer up to here exactly
SAFE = 9.0e18  # if a number as a double, perhaps rounded down, is below this, it fits in a signed 64-bit integer
STOP = -1

compiled: Any = njit(nogil=True, error_model="numpy")
inlined: Any = njit(nogil=True, error_model="numpy", forceinline=True)  # for the functions that take most of the time


@compiled
def comparable(at, kinds, ints):
    """Return whether a double represents the number at index `at` exactly."""
    return kinds[at] == FLOAT or -EXACT <= ints[at] <= EXACT


@compiled
def half_up(value):
    """Round `value` to an integer, and halves away from zero."""
    whole = np.trunc(value)
    if abs(value - whole) >= 0.5:
        whole += math.copysign(1.0, value)
    return whole + 0.0

"""Defines constants, decorators and helpers that the modules of the kernel share."""

import math
from typing import Any

import numpy as np
from numba import njit

from rebaser.dvu.wire.column import FLOAT

EXACT = 2**53  # a double represents every integer up to this limit exactly
SAFE = 9.0e18  # an integer fits in 64 bits if its value as a double, which may be rounded down, is below this
STOP = -1  # the result that makes the sweep stop, so that Python computes the node

compiled: Any = njit(nogil=True, error_model="numpy")
inlined: Any = njit(nogil=True, error_model="numpy", forceinline=True)  # for the functions in which most time is spent


@compiled
def comparable(at, kinds, ints):
    """Return whether a double represents the number at index `at` exactly."""
    return kinds[at] == FLOAT or -EXACT <= ints[at] <= EXACT


@compiled
def half_up(value):
    """Return `value` rounded to an integer. A half is rounded away from zero."""
    whole = np.trunc(value)
    if abs(value - whole) >= 0.5:
        whole += math.copysign(1.0, value)
    return whole + 0.0

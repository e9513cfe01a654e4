"""Defines the built-in functions over numbers.

Invariant: if all inputs are integers, the result is exact; if one input is a double, the result is a double. A sum of
doubles is correctly rounded, so it does not depend on the order of the additions or on the version of Python.
"""

import contextlib
import decimal
import math
from fractions import Fraction
from typing import Any

from rebaser.dvu import faults
from rebaser.dvu.functions.base import FunctionError, Params, builtin, flatten, single_input, type_name
from rebaser_core.values import INT64_MAX, Json

_NUMBERS = frozenset({int, float})
_DIGITS = 18


def _numbers(values: list[Json]) -> tuple[list[int | float], bool]:
    """Return the numbers in `values`, flattened as by `flatten`, and whether all of them are integers. Raise
    `FunctionError` if a value is not a number."""
    kinds = set(map(type, values))
    if not kinds <= _NUMBERS:
        values = flatten(values)
        kinds = set(map(type, values))
        for value in values if not kinds <= _NUMBERS else ():
            if type(value) not in _NUMBERS:
                raise FunctionError(f"{type_name(value)} is not a number")
    return values, float not in kinds  # type: ignore[return-value]


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise FunctionError("the result is not a finite number", faults.NOT_FINITE)
    return value


def _add(numbers: list[int | float], exact: bool) -> int | float:
    if exact:
        return sum(numbers)
    with contextlib.suppress(OverflowError):  # an intermediate sum may overflow, depending on the order of the numbers
        return math.fsum(numbers)
    try:
        return float(sum(map(Fraction, numbers)))
    except OverflowError:
        raise FunctionError("the result is not a finite number", faults.NOT_FINITE) from None


@builtin("sum")
def sum_(values: list[Json], _: Params) -> Json:
    """Return the sum of all inputs; 0 if there are none. A list is replaced by its items, a map by its values. Nulls
    are skipped."""
    return _add(*_numbers(values))


@builtin("product")
def product(values: list[Json], _: Params) -> Json:
    """Return the product of all inputs, flattened as in `sum`; 1 if there are none."""
    numbers, exact = _numbers(values)
    if exact:
        if 0 in numbers:
            return 0
        exact_product: int | float = 1
        for number in numbers:
            exact_product *= number
            if abs(exact_product) > INT64_MAX + 1:  # no further factor makes the product fit again
                raise FunctionError("the result does not fit in 64 bits", faults.OVERFLOW)
        return exact_product
    result = 1.0
    for number in numbers:
        result *= number
    return _finite(result)


@builtin("mean")
def mean(values: list[Json], _: Params) -> Json:
    """Return the arithmetic mean of all inputs, flattened as in `sum`, as a double; null if there are none."""
    numbers, exact = _numbers(values)
    return _add(numbers, exact) / len(numbers) if numbers else None


def _comparable(values: list[Json]) -> list[Any]:
    """Return `values`, flattened. Raise `FunctionError` unless they are all numbers or all text."""
    flat = flatten(values)
    return flat if all(type(value) is str for value in flat) else _numbers(flat)[0]


@builtin("min")
def min_(values: list[Json], _: Params) -> Json:
    """Return the smallest of all inputs, flattened as in `sum`; null if there are none. Inputs must be all numbers or
    all text."""
    return min(_comparable(values), default=None)


@builtin("max")
def max_(values: list[Json], _: Params) -> Json:
    """Return the largest of all inputs, flattened as in `sum`; null if there are none. Inputs must be all numbers or
    all text."""
    return max(_comparable(values), default=None)


@builtin("count")
def count(values: list[Json], _: Params) -> Json:
    """Return the number of inputs that are not null, flattened as in `sum`."""
    return len(flatten(values))


@builtin("abs")
def abs_(values: list[Json], _: Params) -> Json:
    """Return the absolute value of one number; null stays null."""
    numbers, _exact = _numbers([single_input(values)])
    return abs(numbers[0]) if numbers else None


@builtin("round")
def round_(values: list[Json], params: Params) -> Json:
    """Return one number, rounded to `digits` decimals (-18 to 18, default 0). A half is rounded away from zero. Null
    stays null."""
    digits = params.get("digits", 0)
    if type(digits) is not int or abs(digits) > _DIGITS:
        raise FunctionError(f"digits must be an integer from -{_DIGITS} to {_DIGITS}")
    numbers, exact = _numbers([single_input(values)])
    if not numbers or (exact and digits >= 0):
        return numbers[0] if numbers else None
    with decimal.localcontext() as context:
        context.prec = 400  # no double has more digits, so `quantize` is exact
        # `repr` gives the number as the user wrote it: 1.005 rounds to 1.01, although the double is slightly less.
        rounded = decimal.Decimal(repr(numbers[0])).quantize(
            decimal.Decimal(1).scaleb(-digits), rounding=decimal.ROUND_HALF_UP
        )
    return int(rounded) if exact else float(rounded) + 0.0  # adding 0.0 turns a negative zero into zero


ALL = (sum_, product, mean, min_, max_, count, abs_, round_)

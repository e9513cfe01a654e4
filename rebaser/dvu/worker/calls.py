"""One call of a function: what is called, and what becomes of what it gives.

Invariant: every result that leaves here can be stored; whatever else a function does is a fault.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from rebaser.dvu import faults
from rebaser.dvu.functions.base import Function, FunctionError
from rebaser.dvu.wire.packet import Template
from rebaser.dvu.worker import batching
from rebaser.dvu.worker.child_process import CallOutcome, ChildProcess
from rebaser_core.errors import UnprocessableError
from rebaser_core.values import INT64_MAX, INT64_MIN, Json, check_json

Caller: TypeAlias = Callable[[list[Json]], Json]


def make_caller(shape: Template, function: Function | None) -> Caller | tuple[str, str]:
    """What turns the input values of one definition into a result; or the fault of a function nobody has."""
    if function is None:
        return faults.unknown_function(shape.function)
    call, params = function.call, shape.params
    if call is None:
        return batching.scalar_caller(shape, function)
    if function.takes == "values":
        return lambda values: call(values, params)
    if all(count < 0 for _, count in shape.inputs):
        names = [name for name, _ in shape.inputs]
        return lambda values: call(dict(zip(names, values, strict=True)), params)
    return lambda values: call(batching.bind_inputs(shape, function, values), params)


def child_handler(callers: list[Caller | tuple[str, str]]) -> Callable[[int, list[Json]], CallOutcome]:
    """What a child does with a question: the callers as they are now, and what becomes of a result."""
    callers = [*callers]

    def settle(number: int, values: list[Json]) -> CallOutcome:
        caller: Any = callers[number]
        try:
            value = storable(caller(values))
        except Exception as error:  # noqa: BLE001 - as in the sweep
            return list(fault_of(error))
        return [value]

    return settle


def isolated_caller(apart: ChildProcess, number: int, function: str) -> Caller:
    """What asks a child for what a caller gives."""

    def ask(values: list[Json]) -> Json:
        outcome = apart.ask(number, function, values)
        if len(outcome) > 1:
            code, text = outcome
            raise FunctionError(text, code)
        return outcome[0]  # type: ignore[no-any-return] # what the child has checked

    return ask


def storable(value: Json) -> Json:
    """`value` as it can be stored; raises if it cannot."""
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise FunctionError("the result is not a finite number", faults.NOT_FINITE)
    elif kind is int:
        if not INT64_MIN <= value <= INT64_MAX:  # type: ignore[operator]
            raise FunctionError("the result does not fit in 64 bits", faults.OVERFLOW)
    elif kind is not bool:
        return check_json(value)
    return value


def fault_of(error: Exception) -> tuple[str, str]:
    if isinstance(error, FunctionError):
        return error.code, str(error)[:300]
    if isinstance(error, UnprocessableError):  # from `check_json`: what the function returned is no storable value
        if "not finite" in error.message:
            return faults.NOT_FINITE, "a number in the result is not finite"
        if "64 bits" in error.message:
            return faults.OVERFLOW, "an integer in the result does not fit in 64 bits"
        code = faults.TOO_LARGE if error.code == "too_large" else faults.FAILED
        return code, f"the result cannot be stored: {error.message}"
    return faults.FAILED, faults.text_of(error)

"""Calls functions: arranges their inputs, and checks their results.

Invariant: every result that this module returns can be stored. Any other outcome of a function becomes a fault.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from rebaser.dvu import faults
from rebaser.dvu.functions.base import Function, FunctionError
from rebaser.dvu.wire.packet import DefinitionTemplate
from rebaser.dvu.worker import batching
from rebaser.dvu.worker.child_process import CallOutcome, ChildProcess
from rebaser_core.errors import UnprocessableError
from rebaser_core.values import INT64_MAX, INT64_MIN, IntegerRangeError, Json, NotFiniteError, check_json

Caller: TypeAlias = Callable[[list[Json]], Json]


def make_caller(template: DefinitionTemplate, function: Function | None) -> Caller | tuple[str, str]:
    """Return a caller: a function that computes a value with this `template` from its input values. If `function` is
    None, return the code and message of the fault that the value gets."""
    if function is None:
        return faults.unknown_function(template.function)
    call, params = function.call, template.params
    if call is None:
        return batching.scalar_caller(template, function)
    if function.takes == "values":
        return lambda values: call(values, params)
    if all(count < 0 for _, count in template.inputs):
        names = [name for name, _ in template.inputs]
        return lambda values: call(dict(zip(names, values, strict=True)), params)
    return lambda values: call(batching.bind_inputs(template, function, values), params)


def child_handler(callers: list[Caller | tuple[str, str]]) -> Callable[[int, list[Json]], CallOutcome]:
    """Return the function that a child process runs for each call. It calls `callers[number]`, and checks the result.

    The list `callers` is copied, because the evaluator later replaces some of its items with callers that use the child
    process.
    """
    callers = [*callers]

    def handle(number: int, values: list[Json]) -> CallOutcome:
        caller: Any = callers[number]
        try:
            value = storable(caller(values))
        except Exception as error:  # noqa: BLE001 - any exception of a function becomes a fault of the value
            return list(fault_of(error))
        return [value]

    return handle


def isolated_caller(child: ChildProcess, number: int, function: str) -> Caller:
    """Return a caller that makes the process `child` run the caller with index `number`. `function` is the function's
    name, for messages of faults."""

    def call(values: list[Json]) -> Json:
        outcome = child.call(number, function, values)
        if len(outcome) > 1:
            code, text = outcome
            raise FunctionError(text, code)
        return outcome[0]  # type: ignore[no-any-return] # the child has checked it

    return call


def storable(value: Json) -> Json:
    """Return `value` in the form in which it is stored. Raise `FunctionError` or `UnprocessableError` if it cannot be
    stored."""
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
    """Return the code and the message of the fault of a value whose function raised `error`."""
    if isinstance(error, FunctionError):
        return error.code, str(error)[:300]
    if isinstance(error, NotFiniteError):
        return faults.NOT_FINITE, "a number in the result is not finite"
    if isinstance(error, IntegerRangeError):
        return faults.OVERFLOW, "an integer in the result does not fit in 64 bits"
    if isinstance(error, UnprocessableError):  # `check_json` raises it if the result is not a storable value
        code = faults.TOO_LARGE if error.code == "too_large" else faults.FAILED
        return code, f"the result cannot be stored: {error.message}"
    return faults.FAILED, faults.text_of(error)

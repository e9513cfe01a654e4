"""Wraps the functions of plug-ins, so that they can be called safely.

Invariant: if a plug-in modifies its inputs, or modifies its results later, no other value changes. Any exception that a
plug-in raises, even `SystemExit`, reaches the caller as an `Exception`.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rebaser.dvu import faults
from rebaser.dvu.functions.base import Function, FunctionError, ScalarForm
from rebaser_core.errors import UnprocessableError
from rebaser_core.values import check_json


def contained(function: Function) -> Function:
    """Return a form of `function` that passes copies of lists and maps to it, and turns any exception that it raises
    into an `Exception`."""
    call, vector = function.call, function.vector
    return replace(
        function,
        call=None if call is None else _wrap(call, _copied_result),
        vector=None if vector is None else _wrap(vector, _copied_results),
    )


def _wrap(form: ScalarForm, copy_result: Callable[[Any], Any]) -> ScalarForm:
    def once(inputs: Any, params: Any) -> Any:
        return copy_result(form(_copy(inputs), _copy(params)))

    @functools.wraps(form)
    def guarded(inputs: Any, params: Any) -> Any:
        try:
            try:
                return once(inputs, params)
            except KeyboardInterrupt:  # try again: the first interrupt may come from a signal, but not a second one
                return once(inputs, params)
        except BaseException as error:  # noqa: BLE001 - it would end the worker, and the jobs of other change sets
            raise _storable_error(error) from None

    return guarded


def _storable_error(error: BaseException) -> Exception:
    """Return `error` as an exception whose code and text can be stored."""
    if isinstance(error, UnprocessableError):  # from `check_json`
        return error
    if not isinstance(error, FunctionError):
        return FunctionError(faults.text_of(error))
    code = error.code if type(error.code) is str else faults.FAILED
    return FunctionError(faults.words_of(error), code)


def _copy(given: Any) -> Any:
    """Return `given` with its lists and maps copied. Arrays need no copy, because each call gets new ones."""
    kind = type(given)
    if kind is list:
        return [_copy(item) for item in given]
    if kind is dict:
        return {key: _copy(item) for key, item in given.items()}
    return tuple([_copy(item) for item in given]) if kind is tuple else given


def _copied_result(result: Any) -> Any:
    """Return a copy of `result`, so that the plug-in cannot change it later. Raise `UnprocessableError` if a list or
    map cannot be stored."""
    return _plain(check_json(result)) if isinstance(result, (list, dict)) else result


def _plain(value: Any) -> Any:
    """Return `value` with instances of subclasses of list and dict replaced by plain lists and dicts."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _copied_results(results: Any) -> Any:
    """Return copies of the results of a vector form. A result that cannot be stored is replaced by an exception."""
    results = results.to_pylist() if hasattr(results, "to_pylist") else results
    return [_result_or_error(result) for result in results] if isinstance(results, (list, tuple)) else results


def _result_or_error(result: Any) -> Any:
    if isinstance(result, BaseException):
        return _storable_error(result)
    try:
        return _copied_result(result)
    except UnprocessableError as error:  # returned, so that only this value fails
        return error

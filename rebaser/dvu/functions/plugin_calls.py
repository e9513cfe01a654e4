"""Functions of plug-ins, as they may be called.

Invariant: whatever a plug-in does with what it is given, or later with what it gave, no other value changes; and what
it raises is an `Exception`.
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
    """`function` with lists and maps of its own, and no way out but a result or an `Exception`."""
    call, vector = function.call, function.vector
    return replace(
        function,
        call=None if call is None else _contained(call, _kept),
        vector=None if vector is None else _contained(vector, _all_kept),
    )


def _contained(call: ScalarForm, keep: Callable[[Any], Any]) -> ScalarForm:
    def once(inputs: Any, params: Any) -> Any:
        return keep(call(_copy(inputs), _copy(params)))

    @functools.wraps(call)
    def guarded(inputs: Any, params: Any) -> Any:
        try:
            try:
                return once(inputs, params)
            except KeyboardInterrupt:  # from outside, maybe: what is raised twice is raised by the function
                return once(inputs, params)
        except BaseException as error:  # noqa: BLE001 - it would end the worker, and with it what others wait for
            raise _told(error) from None

    return guarded


def _told(error: BaseException) -> Exception:
    """`error` as an exception whose code and text can be stored."""
    if isinstance(error, UnprocessableError):  # of `check_json`
        return error
    if not isinstance(error, FunctionError):
        return FunctionError(faults.text_of(error))
    code = error.code if type(error.code) is str else faults.FAILED
    return FunctionError(faults.words_of(error), code)


def _copy(given: Any) -> Any:
    """`given` with containers of its own. Arrays are made for each call anyway."""
    kind = type(given)
    if kind is list:
        return [_copy(one) for one in given]
    if kind is dict:
        return {key: _copy(one) for key, one in given.items()}
    return tuple([_copy(one) for one in given]) if kind is tuple else given


def _kept(result: Any) -> Any:
    """A result that stays as it is. Raises `UnprocessableError` for a list or map that cannot be stored."""
    return _plain(check_json(result)) if isinstance(result, (list, dict)) else result


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def _all_kept(results: Any) -> Any:
    """The same for the results of many values."""
    results = results.to_pylist() if hasattr(results, "to_pylist") else results
    return [_one_kept(one) for one in results] if isinstance(results, (list, tuple)) else results


def _one_kept(result: Any) -> Any:
    if isinstance(result, BaseException):
        return _told(result)
    try:
        return _kept(result)
    except UnprocessableError as error:  # of this value, and of no other
        return error

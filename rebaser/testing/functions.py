"""Takes functions from tests, in the forms in which plug-ins export them."""

import inspect
from typing import Any

from rebaser.dvu.functions.base import Function, ScalarForm


def as_function(given: Function | ScalarForm) -> Function:
    """Return `given`, or a function with the name and the docstring of the callable `given`.

    Raise `TypeError` if `given` is not callable, and `ValueError` if it has no name, such as a lambda.
    """
    if isinstance(given, Function):
        return given
    if not callable(given):
        raise TypeError(f"{given!r:.80} is neither a Function nor callable: pass one of these")
    name: Any = getattr(given, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{given!r:.80} has no name: pass Function(name=..., call=...)")
    return Function(name=name, call=given, doc=inspect.getdoc(given) or "")

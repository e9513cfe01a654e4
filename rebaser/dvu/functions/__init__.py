"""Defines the functions that compute derived values: the interface of functions, the built-in functions, and the
functions of plug-ins.

A plug-in declares its functions under the entry point group `rebaser.functions`, and imports `Function` and
`FunctionError` from here. The owner reads the registry of functions when it plans an update and when it lists the
available functions; workers and compiled code call the functions. This package imports `rebaser.dvu.cel`,
`rebaser.dvu.faults`, `rebaser.dvu.fingerprint` and `rebaser_core`.
"""

from rebaser.dvu.functions.base import Function, FunctionError
from rebaser.dvu.functions.registry import FunctionRegistry, builtins, registry

__all__ = ["Function", "FunctionError", "FunctionRegistry", "builtins", "registry"]

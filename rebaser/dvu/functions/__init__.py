"""The functions that derive values: what one is, the built-in ones, and plug-ins (entry point group
`rebaser.functions`)."""

from rebaser.dvu.functions.base import Function, FunctionError
from rebaser.dvu.functions.registry import FunctionRegistry, builtins, registry

__all__ = ["Function", "FunctionError", "FunctionRegistry", "builtins", "registry"]

"""Collects all functions by name: the built-in functions, the functions of installed plug-ins, and those that a test
adds.

Invariant: a plug-in can neither replace a built-in function nor stop the server. If a plug-in cannot be loaded, a
warning is logged, and its function is not available.
"""

import importlib.metadata
import inspect
import itertools
import sys
import threading
from collections.abc import Container, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from rebaser.dvu import fingerprint
from rebaser.dvu.functions import collections, formula, numbers, text
from rebaser.dvu.functions.base import Function
from rebaser.dvu.functions.plugin_calls import contained

ENTRY_POINT_GROUP = "rebaser.functions"


@dataclass(frozen=True)
class FunctionRegistry:
    """The functions that a process has, by name. `broken` maps the name of each plug-in that could not be loaded to the
    reason."""

    functions: Mapping[str, Function]
    broken: Mapping[str, str]

    def fingerprints(self, names: Iterable[str]) -> dict[str, str | None]:
        """Return the fingerprint of each function in `names`: empty for a built-in function, None for a function that
        is not installed."""
        functions = {name: self.functions.get(name) for name in names}
        return {name: function.fingerprint if function else None for name, function in functions.items()}


def builtins() -> dict[str, Function]:
    """Return the functions that come with Rebaser, by name."""
    return {function.name: function for function in (*numbers.ALL, *text.ALL, *collections.ALL, *formula.ALL)}


def registry() -> FunctionRegistry:
    """Return the functions of this process. The first call loads the plug-ins."""
    return installed() if _extended is None else _extended


@cache
def installed() -> FunctionRegistry:
    """Return the built-in functions and the functions of plug-ins. The first call loads the plug-ins."""
    return load(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


_extended: FunctionRegistry | None = None  # `installed()` and `_added`; None if `_added` is empty
_added: list[tuple[Function, Function]] = []  # the functions that are added: as they were given, and as they are called
_adding = threading.Lock()
_numbers = itertools.count(1)


@contextmanager
def added(functions: Iterable[Function]) -> Generator[None, None, None]:
    """Add `functions` to those of this process until the `with` block ends. Workers of Spark do not have them.

    Raise `ValueError` if there is another function with the same name. The same function may be added repeatedly.
    """
    global _added  # noqa: PLW0603 - other threads read the functions of the process
    pairs: list[tuple[Function, Function]] = []
    with _adding:
        taken = {**dict.fromkeys(installed().functions), **{given.name: given for given, _ in _added}}
        for function in functions:
            if taken.setdefault(function.name, function) != function:
                raise ValueError(f"there is already a function {function.name!r}: use another name")
            # Never the fingerprint of a function that was added before, so that no packet mixes up the two.
            fingerprint_ = f"added {next(_numbers)}"
            pairs.append((function, replace(contained(function), fingerprint=fingerprint_)))
        _added = [*_added, *pairs]
        _extend()
    try:
        yield
    finally:
        with _adding:
            _added = [pair for pair in _added if not any(pair is mine for mine in pairs)]
            _extend()


def _extend() -> None:
    global _extended  # noqa: PLW0603 - as above
    known = installed()
    functions = dict(known.functions) | {function.name: function for _, function in reversed(_added)}
    _extended = FunctionRegistry(MappingProxyType(functions), known.broken) if _added else None


def plugins() -> list[importlib.metadata.EntryPoint]:
    """Return the entry points of the plug-ins that this process has loaded."""
    broken = installed().broken
    return [entry for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP) if entry.name not in broken]


@cache
def identity() -> str:
    """Return the fingerprint of all code that computes values in this process, plug-ins included."""
    functions = installed().functions
    lines = (f"{name} {functions[name].fingerprint}".encode() for name in sorted(functions))
    return fingerprint.digest(fingerprint.code().encode(), *lines)


def load(entries: Iterable[importlib.metadata.EntryPoint]) -> FunctionRegistry:
    """Return the built-in functions and the functions of the entry points `entries`. An entry point refers to a
    `Function`, or to a callable `(inputs, params)`, which becomes a function with the entry point's name."""
    functions = builtins()
    broken: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: (entry.name, entry.value)):
        try:
            function = _load_one(entry, functions)
            functions[function.name] = function
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may fail in any way
            broken[entry.name] = f"{type(error).__name__}: {error}"[:300]
            import structlog  # noqa: PLC0415 - slow to import, and rarely needed by workers, which import this module

            log = structlog.get_logger(__name__)
            log.warning("plugin_not_loaded", plugin=entry.name, value=entry.value, reason=broken[entry.name])
    return FunctionRegistry(MappingProxyType(functions), MappingProxyType(broken))


def _load_one(entry: importlib.metadata.EntryPoint, taken: Container[str]) -> Function:
    loaded = entry.load()
    if not isinstance(loaded, Function):
        if not callable(loaded):
            raise TypeError(f"{entry.value} is neither a Function nor callable: export one of these")
        loaded = Function(name=entry.name, call=loaded, doc=inspect.getdoc(loaded) or "")
    if loaded.name in taken:
        raise ValueError(f"there is already a function {loaded.name!r}: use another name")
    return replace(contained(loaded), fingerprint=_fingerprint(entry, loaded))


def _fingerprint(entry: importlib.metadata.EntryPoint, function: Function) -> str:
    """Return a hash of the entry point, the version of its distribution, and the source files of the entry point and
    the function. So the hash also changes when a source file is edited without a new version."""
    version = f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""
    names = [entry.module, *(getattr(form, "__module__", None) for form in (function.call, function.vector) if form)]
    files = [getattr(sys.modules.get(name or ""), "__file__", None) for name in dict.fromkeys(names)]
    sources = [Path(file).read_bytes() for file in files if file]
    return fingerprint.digest(entry.value.encode(), version.encode(), *sources)

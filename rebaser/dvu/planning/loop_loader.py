"""Chooses between interpreted and compiled loops for planning.

Loading compiled loops takes a second, and longer if they have never been compiled on this machine. For small graphs,
the Python interpreter therefore runs the same functions.

Invariant: both forms of a loop give the same result.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from rebaser.dvu.planning import loops, packing_loops
from rebaser_core import thresholds


@dataclass(slots=True)
class _Deferral:
    """Records whether `load` is deferred in this process (`active`), and whether interpreted loops were used for that
    reason (`missed`)."""

    active: bool = False
    missed: bool = False


_deferral: Final = _Deferral()


def loops_for(size: int, interpreted_max: int) -> Any:
    """Return the functions of `loops` and `packing_loops`: compiled if `size` is above `interpreted_max`, otherwise
    interpreted. `size` is the approximate number of positions and edges that the functions will visit."""
    if size <= interpreted_max:
        return _interpreted()
    if _deferral.active and size <= thresholds.now.interpreted_max_during_start:
        _deferral.missed = True
        return _interpreted()
    return load()


@cache
def load() -> Any:
    """Return the compiled loops. The first call loads them."""
    from rebaser.dvu.compiled import loader  # noqa: PLC0415 - small graphs do not need it

    modules = map(loader.compile_module, (loops, packing_loops))
    return SimpleNamespace(**{name: function for module in modules for name, function in vars(module).items()})


@contextmanager
def deferred_loading() -> Iterator[Callable[[], bool]]:
    """Enter a context in which the compiled loops are loaded only for graphs above `interpreted_max_during_start`.

    Yield a function that returns whether interpreted loops were used because of this context.
    """
    _deferral.active, _deferral.missed = True, False
    try:
        yield lambda: _deferral.missed
    finally:
        _deferral.active = False


@cache
def _interpreted() -> Any:
    functions = {name: function for name, function in (vars(loops) | vars(packing_loops)).items() if callable(function)}
    return SimpleNamespace(**{name: _on_memoryviews(function) for name, function in functions.items()})


def _on_memoryviews(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `function` with a memoryview in place of each array, because Python reads the items
    of a memoryview several times as fast."""
    return lambda *args: function(*map(_view, args))


def _view(arg: Any) -> Any:
    if isinstance(arg, np.ndarray):
        return memoryview(arg)  # type: ignore[arg-type] # an array is a buffer
    return tuple(map(_view, arg)) if type(arg) is tuple else arg

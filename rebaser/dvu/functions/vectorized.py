"""Functions of many values at once: what they are given, and what they may give.

Invariant: whether values are computed together or one by one never shows. So what a vector form gives is taken only if
it is as many storable values (or exceptions) as were asked for; else each value is asked for by itself.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rebaser_core.values import Json

# One input of many values: an array of doubles, integers or booleans where they all are, else a list of JSON values.
InputColumn: TypeAlias = NDArray[Any] | list[Json]
VectorForm: TypeAlias = Callable[[Any, Mapping[str, Json]], Any]

_ARRAYS: dict[type, type] = {float: np.float64, int: np.int64, bool: np.bool_}


class WrongResultCount(Exception):  # noqa: N818 - the text is what a user reads
    """What a vector form gave is not one result for each value."""


def to_column(values: list[Json]) -> InputColumn:
    """Values as a vector form takes them."""
    kinds = set(map(type, values))
    kind = _ARRAYS.get(kinds.pop()) if len(kinds) == 1 else None
    return values if kind is None else np.array(values, kind)


def checked_results(given: Any, count: int) -> NDArray[Any] | list[Any]:
    """What a vector form gave for `count` values: doubles, integers or booleans in an array, or a list of anything.

    Raises `WrongResultCount` where that is no array, list, tuple or Arrow array of this length.
    """
    if isinstance(given, np.ndarray):
        if given.shape == (count,):
            kind = given.dtype.kind
            if kind == "f" and given.dtype.itemsize <= 8:
                return given.astype(np.float64, copy=False)
            if kind == "i":
                return given.astype(np.int64, copy=False)
            found: NDArray[Any] | list[Any] = given if kind == "b" else given.tolist()
            return found
        raise WrongResultCount(f"gave an array of shape {given.shape} for {count} values")
    given = given.to_pylist() if hasattr(given, "to_pylist") else given
    if not isinstance(given, (list, tuple)):
        raise WrongResultCount(f"gave {type(given).__name__}, not a list or an array")
    if len(given) != count:
        raise WrongResultCount(f"gave {len(given)} results for {count} values")
    return list(given)


def to_list(one: InputColumn) -> list[Any]:
    """A column as a list of JSON values."""
    if isinstance(one, list):
        return one
    values: list[Any] = one.tolist()
    return values

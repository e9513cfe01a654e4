"""Builds the arguments of a function's vector form, and checks its results.

Invariant: a result does not depend on whether values were computed together or one by one. The results of a vector form
are therefore accepted only if there is one storable result (or exception) for each value. Otherwise, the values are
computed one by one.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rebaser_core.values import Json

# One input of many values: an array if all items are doubles, all are integers or all are booleans, otherwise a list.
InputColumn: TypeAlias = NDArray[Any] | list[Json]
VectorForm: TypeAlias = Callable[[Any, Mapping[str, Json]], Any]

_ARRAYS: dict[type, type] = {float: np.float64, int: np.int64, bool: np.bool_}


class WrongResultCount(Exception):  # noqa: N818 - users read this name
    """Raised if a vector form did not return one result for each value."""


def to_column(values: list[Json]) -> InputColumn:
    """Return `values` as the input of a vector form: an array if they are all doubles, all integers or all booleans."""
    types = set(map(type, values))
    dtype = _ARRAYS.get(types.pop()) if len(types) == 1 else None
    return values if dtype is None else np.array(values, dtype)


def checked_results(returned: Any, count: int) -> NDArray[Any] | list[Any]:
    """Return the results of a vector form for `count` values: an array of doubles, integers or booleans, or a list.

    Raise `WrongResultCount` unless `returned` is an array, list, tuple or Arrow array of length `count`.
    """
    if isinstance(returned, np.ndarray):
        if returned.shape == (count,):
            kind = returned.dtype.kind
            if kind == "f" and returned.dtype.itemsize <= 8:
                return returned.astype(np.float64, copy=False)
            if kind == "i":
                return returned.astype(np.int64, copy=False)
            results: NDArray[Any] | list[Any] = returned if kind == "b" else returned.tolist()
            return results
        raise WrongResultCount(f"the function returned an array of shape {returned.shape}, expected ({count},)")
    returned = returned.to_pylist() if hasattr(returned, "to_pylist") else returned
    if not isinstance(returned, (list, tuple)):
        raise WrongResultCount(f"the function returned {type(returned).__name__}, expected a list or an array")
    if len(returned) != count:
        raise WrongResultCount(f"the function returned {len(returned)} results, expected {count}")
    return list(returned)


def to_list(column: InputColumn) -> list[Any]:
    """Return `column` as a list of JSON values."""
    if isinstance(column, list):
        return column
    values: list[Any] = column.tolist()
    return values

"""Defines the built-in functions over lists and maps, and the built-in functions that choose between values.

Invariant: the order of every result follows from the order of the inputs in the definition or from sorted keys, never
from the order in which a map was built.
"""

from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any

import numpy as np

from rebaser.dvu import faults
from rebaser.dvu.functions.base import FunctionError, Inputs, Params, builtin, single_input, type_name
from rebaser.dvu.functions.vectorized import InputColumn, to_list
from rebaser_core.definitions import BY_ID, NO_PATTERN
from rebaser_core.values import Json, canonical


def _if(inputs: Mapping[str, Any], params: Params) -> list[Json]:
    def branch(name: str) -> Iterable[Json]:
        column: Any = inputs.get(name)
        if isinstance(column, tuple):
            return map(list, zip(*map(to_list, column), strict=True))
        return to_list(column) if name in inputs else repeat(params.get(name))

    conditions = to_list(inputs["condition"])
    if not set(map(type, conditions)) <= {bool, type(None)}:
        raise FunctionError("a condition must be true, false or null")
    chosen = zip(conditions, branch("then"), branch("else"), strict=False)  # not strict, because `repeat` never ends
    return [then if condition else otherwise for condition, then, otherwise in chosen]


@builtin("if", "names", vector=_if, text=True)
def if_(inputs: Inputs, params: Params) -> Json:
    """Return `then` if the input `condition` is true, and `else` if it is false or null.

    `then` and `else` are inputs or params. If one of them is missing, it counts as null.
    """
    condition = inputs.get("condition")
    if condition is not None and not isinstance(condition, bool):
        raise FunctionError(f"condition is {type_name(condition)}; it must be true, false or null")
    name = "then" if condition else "else"
    return inputs[name] if name in inputs else params.get(name)


def _coalesce(columns: list[InputColumn], params: Params) -> list[Json]:
    results = to_list(columns[-1])
    if None in results:
        results = [params.get("default") if value is None else value for value in results]
    for column in reversed(columns[:-1]):
        results = [later if value is None else value for value, later in zip(to_list(column), results, strict=True)]
    return results


@builtin("coalesce", vector=_coalesce, text=True)
def coalesce(values: list[Json], params: Params) -> Json:
    """Return the first input that is not null; if all are null, the param `default`."""
    return next((value for value in values if value is not None), params.get("default"))


@builtin("object", "names")
def object_(inputs: Inputs, params: Params) -> Json:
    """Return a map of all params and inputs by name. An input takes precedence over a param of the same name."""
    return {**params, **inputs}


@builtin(BY_ID, "names")
def by_id(_: Inputs, __: Params) -> Json:
    """Return a map of all inputs by their ids. At least one input must be a pattern, which stands for all values that
    it matches."""
    raise FunctionError(NO_PATTERN)  # called only without a pattern; with one, `planning.patterns` calls `object`


@builtin("list")
def list_(values: list[Json], _: Params) -> Json:
    """Return a list of all inputs in the order of the definition, nulls included."""
    return values


@builtin("lookup", "names")
def lookup(inputs: Inputs, params: Params) -> Json:
    """Return the item at `key` of the input `in`, which is a map or a list. `key` is an input or a param.

    The first item of a list is at 0. If there is no such item, return the param `default`. If that param is missing
    too, the function fails.
    """
    container = inputs.get("in")
    key = inputs["key"] if "key" in inputs else params.get("key")
    if isinstance(container, dict) and isinstance(key, str):
        if key in container:
            return container[key]
    elif isinstance(container, list) and isinstance(key, int) and not isinstance(key, bool):
        if 0 <= key < len(container):
            return container[key]
    elif container is not None and key is not None:
        raise FunctionError(f"cannot look up {type_name(key)} in {type_name(container)}")
    if "default" in params:
        return params["default"]
    raise FunctionError(f"there is no item at {faults.quote(str(key))}, and no param default")


@builtin("merge")
def merge(values: list[Json], _: Params) -> Json:
    """Return all inputs, which must be maps, merged into one map. A later input takes precedence over an earlier one.
    Nulls are skipped."""
    result: dict[str, Json] = {}
    for value in values:
        if isinstance(value, dict):
            result.update(value)
        elif value is not None:
            raise FunctionError(f"{type_name(value)} is not a map")
    return result


@builtin("union")
def union(values: list[Json], _: Params) -> Json:
    """Return a list that contains each distinct value once, in order of first appearance. Lists are replaced by their
    items. Nulls are skipped."""
    result: dict[object, Json] = {}
    for value in values:
        for item in value if isinstance(value, list) else (value,):
            if item is not None:
                result.setdefault(item if isinstance(item, str) else canonical(item), item)
    return list(result.values())


@builtin("keys")
def keys(values: list[Json], _: Params) -> Json:
    """Return the sorted keys of one map; null stays null."""
    value = single_input(values)
    return sorted(_map(value)) if value is not None else None  # type: ignore[return-value]


@builtin("values")
def values_(values: list[Json], _: Params) -> Json:
    """Return the values of one map, in the order of its sorted keys; null stays null."""
    value = single_input(values)
    return [item for _key, item in sorted(_map(value).items())] if value is not None else None


def _length(columns: list[InputColumn], _: Params) -> Any:
    values = to_list(single_input(columns))  # type: ignore[arg-type]
    kinds = set(map(type, values))
    if kinds <= {str, list, dict}:
        return np.array(list(map(len, values)), np.int64)
    if not kinds <= {str, list, dict, type(None)}:
        raise FunctionError("a value is neither text, a list, a map nor null, so it has no length")
    return [None if value is None else len(value) for value in values]


@builtin("length", vector=_length)
def length(values: list[Json], _: Params) -> Json:
    """Return the number of characters of a text, of items of a list, or of entries of a map; null stays null."""
    value = single_input(values)
    if value is None:
        return None
    if not isinstance(value, (str, list, dict)):
        raise FunctionError(f"{type_name(value)} has no length")
    return len(value)


def _map(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise FunctionError(f"{type_name(value)} is not a map")
    return value


ALL = (if_, coalesce, object_, by_id, list_, lookup, merge, union, keys, values_, length)

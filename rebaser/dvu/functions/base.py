"""Defines the interface of functions.

Invariant: a function is pure: the same inputs and params give the same result, on any machine and in any order of
calls. Built-in functions never modify their inputs, because other values share them. Plug-ins get copies
(`plugin_calls`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rebaser.dvu import faults
from rebaser.dvu.functions.vectorized import VectorForm
from rebaser_core.definitions import BUILTINS
from rebaser_core.values import Json

Inputs: TypeAlias = Mapping[str, Json]  # inputs by name; an input that is defined as a list of ids is a list of values
Params: TypeAlias = Mapping[str, Json]
ScalarForm: TypeAlias = Callable[[Any, Params], Any]


class FunctionError(Exception):
    """Raised by a function that cannot compute a result. The value gets a fault with this code and message. The message
    must not contain machine names or times, because they differ in each run."""

    def __init__(self, message: str, code: str = faults.FAILED) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Function:
    """A named function over JSON values.

    `call(inputs, params)` computes one value. With `takes="names"`, it gets its inputs by name. With `takes="values"`,
    it gets all input values as one list in the order of the definition, with lists of ids flattened. An unset input is
    None. It returns a JSON value. If it raises an exception, the derived value is in error, with the code and message
    of a `FunctionError`, or with the code `failed`.

    `vector(inputs, params)` is optional. It computes many values of one definition (same function, params and names of
    inputs) in one call, if there are enough such values. Its `inputs` have the same form as those of `call`, but each
    input is a column with one item for each value to compute: a NumPy array if all items are doubles, all are integers
    or all are booleans, otherwise a list. With `takes="names"`, an input that is a list of ids is a tuple of columns.
    `vector` returns one result for each value, in order, as an array (NumPy's or Arrow's) or a list. An exception in
    the list makes its value fail. If `vector` raises an exception, or returns anything else, Rebaser computes the
    values one by one: with `call` or, if there is no `call`, with columns of one item. Rebaser decides how many values
    are computed in one call. A result must therefore not depend on the other values in that call, and `call` must give
    exactly the same results. For example, a plug-in may define

        def _discounted(inputs, params):
            return np.asarray(inputs["price"], np.float64) * (1 - params["discount"])

        discounted = Function(name="discounted", vector=_discounted, doc="The price less a discount.")

    `inputs` and `params` list the names that the function accepts; None means any names. `text` declares that the
    function returns text if an input is text; this only saves time. `doc` is shown to users. `fingerprint` identifies
    the code of a plug-in, and is empty for a built-in function.

    The constructor raises `TypeError` if neither `call` nor `vector` is given.
    """

    name: str
    call: ScalarForm | None = None
    doc: str = ""
    takes: Literal["names", "values"] = "names"
    fingerprint: str = ""
    vector: VectorForm | None = None
    text: bool = False
    inputs: tuple[str, ...] | None = None
    params: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.call is None and self.vector is None:
            raise TypeError(f"function {self.name!r} has neither call nor vector: define at least one of them")


def builtin(
    name: str,
    takes: Literal["names", "values"] = "values",
    vector: VectorForm | None = None,
    *,
    text: bool = False,
) -> Callable[[ScalarForm], Function]:
    """Return a decorator that turns a Python function into a built-in function. The docstring of the Python function is
    shown to users.

    The names of inputs and params come from `rebaser_core.definitions`, because clients also need them to check
    definitions.
    """
    signature = BUILTINS[name]

    def wrap(call: ScalarForm) -> Function:
        doc = inspect.getdoc(call) or ""
        return Function(
            name=name,
            call=call,
            doc=doc,
            takes=takes,
            vector=vector,
            text=text,
            inputs=signature.inputs,
            params=signature.params,
        )

    return wrap


def flatten(values: Sequence[Json]) -> list[Json]:
    """Return `values` without nulls, flattened by one level: a list is replaced by its items, a map by its values."""
    flat: list[Json] = []
    for value in values:
        if type(value) is list:
            flat.extend(value)
        elif type(value) is dict:
            flat.extend(value.values())
        else:
            flat.append(value)
    return [value for value in flat if value is not None]


def single_input(values: Sequence[Json]) -> Json:
    """Return the only item of `values`. Raise `FunctionError` if there are none or several."""
    if len(values) != 1:
        raise FunctionError(f"the function takes one input, not {len(values)}")
    return values[0]


def type_name(value: Json) -> str:
    """Return the type of `value` in the form in which messages show it to users, for instance `a number`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "a map"

"""Defines the interface of functions.

Invariant: a function is pure: the same inputs and params give the same result, on any machine and in any order of
calls. Built-in functions never modify their inputs, which other values share. Plug-ins get copies (`plugin_calls`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rebaser.dvu import faults
from rebaser.dvu.functions.vectorized import VectorForm
from rebaser_core.definitions import BUILTINS
from rebaser_core.values import Json

Inputs: TypeAlias = Mapping[str, Json]  # an input declared as a list of ids is a list of values
Params: TypeAlias = Mapping[str, Json]
ScalarForm: TypeAlias = Callable[[Any, Params], Any]


class FunctionError(Exception):
    """A function has no result. Its message becomes the message of the fault, so it must not name machines or times."""

    def __init__(self, message: str, code: str = faults.FAILED) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Function:
    """A named function over JSON values.

    `call(inputs, params)` gets its inputs by name (`takes="names"`), or all input values as one list in declared order,
    with lists of ids flattened (`takes="values"`). An unset input is None. It returns a JSON value. If it raises, the
    derived value is in error: `failed`, or the code and text of a `FunctionError`.

    `vector(inputs, params)`, if given, computes many values of one definition (same function, params and names of
    inputs) in one call, if there are enough such values. It gets `inputs` as `call` does, but each value is a column
    with one item for each value to compute: a NumPy array if all items are doubles, all integers or all booleans,
    otherwise a list. With `takes="names"`, an input that is a list of ids is a tuple of columns. It returns one result
    for each value, in order: an array (NumPy's or Arrow's), or a list, in which an exception makes its value fail. If
    it raises, or returns anything else, Rebaser computes the values one by one: with `call`, or with columns of one
    item if there is no `call`. The number of values in a call is not guaranteed, so a result must not depend on the
    other values of the call, and `call` must give exactly the same results. For example, a plug-in may define

        def _discounted(inputs, params):
            return np.asarray(inputs["price"], np.float64) * (1 - params["discount"])

        discounted = Function(name="discounted", vector=_discounted, doc="The price less a discount.")

    `inputs` and `params` list the names that the function knows; None means that it takes any. `text` declares that the
    function returns text if an input is text; this only saves time. `doc` is shown to users. `fingerprint` identifies
    the code of a plug-in, and is empty for a built-in function.

    Raises `TypeError` if neither form is given.
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
            raise TypeError(f"function {self.name!r} has neither call nor vector")


def builtin(
    name: str,
    takes: Literal["names", "values"] = "values",
    vector: VectorForm | None = None,
    *,
    text: bool = False,
) -> Callable[[ScalarForm], Function]:
    """Make the decorated function a built-in function. Users see the docstring of the decorated function as
    documentation.

    The names of inputs and params are in `rebaser_core.definitions`, where clients that send definitions also find
    them.
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
    """Flatten `values` by one level: lists become their items, maps their values. Nulls are left out, as in SQL."""
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
    """Return the input of a function that takes exactly one. Raises `FunctionError` if there are more or none."""
    if len(values) != 1:
        raise FunctionError(f"the function takes one input, not {len(values)}")
    return values[0]


def type_name(value: Json) -> str:
    """Return the type of `value` in the words of a user, with an article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "a map"

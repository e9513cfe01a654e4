"""What a function is.

Invariant: a function is pure (same inputs and params, same result, on any machine and in any order of calls). Built-in
ones never change what they are given, which the values that depend on it share; others get copies (`foreign`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rebaser.dvu import faults
from rebaser.dvu.functions.vectorized import VectorForm
from rebaser_core.definitions import BUILTINS
from rebaser_core.values import Json

Inputs: TypeAlias = Mapping[str, Json]  # an input that is declared as a list of ids comes as a list of values
Params: TypeAlias = Mapping[str, Json]
ScalarForm: TypeAlias = Callable[[Any, Params], Any]


class FunctionError(Exception):
    """A function cannot give a value; the message becomes the fault's, so it must not name machines or times."""

    def __init__(self, message: str, code: str = faults.FAILED) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Function:
    """A named function over JSON values.

    `call(inputs, params)` gets `inputs` by name (`takes="names"`), or all input values as one list in declared order,
    lists of ids spread out (`takes="values"`). An unset input is None. It returns a JSON value; whatever it raises
    makes the derived value a `failed` one, with the code and text of a `FunctionError`.

    `vector(inputs, params)`, if given, computes many values of one definition (same function, params and names of
    inputs) at once, where so many can be. It gets `inputs` as `call` does, but where `call` gets a value it gets a
    column: one item for each value to compute, as a NumPy array of doubles, integers or booleans if all are that, else
    a list; and by name, for a list of ids, a tuple of columns. It returns as many results in order: an array (NumPy's
    or Arrow's), or a list in which an exception is the error of that value.
    Whatever else it does (raise, return too few) makes Rebaser ask for each value by itself: with `call`, or with
    columns of one item if there is no `call`. How many come together is nobody's promise, so a result must not depend
    on its neighbours, and `call` has to give the very same. So a plug-in may say

        def _discounted(inputs, params):
            return np.asarray(inputs["price"], np.float64) * (1 - params["discount"])

        discounted = Function(name="discounted", vector=_discounted, doc="The price less a discount.")

    `inputs` and `params` name all that it knows, None where any will do.

    `text` says that it gives text where text comes in, which only saves time. `doc` is what a user reads; `fingerprint`
    names the code of a plug-in, empty for a built-in. Raises `TypeError` if
    there is neither form.
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
    """Make a function of this package, its docstring being its documentation.

    What it takes stands in `rebaser_core.definitions`, where those who send definitions find it as well.
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
    """Values one level deep: a list counts as its items, a map as its values; null is left out, as SQL does."""
    out: list[Json] = []
    for value in values:
        if type(value) is list:
            out.extend(value)
        elif type(value) is dict:
            out.extend(value.values())
        else:
            out.append(value)
    return [value for value in out if value is not None]


def single_input(values: Sequence[Json]) -> Json:
    """The one input of a function that takes one."""
    if len(values) != 1:
        raise FunctionError(f"takes one input, not {len(values)}")
    return values[0]


def type_name(value: Json) -> str:
    """What a user calls the type of `value`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "a map"

"""What a function is.

Invariant: a function is pure (same inputs and params, same result, on any machine and in any order of calls) and never
changes what it is given: inputs are shared between the values that depend on them.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rebaser.dvu import faults
from rebaser_core.values import Json

Inputs: TypeAlias = Mapping[str, Json]  # an input that is declared as a list of ids comes as a list of values
Params: TypeAlias = Mapping[str, Json]
Call: TypeAlias = Callable[[Any, Params], Any]


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
    `doc` is what a user reads; `fingerprint` names the code of a plug-in, empty for a built-in.
    """

    name: str
    call: Call
    doc: str = ""
    takes: Literal["names", "values"] = "names"
    fingerprint: str = ""


def builtin(name: str, takes: Literal["names", "values"] = "values") -> Callable[[Call], Function]:
    """Make a function of this package, its docstring being its documentation."""

    def wrap(call: Call) -> Function:
        return Function(name=name, call=call, doc=inspect.getdoc(call) or "", takes=takes)

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


def only(values: Sequence[Json]) -> Json:
    """The one input of a function that takes one."""
    if len(values) != 1:
        raise FunctionError(f"takes one input, not {len(values)}")
    return values[0]


def kind(value: Json) -> str:
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

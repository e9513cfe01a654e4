"""Lists the inputs and parameters of the built-in functions, and checks definitions against the list.

Invariant: only requests are checked, by the client that sends them and by the server that decides them. Definitions in
a log are not checked, because an older release may have accepted them without a check. A function that is not listed
may be a plug-in, so its inputs and parameters are not checked.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

from rebaser_core.cel import INVALID_FORMULA
from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Derive, Update

AllowedNames = tuple[str, ...] | None  # None allows any name
INVALID: Final = "invalid_definition"  # the code of the errors that this module raises


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """The input names and parameter names that a function accepts, and whether one of its inputs must be a pattern."""

    inputs: AllowedNames = None
    params: AllowedNames = ()
    pattern: bool = False


BY_ID: Final = "by_id"  # the planner replaces this function with `object`, which gets the ids as its input names
NO_PATTERN: Final = "needs a pattern among its inputs; for ids alone, use object"
_OF_VALUES = "abs concat count keys length list max mean merge min product sum union values"

BUILTINS: Final[Mapping[str, FunctionSignature]] = MappingProxyType(
    {
        **dict.fromkeys(_OF_VALUES.split(), FunctionSignature()),
        BY_ID: FunctionSignature(pattern=True),
        "cel": FunctionSignature(params=("expr",)),
        "coalesce": FunctionSignature(params=("default",)),
        "format": FunctionSignature(params=("template",)),
        "if": FunctionSignature(("condition", "then", "else"), ("then", "else")),
        "join": FunctionSignature(params=("separator",)),
        "lookup": FunctionSignature(("in", "key"), ("key", "default")),
        "object": FunctionSignature(params=None),
        "round": FunctionSignature(params=("digits",)),
    }
)


def is_formula(update: Update) -> bool:
    """Return whether `update` defines a value by a formula of the Common Expression Language (CEL)."""
    return type(update) is Derive and update.function == "cel"


def check_definition(update: Update, *, formulas: bool = False) -> None:
    """Raise `UnprocessableError`, with the id in its message, if `update` contains an invalid definition.

    Formulas are checked only if `formulas` is true and the CEL library is installed.
    """
    if type(update) is Derive:
        _check(update, "", formulas)


def check_definitions(updates: Iterable[Update], *, formulas: bool = False) -> None:
    """Check each definition in `updates`, like `check_definition`. Error messages also contain the position of the
    invalid update, counted from 0."""
    for position, update in enumerate(updates):
        if type(update) is Derive:
            _check(update, f"update {position} of ", formulas)


def _check(derive: Derive, where: str, formulas: bool) -> None:
    function, signature = derive.function, BUILTINS.get(derive.function)
    if signature is None:
        return
    code = INVALID
    problem = _unknown(function, "input", derive.inputs, signature.inputs) or _unknown(
        function, "parameter", derive.params, signature.params
    )
    if not problem and signature.pattern and not derive.has_match:
        problem = f"{function} {NO_PATTERN}"
    if not problem and formulas and is_formula(derive):
        code = INVALID_FORMULA
        problem = _formula_check()(derive.params.get("expr"), tuple(derive.inputs))
    if problem:
        raise UnprocessableError(f"{where}{derive.id[:80]!r}: {problem}", code=code)


@cache
def _formula_check() -> Callable[[object, tuple[str, ...]], str]:
    """Return `cel.formulas.problem`. If the CEL library is not installed, return a function that accepts every
    formula."""
    try:
        from rebaser_core.cel.formulas import problem  # noqa: PLC0415 - needs an optional library
    except ModuleNotFoundError as error:
        if error.name != "cel_expr_python":
            raise
        return lambda *_: ""
    return problem


def _unknown(function: str, what: str, names: Collection[str], allowed: AllowedNames) -> str:
    """Return an error message about the first of `names` that is not in `allowed`, or an empty text if there is none.

    `what` is "input" or "parameter".
    """
    if allowed is None or not names:
        return ""
    unknown = next((name for name in names if name not in allowed), None)
    return "" if unknown is None else f"{function} has no {what} {unknown[:80]!r}{_suggestion(unknown, allowed)}"


def _suggestion(unknown: str, allowed: tuple[str, ...]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - each Spark worker imports this module

    close = get_close_matches(unknown, allowed, 1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; it has only {', '.join(allowed)}" if allowed else "; it has none"

"""The inputs and parameters of the built-in functions, and the check of definitions against them.

Invariant: only requests are checked, by the client that sends them and by the server that decides them. Definitions in
a log are never checked, because they may come from a release that did not check. A function that is not listed may be
a plug-in; its inputs and parameters are not checked.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

from rebaser_core.cel import INVALID_FORMULA
from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Derive, Update

AllowedNames = tuple[str, ...] | None  # None: any name
INVALID: Final = "invalid_definition"  # error code


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """The names of a function's inputs and parameters, and whether it needs a `pattern` among its inputs."""

    inputs: AllowedNames = None
    params: AllowedNames = ()
    pattern: bool = False


BY_ID: Final = "by_id"  # the planner turns it into an `object` that uses the ids as names
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
    """Return whether `update` defines a value by a formula."""
    return type(update) is Derive and update.function == "cel"


def check_definition(update: Update, *, formulas: bool = False) -> None:
    """Raise `UnprocessableError` for an invalid definition; the message names the id. `formulas` tells whether to also
    check formulas.

    Formulas are not checked if the CEL library is not installed.
    """
    if type(update) is Derive:
        _check(update, "", formulas)


def check_definitions(updates: Iterable[Update], *, formulas: bool = False) -> None:
    """Call `check_definition` for each of `updates`; the error also gives the position (from 0) of the first invalid
    update."""
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
    """Return `cel.formulas.problem`, or a check that finds nothing if the CEL library is not installed."""
    try:
        from rebaser_core.cel.formulas import problem  # noqa: PLC0415 - needs an optional library
    except ModuleNotFoundError as error:
        if error.name != "cel_expr_python":
            raise
        return lambda *_: ""
    return problem


def _unknown(function: str, what: str, names: Collection[str], allowed: AllowedNames) -> str:
    """Return the problem with the first name that is not `allowed`; empty if all are."""
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

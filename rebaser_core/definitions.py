"""What the built-in functions take, and what is wrong with a definition that gives them anything else.

Invariant: this is asked of requests, by who sends one and by who decides it; never of what a log holds, which may come
from a release that did not ask. A function that is not listed here may be a plug-in, and takes whatever it is given.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

from rebaser_core.cel import INVALID_FORMULA
from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Derive, Update

AllowedNames = tuple[str, ...] | None  # None: any will do
INVALID: Final = "invalid_definition"  # the code of the error


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """The names of inputs and parameters that a function knows, and whether it takes a `pattern` at least."""

    inputs: AllowedNames = None
    params: AllowedNames = ()
    pattern: bool = False


BY_ID: Final = "by_id"  # who plans gives it ids
NO_PATTERN: Final = "takes a pattern among its inputs (object takes ids, by name)"
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
    """Whether it derives by a formula."""
    return type(update) is Derive and update.function == "cel"


def check_definition(update: Update, *, formulas: bool = False) -> None:
    """Raises `UnprocessableError` that names the id of what is wrong; `formulas`: also of one that cannot be read.

    Of formulas nothing is said where the library for them is not installed.
    """
    if type(update) is Derive:
        _check(update, "", formulas)


def check_definitions(updates: Iterable[Update], *, formulas: bool = False) -> None:
    """As `check_definition`, naming the first that is wrong by its position (from 0) as well."""
    for position, update in enumerate(updates):
        if type(update) is Derive:
            _check(update, f"update {position} of ", formulas)


def _check(derive: Derive, where: str, formulas: bool) -> None:
    function, signature = derive.function, BUILTINS.get(derive.function)
    if signature is None:
        return
    code = INVALID
    wrong = _unknown(function, "input", derive.inputs, signature.inputs) or _unknown(
        function, "parameter", derive.params, signature.params
    )
    if not wrong and signature.pattern and not derive.has_match:
        wrong = f"{function} {NO_PATTERN}"
    if not wrong and formulas and is_formula(derive):
        code = INVALID_FORMULA
        wrong = _reader()(derive.params.get("expr"), tuple(derive.inputs))
    if wrong:
        raise UnprocessableError(f"{where}{derive.id[:80]!r}: {wrong}", code=code)


@cache
def _reader() -> Callable[[object, tuple[str, ...]], str]:
    """Says what is wrong with a formula that has inputs of these names."""
    try:
        from rebaser_core.cel.formulas import problem  # noqa: PLC0415 - it needs what is not always there
    except ModuleNotFoundError as error:
        if error.name != "cel_expr_python":
            raise
        return lambda *_: ""
    return problem


def _unknown(function: str, what: str, given: Collection[str], known: AllowedNames) -> str:
    if known is None or not given:
        return ""
    other = next((name for name in given if name not in known), None)
    return "" if other is None else f"{function} has no {what} {other[:80]!r}{_meant(other, known)}"


def _meant(other: str, known: tuple[str, ...]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - each Spark worker imports this module

    close = get_close_matches(other, known, 1)
    if close:
        return f", did you mean {close[0]}?"
    return f", only {', '.join(known)}" if known else ", nor any other"

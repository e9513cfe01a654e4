"""What the built-in functions take, and what is wrong with a definition that gives them anything else.

Invariant: this is asked of requests, by who sends one and by who decides it; never of what a log holds, which may come
from a release that did not ask. A function that is not listed here may be a plug-in, and takes whatever it is given.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Derive, Update

Names = tuple[str, ...] | None  # None: any will do
INVALID: Final = "invalid_definition"  # the code of the errors


@dataclass(frozen=True, slots=True)
class Signature:
    """The names of inputs and parameters that a function knows."""

    inputs: Names = None
    params: Names = ()


_OF_VALUES = "abs concat count keys length list max mean merge min product sum union values"

BUILTINS: Final[Mapping[str, Signature]] = MappingProxyType(
    {
        **dict.fromkeys(_OF_VALUES.split(), Signature()),
        "cel": Signature(params=("expr",)),
        "coalesce": Signature(params=("default",)),
        "format": Signature(params=("template",)),
        "if": Signature(("condition", "then", "else"), ("then", "else")),
        "join": Signature(params=("separator",)),
        "lookup": Signature(("in", "key"), ("key", "default")),
        "object": Signature(params=None),
        "round": Signature(params=("digits",)),
    }
)


def problem(derive: Derive) -> str:
    """What the function of a definition does not know; empty if there is no such thing."""
    function, signature = derive.function, BUILTINS.get(derive.function)
    if signature is None:
        return ""
    return _unknown(function, "input", derive.inputs, signature.inputs) or _unknown(
        function, "parameter", derive.params, signature.params
    )


def check_definition(update: Update) -> None:
    """Raises `UnprocessableError` that names the id if it is a wrong one."""
    if type(update) is Derive and (wrong := problem(update)):
        raise UnprocessableError(f"{update.id[:80]!r}: {wrong}", code=INVALID)


def check_definitions(updates: Iterable[Update]) -> None:
    """Raises `UnprocessableError` that names the first wrong one by its position (from 0) and its id."""
    for position, update in enumerate(updates):
        if type(update) is Derive and (wrong := problem(update)):
            raise UnprocessableError(f"update {position} of {update.id[:80]!r}: {wrong}", code=INVALID)


def _unknown(function: str, what: str, given: Collection[str], known: Names) -> str:
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
